// Ctrl-C, closed pipes, workers that die: every command ends tidily and says why.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

/// An answer that goes on until the context is full.
std::vector<std::string> long_answer(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"run",  "-q",    "--raw", "--max-tokens",
                                     "1000", "--isa", "scalar"};  // slow enough to be interrupted
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.emplace_back("Once upon a time");
  return arguments;
}

TEST(CtrlC, EndsAnAnswerTidily) {
  Process process(long_answer());
  process.read_until(" ");
  process.signal(SIGINT);
  const Output output = process.finish();
  EXPECT_EQ(output.code, 130);
  EXPECT_EQ(output.out.back(), '\n');
  EXPECT_EQ(output.err, "");
}

TEST(CtrlC, EndsAnAnswerOverWorkersAndTheWorkersWithIt) {
  Process process(long_answer({"--local", "3"}));
  process.read_until(" ");
  process.signal(SIGINT);
  EXPECT_EQ(process.finish().code, 130);
}

TEST(CtrlC, EndsAWorker) {
  WorkerProcess worker;
  worker.process().signal(SIGINT);
  EXPECT_EQ(worker.process().finish().code, 0);
  WorkerProcess other;
  other.process().signal(SIGTERM);
  EXPECT_EQ(other.process().finish().code, 0);
}

/// The signals that each thread of a process blocks, by thread.
std::map<int, uint64_t> blocked_signals(pid_t process) {
  std::map<int, uint64_t> blocked;
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) {
        blocked[std::stoi(task.path().filename())] = std::stoull(line.substr(7), nullptr, 16);
      }
    }
  }
  return blocked;
}

TEST(CtrlC, WakesTheThreadOfAWorkerThatWaitsForItAndNoOther) {
  WorkerProcess worker;
  const pid_t process = worker.process().pid();
  const auto blocked = blocked_signals(process);
  EXPECT_GT(blocked.size(), 1U);
  constexpr uint64_t kBoth = (uint64_t{1} << (SIGINT - 1)) | (uint64_t{1} << (SIGTERM - 1));
  for (const auto& [thread, mask] : blocked) {
    // The one that waits may be just before its sleep or in it.
    if (thread == process) continue;
    EXPECT_EQ(mask & kBoth, kBoth) << "thread " << thread;
  }
}

TEST(ClosedPipe, EndsQuietly) {
  Process process(long_answer());
  process.read_until(" ");
  process.close_output();
  const Output output = process.finish();
  EXPECT_EQ(output.code, 0);
  EXPECT_EQ(output.err, "");
}

TEST(DyingWorker, IsNamedAndTheOtherStaysUsable) {
  auto dying = std::make_unique<WorkerProcess>(
      std::vector<std::string>{"--models", source("models"), "--isa", "scalar"});
  WorkerProcess living({"--models", source("models"), "--isa", "scalar"});
  const std::string address = dying->address();
  Process process(long_answer({"--no-recovery", "--workers", living.address() + "," + address}));
  process.read_until(" ");
  const auto start = std::chrono::steady_clock::now();
  dying->process().signal(SIGKILL);
  const Output output = process.finish();
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.err.find(address), std::string::npos) << output.err;
  EXPECT_LT(waited, std::chrono::seconds(60)) << "named, but only by this test's patience";
  // The one that lives serves the next host.
  EXPECT_EQ(tandem_ok({"run", "-q", "--workers", living.address(), "Who are you?"}),
            tandem_ok({"run", "-q", "Who are you?"}));
}

TEST(DyingWorker, WithJsonTheErrorIsOnStandardOutput) {
  auto dying = std::make_unique<WorkerProcess>(
      std::vector<std::string>{"--models", source("models"), "--isa", "scalar"});
  // Told apart from the answer's own end by its length: it can't be done before the kill.
  Process process({"run", "--json", "--no-recovery", "--raw", "--max-tokens", "1000", "--workers",
                   dying->address(), "Once upon a time"});
  dying->process().read_error_until("\n");  // a host has come
  dying->process().signal(SIGKILL);
  const Output output = process.finish();
  EXPECT_EQ(output.code, 1);
  const auto object = nlohmann::json::parse(output.out);
  EXPECT_EQ(object["error"]["kind"], "peer");
  EXPECT_NE(object["error"]["message"].get<std::string>().find(dying->address()),
            std::string::npos);
}

