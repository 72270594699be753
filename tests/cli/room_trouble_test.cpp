// Devices of a room that die while they load, lie about their memory, or freeze and
// come back: with the real processes.
#include <sys/resource.h>

#include <sstream>
#include <thread>

#include "cli/room_process.h"

namespace tandem::cli_test {
namespace {

using namespace std::chrono_literals;
using Flags = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

const std::string kTale = "Tell me a story about a fox.";

/// A figure of the kernel's about a process, in bytes: "VmHWM", the most physical memory that it
/// ever had, program and libraries included; "VmData", "VmRSS".
uint64_t memory_of(pid_t process, const std::string& figure) {
  std::istringstream status(read_file("/proc/" + std::to_string(process) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(figure + ":")) return std::stoull(line.substr(figure.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "the kernel does not say " << figure;
  return 0;
}

class RoomTrouble : public RoomProcesses {
 protected:
  static Json ask(Process& chat) {
    chat.write("/new\n" + kTale + "\n");
    const std::string line = chat.read_line();
    Json answer = Json::parse(line, nullptr, false);
    EXPECT_TRUE(answer.is_object() && answer.contains("logits_sha256")) << line;
    return answer.is_object() ? answer : Json::object();
  }
  /// What one process answers in a chat.
  static std::string expected(const std::string& tokens) {
    return Json::parse(
        tandem_ok({"chat", "--json", "-q", "--max-tokens", tokens}, kTale + "\n"))["logits_sha256"];
  }
};

TEST_F(RoomTrouble, WhoDiesWhileItIsMeasuredOrLoadsForTheFirstTimeIsLeftOut) {
  Joined one(at_, {"--name", "one"});
  const Flags flags{"--name", "two", "--cache", "off"};
  auto two = std::make_unique<Joined>(at_, flags);
  const Flags run{"run", "--room", at_, "--json", "--max-tokens", "12", "--memory", "64M", kTale};
  const std::string hash = alone(kTale)["logits_sha256"];
  const auto killed = [&] {
    Process asking(run);
    two->process().read_error_until("loading layers");
    two->process().signal(SIGKILL);
    const Output output = asking.finish();
    EXPECT_EQ(output.code, 0) << output.err << output.out;
    Json answer = Json::parse(output.out, nullptr, false);
    EXPECT_EQ(answer["logits_sha256"], hash) << answer;
    EXPECT_NE(text_of(answer, "planned").find("one"), std::string::npos) << answer["events"];
    return answer;
  };
  // The first layers that it loads are those that it is measured with.
  const Json measured = killed();
  EXPECT_NE(event_of(measured, "measuring_failed"), nullptr) << measured["events"];
  EXPECT_NE(event_of(measured, "left_out", "two"), nullptr) << measured["events"];
  EXPECT_EQ(event_of(measured, "lost"), nullptr) << measured["events"];
  // Once it is known what it can do, they are those of its stage.
  two.reset();
  two = std::make_unique<Joined>(at_, flags);
  tandem_ok({"plan", "--room", at_, "--memory", "64M"});
  two.reset();
  two = std::make_unique<Joined>(at_, flags);
  const Json loaded = killed();
  EXPECT_EQ(event_of(loaded, "measuring"), nullptr) << loaded["events"];
  EXPECT_NE(event_of(loaded, "lost", "two"), nullptr) << loaded["events"];
  EXPECT_NE(event_of(loaded, "replanned"), nullptr) << loaded["events"];
}

TEST_F(RoomTrouble, WithoutTheOnlyOneThatCouldHoldTheLayersTheReasonIsSaid) {
  const Flags flags{"--name", "only", "--cache", "off"};
  auto only = std::make_unique<Joined>(at_, flags);
  for (const bool measured : {false, true}) {
    Process run({"run", "--room", at_, "--json", "--memory", "0", kTale});
    only->process().read_error_until("loading layers");
    only->process().signal(SIGKILL);
    const Output output = run.finish();
    EXPECT_EQ(output.code, 1) << output.err << output.out;
    const Json error = Json::parse(output.out, nullptr, false);
    ASSERT_TRUE(error.is_object() && error.contains("error")) << output.out;
    EXPECT_NE(error["error"]["message"].get<std::string>().find("short"), std::string::npos)
        << error;
    EXPECT_EQ(has_event(error, "lost"), measured) << error["events"];
    only.reset();
    only = std::make_unique<Joined>(at_, flags);
    if (measured) break;
    tandem_ok({"plan", "--room", at_, "--memory", "0"});
    only.reset();
    only = std::make_unique<Joined>(at_, flags);
  }
}

TEST_F(RoomTrouble, AFrozenDeviceComesBackAndCanDoNothingUntilItIsAskedAgain) {
  Joined one(at_, {"--name", "one"});
  Joined two(at_, {"--name", "two"});
  const std::string hash = expected("200");
  Process chat({"chat", "--room", at_, "--json", "--memory", "64M", "--max-tokens", "200"});
  EXPECT_EQ(ask(chat)["logits_sha256"], hash);
  two.process().signal(SIGSTOP);
  const auto frozen = Clock::now();
  const Json without = ask(chat);
  EXPECT_EQ(without["logits_sha256"], hash);
  EXPECT_NE(event_of(without, "silent", "two"), nullptr) << without["events"];
  EXPECT_NE(text_of(without, "lost", "two").find("silent for 15 s"), std::string::npos)
      << without["events"];
  EXPECT_NE(event_of(without, "replanned"), nullptr) << without["events"];
  std::this_thread::sleep_until(frozen + 20s);
  // It wakes to frames, keys and a job of before. Nothing of that counts any more: its host has
  // closed the connections, and answers go on with those who are in the ring.
  two.process().signal(SIGCONT);
  for (int i = 0; i < 3; ++i) {
    const Json answer = ask(chat);
    EXPECT_EQ(answer["logits_sha256"], hash);
    EXPECT_TRUE(answer["events"].empty() || !has_event(answer, "lost")) << answer["events"];
    EXPECT_FALSE(has_event(answer, "link")) << answer["events"];
  }
  two.process().read_error_until("host left");
  ASSERT_EQ(chat.finish().code, 0);
  const Json next = over_room(kTale);
  EXPECT_EQ(next["logits_sha256"], alone(kTale)["logits_sha256"]);
  EXPECT_NE(text_of(next, "planned").find("two"), std::string::npos) << next["events"];
}

TEST_F(RoomTrouble, ADeviceStaysUnderItsLimitAsTheKernelCounts) {
  constexpr uint64_t kMiB = 1 << 20;
  constexpr uint64_t kLess = 44 * kMiB;
  constexpr uint64_t kMore = 60 * kMiB;
  // What is on disk already comes another way than what a host sends.
  const std::string cache = folder_ + "/cache";
  std::map<std::string, std::unique_ptr<Joined>> devices;
  devices["small"] =
      std::make_unique<Joined>(at_, Flags{"--name", "small", "--memory", "44M", "--cache", "off"});
  devices["large"] =
      std::make_unique<Joined>(at_, Flags{"--name", "large", "--memory", "60M", "--cache", cache});
  devices["other"] =
      std::make_unique<Joined>(at_, Flags{"--name", "other", "--memory", "60M", "--cache", cache});
  const std::string hash = expected("150");
  std::map<std::string, uint32_t> layers;
  const auto check = [&](const std::string& what) {
    for (const auto& [name, device] : devices) {
      const uint64_t most = memory_of(device->process().pid(), "VmHWM");
      EXPECT_LE(most, name == "small" ? kLess : kMore) << name << " " << what;
    }
    const Json seen = view();
    for (const auto& [name, one] : devices) {
      const Json* found = device(seen, name);
      if (found != nullptr && found->contains("placement")) ++layers[name];
    }
  };
  const std::vector<Flags> plans{{"--objective", "fastest", "--memory", "0"},
                                 {"--objective", "throughput", "--memory", "0"},
                                 {"--objective", "memory", "--memory", "0"},
                                 {"--objective", "memory", "--memory", "10M"}};
  for (const Flags& plan : plans) {
    Flags flags{"chat", "--room", at_, "--json", "-q", "--max-tokens", "150"};
    flags.insert(flags.end(), plan.begin(), plan.end());
    Process chat(flags);
    EXPECT_EQ(ask(chat)["logits_sha256"], hash);
    check(plan[1] + " " + plan[3]);
    ASSERT_EQ(chat.finish().code, 0);
  }
  // One of them is lost, and those that stay take its layers, or have them already.
  Process chat({"chat", "--room", at_, "--json", "--max-tokens", "150", "--memory", "0",
                "--objective", "memory", "-q"});
  EXPECT_EQ(ask(chat)["logits_sha256"], hash);
  devices.erase("other");
  EXPECT_EQ(ask(chat)["logits_sha256"], hash);
  check("after a loss");
  ASSERT_EQ(chat.finish().code, 0);
  EXPECT_GT(layers["small"], 0U);
  EXPECT_GT(layers["large"], 0U);
}

TEST_F(RoomTrouble, WhoHasLessMemoryThanItSaidIsLeftOutWithTheReason) {
  Joined honest(at_, {"--name", "honest", "--memory", "70M"});
  const Flags flags{"--name", "liar", "--memory", "70M"};
  auto liar = std::make_unique<Joined>(at_, flags);
  const std::string hash = alone(kTale)["logits_sha256"];
  const auto cap = [&](uint64_t more) {
    const pid_t process = liar->process().pid();
    const rlimit least{memory_of(process, "VmData") + more, RLIM_INFINITY};
    ASSERT_EQ(::prlimit(process, RLIMIT_DATA, &least, nullptr), 0);
  };
  // While it is measured it has what it said.
  tandem_ok({"plan", "--room", at_, "--memory", "10M"});
  liar.reset();
  liar = std::make_unique<Joined>(at_, flags);
  // Threads begin with 8 MiB each, of which they use little.
  cap(30 << 20);
  const Json answer = over_room(kTale, {"--memory", "10M"});
  EXPECT_EQ(answer["logits_sha256"], hash);
  EXPECT_NE(text_of(answer, "lost", "liar").find("memory"), std::string::npos) << answer["events"];
  EXPECT_NE(event_of(answer, "replanned"), nullptr) << answer["events"];
  const std::string planned = text_of(answer, "planned");
  EXPECT_NE(planned.find("honest"), std::string::npos) << answer["events"];
  // The device is there still, and serves as soon as it has the memory.
  cap(uint64_t{1} << 30);
  const Json again = over_room(kTale, {"--memory", "10M"});
  EXPECT_EQ(again["logits_sha256"], hash);
  EXPECT_EQ(event_of(again, "lost"), nullptr) << again["events"];
  EXPECT_NE(text_of(again, "planned").find("liar"), std::string::npos) << again["events"];
}

}  // namespace
}  // namespace tandem::cli_test
