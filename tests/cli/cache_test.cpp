// Quantized weights on disk: the same answer with and without them, whatever happened to them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

namespace fs = std::filesystem;

class Cache : public testing::Test {
 protected:
  Cache() : folder_(temporary("cache")) { fs::remove_all(folder_); }
  ~Cache() override { fs::remove_all(folder_); }

  [[nodiscard]] std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"logits", "--tokens", "1,439,271,201,1824"};
    if (std::find(more.begin(), more.end(), "--cache") == more.end()) {
      more.insert(more.end(), {"--cache", folder_.string()});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] Output logits(const std::vector<std::string>& more = {}) const {
    Output output = tandem(arguments(more));
    EXPECT_EQ(output.code, 0) << output.err;
    return output;
  }
  [[nodiscard]] std::vector<fs::path> entries() const {
    std::vector<fs::path> all;
    std::error_code code;
    for (fs::directory_iterator entry(folder_ / "weights", code), end; !code && entry != end;
         entry.increment(code)) {
      all.push_back(entry->path());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  /// Makes every entry a day old, so that it shows which are used.
  void age() const {
    for (const fs::path& entry : entries()) {
      fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(24));
    }
  }
  [[nodiscard]] size_t used() const {
    size_t count = 0;
    for (const fs::path& entry : entries()) {
      if (fs::last_write_time(entry) > fs::file_time_type::clock::now() - std::chrono::hours(1)) {
        ++count;
      }
    }
    return count;
  }

  const fs::path folder_;
};

TEST_F(Cache, GivesTheSameLogitsAtAllWidths) {
  for (const char* bits : {"8", "4", "16"}) {
    const std::string wanted = logits({"--cache", "off", "--weights", bits}).out;
    const size_t before = entries().size();
    EXPECT_EQ(logits({"--weights", bits}).out, wanted);
    EXPECT_EQ(entries().size() - before, 13U) << "twelve layers and the embedding";
    age();
    const Output again = logits({"--weights", bits});
    EXPECT_EQ(again.out, wanted);
    EXPECT_EQ(used(), 13U) << "it was quantized again";
    EXPECT_EQ(logits({"--weights", bits, "--isa", "scalar"}).out, wanted);
    EXPECT_EQ(logits({"--weights", bits, "--threads", "1"}).out, wanted);
  }
  EXPECT_EQ(entries().size(), 39U);
}

TEST_F(Cache, ADamagedEntryIsSaidAndMadeAgain) {
  const std::string wanted = logits().out;
  const fs::path victim = entries()[5];
  const auto damage = [&](auto change) {
    std::string content = read_file(victim.string());
    change(content);
    fs::remove(victim);
    std::ofstream(victim, std::ios::binary) << content;
    ::chmod(victim.c_str(), 0600);
    const Output output = logits();
    EXPECT_EQ(output.out, wanted);
    EXPECT_NE(output.err.find(victim.filename().string()), std::string::npos) << output.err;
    const Output healed = logits();
    EXPECT_EQ(healed.out, wanted);
    EXPECT_EQ(healed.err.find("cache:"), std::string::npos) << healed.err;
    EXPECT_EQ(entries().size(), 13U);
  };
  damage([](std::string& content) { content[content.size() / 2] ^= 1; });
  damage([](std::string& content) { content[2] ^= 1; });
  damage([](std::string& content) { content[12] ^= 1; });
  damage([](std::string& content) { content.resize(content.size() / 3); });
  damage([](std::string& content) { content.clear(); });
}

TEST_F(Cache, TwoProcessesAtOnceBothAnswer) {
  const std::string wanted = logits({"--cache", "off"}).out;
  Process first(arguments());
  Process second(arguments());
  for (Process* process : {&first, &second}) {
    const Output output = process->finish();
    EXPECT_EQ(output.out, wanted);
    EXPECT_EQ(output.err.find("cache:"), std::string::npos) << output.err;
  }
  EXPECT_EQ(entries().size(), 13U) << "something was left behind";
  EXPECT_EQ(logits().out, wanted);
}