TEST(DyingWorker, DoesNotEndTheAnswer) {
  const std::vector<std::string> flags{"--models", source("models"), "--isa", "scalar"};
  auto dying = std::make_unique<WorkerProcess>(flags);
  WorkerProcess living(flags);
  const std::vector<std::string> plain{"run",          "-q",  "--raw",
                                       "--max-tokens", "120", "Once upon a time"};
  auto over_workers = plain;
  over_workers.insert(over_workers.end(), {"--workers", living.address() + "," + dying->address()});
  Process process(over_workers);
  process.read_until(" ");
  dying->process().signal(SIGKILL);
  const Output output = process.finish();
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, tandem_ok(plain));
}

TEST(DyingWorker, IsReplacedByASpareAndTheAnswerSaysSo) {
  const std::vector<std::string> flags{"--models", source("models")};
  auto dying = std::make_unique<WorkerProcess>(flags);
  WorkerProcess living(flags);
  WorkerProcess spare(flags);
  const std::string gone = dying->address();
  Process process({"chat", "--json", "--max-tokens", "20", "--workers",
                   living.address() + "," + gone, "--spares", spare.address() + "=6-11"});
  process.write("Who are you?\n");
  std::string lines = process.read_until("\n");
  dying->process().signal(SIGKILL);
  process.write("And who am I?\n");
  const Output output = process.finish();
  EXPECT_EQ(output.code, 0) << output.out;
  const std::string expected =
      tandem_ok({"chat", "--json", "--max-tokens", "20"}, "Who are you?\nAnd who am I?\n");
  std::istringstream got(output.out.starts_with(lines) ? output.out : lines + output.out);
  std::istringstream wanted(expected);
  nlohmann::json last;
  int turns = 0;
  for (std::string line, other; std::getline(got, line) && std::getline(wanted, other); ++turns) {
    last = nlohmann::json::parse(line);
    const auto undisturbed = nlohmann::json::parse(other);
    for (const char* key : {"text", "tokens", "logits_sha256", "reused_tokens"}) {
      EXPECT_EQ(last[key], undisturbed[key]) << key;
    }
    EXPECT_TRUE(undisturbed["events"].empty());
  }
  ASSERT_EQ(turns, 2) << output.out;
  std::vector<std::string> kinds;
  for (const auto& event : last["events"]) kinds.push_back(event["kind"]);
  EXPECT_EQ(kinds, (std::vector<std::string>{"lost", "spare", "replaying", "goes_on"}));
  EXPECT_EQ(last["events"][0]["peer"], gone);
  EXPECT_EQ(last["events"][1]["peer"], spare.address());
}

TEST(Spares, AreCheckedBeforeAnythingStarts) {
  EXPECT_EQ(tandem({"run", "--spares", "127.0.0.1:1=0-3", "Hi"}).code, 2);
  EXPECT_EQ(
      tandem({"run", "--local", "2", "--no-recovery", "--spares", "127.0.0.1:1=0-3", "Hi"}).code,
      2);
  for (const char* wrong : {"127.0.0.1:1", "127.0.0.1:1=0-99", "127.0.0.1:1=x"}) {
    const Output output = tandem({"run", "--local", "2", "--spares", wrong, "Hi"});
    EXPECT_NE(output.code, 0);
    EXPECT_NE(output.err.find("--spares"), std::string::npos) << output.err;
  }
}

TEST(Memory, AWorkerLendsNoMoreThanItWasTold) {
  WorkerProcess small({"--models", source("models"), "--memory", "4M"});
  const Output output = tandem({"run", "-q", "--workers", small.address(), "Hi"});
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.err.find(small.address()), std::string::npos) << output.err;
}

TEST(Weights, AWorkerWithoutTheModelGetsItsLayersFromTheHost) {
  WorkerProcess bare;
  EXPECT_EQ(
      tandem_ok({"logits", "--tokens", "1,2,3", "--workers", bare.address(), "--split", "4-9"}),
      tandem_ok({"logits", "--tokens", "1,2,3"}));
}

}  // namespace
}  // namespace tandem::cli_test