TEST_F(Cache, ProcessesThatLeaveExpertsOnDiskFillOneFolderTogether) {
  const auto mixture = [&] {
    return arguments({"-m", source("tests/data/oracle/qwen3_moe"), "--experts-memory", "0",
                      "--tokens", "1,2,3"});
  };
  const std::string wanted =
      logits({"-m", source("tests/data/oracle/qwen3_moe"), "--cache", "off", "--tokens", "1,2,3"})
          .out;
  for (int round = 0; round < 5; ++round) {
    fs::remove_all(folder_);
    std::vector<std::unique_ptr<Process>> processes;
    processes.reserve(4);
    for (int i = 0; i < 4; ++i) processes.push_back(std::make_unique<Process>(mixture()));
    for (const auto& process : processes) {
      const Output output = process->finish();
      EXPECT_EQ(output.code, 0) << output.err;
      EXPECT_EQ(output.out, wanted);
    }
  }
  // Nothing half written is left.
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".writing") << entry.path();
  }
}

TEST_F(Cache, AProcessKilledAtAnyTimeDoesNoHarm) {
  const std::string wanted = logits({"--cache", "off"}).out;
  for (const int milliseconds : {20, 35, 50, 60, 70, 80, 100}) {
    Process process(arguments());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.signal(SIGKILL);
    (void)process.finish();
    const Output output = logits();
    EXPECT_EQ(output.out, wanted);
    EXPECT_EQ(output.err.find("cache:"), std::string::npos) << output.err;
    EXPECT_EQ(entries().size(), 13U);
    fs::remove_all(folder_);
  }
}

TEST_F(Cache, AFolderThatCantBeWrittenIsOneLineNotAnError) {
  const std::string wanted = logits({"--cache", "off"}).out;
  const Output output = logits({"--cache", "/proc/tandem"});
  EXPECT_EQ(output.out, wanted);
  EXPECT_NE(output.err.find("cache: /proc/tandem"), std::string::npos) << output.err;
  EXPECT_EQ(output.err.find("cache:"), output.err.rfind("cache:")) << "said twice";
  EXPECT_EQ(logits({"--cache", "/proc/tandem", "-q"}).err, "");
}

TEST_F(Cache, ALimitFromTheEnvironmentHolds) {
  const std::string wanted = logits({"--cache", "off"}).out;
  Process process(arguments(), {"TANDEM_CACHE_LIMIT=4M"});
  const Output output = process.finish();
  EXPECT_EQ(output.out, wanted);
  EXPECT_NE(output.err.find("limit"), std::string::npos) << output.err;
  uint64_t bytes = 0;
  for (const fs::path& entry : entries()) bytes += fs::file_size(entry);
  EXPECT_LE(bytes, 4U << 20);
}

TEST_F(Cache, WorkersKeepWhatTheHostSentThem) {
  const std::string wanted = logits({"--cache", "off"}).out;
  for (int round = 0; round < 2; ++round) {
    WorkerProcess worker({"--cache", folder_.string()});
    EXPECT_EQ(logits({"--cache", "off", "--workers", worker.address(), "--split", "2-7"}).out,
              wanted);
    worker.process().signal(SIGTERM);
    const Output output = worker.process().finish();
    EXPECT_EQ(output.code, 0);
    if (round == 0) {
      EXPECT_EQ(entries().size(), 6U) << output.err;
      age();
    } else {
      EXPECT_EQ(used(), 6U);
    }
  }
  // The host itself knows the model by the same hashes now, and takes these six.
  age();
  EXPECT_EQ(logits({"--local", "2"}).out, wanted);
  EXPECT_GE(used(), 6U);
}

TEST_F(Cache, ModelsSaysWhatIsKeptAndClearsIt) {
  (void)logits({"--weights", "4"});
  const auto inspect = [&] {
    return nlohmann::json::parse(
        tandem_ok({"models", source("models/storyteller"), "--json", "--cache", folder_.string()}));
  };
  auto object = inspect();
  const auto& model = object["models"][0];
  EXPECT_EQ(model["weights_8"]["cached_bytes"], 0);
  EXPECT_GT(model["weights_4"]["cached_bytes"], model["weights_4"]["layers_bytes"]);
  EXPECT_EQ(object["cache"]["bytes"], model["weights_4"]["cached_bytes"]);
  EXPECT_NE(tandem_ok({"models", "--clear-cache", "--cache", folder_.string()}).find("Removed"),
            std::string::npos);
  object = inspect();
  EXPECT_EQ(object["cache"]["bytes"], 0);
  EXPECT_TRUE(entries().empty());
  EXPECT_NE(tandem_ok({"models"}).find("No models were pulled"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli_test
