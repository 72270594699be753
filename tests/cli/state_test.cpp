// A conversation kept on disk goes on in another process as if nothing had happened.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

namespace fs = std::filesystem;

class StateFile : public testing::Test {
 protected:
  StateFile() : file_(temporary("state")), hybrid_(temporary("hybrid")) {
    fs::remove(file_);
    fs::remove_all(hybrid_);
    const std::string command = std::string(TANDEM_BINARY_DIR) + "/make_checkpoint tiny-qwen3.5 " +
                                hybrid_ + " > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c)
  }
  ~StateFile() override {
    fs::remove(file_);
    fs::remove_all(hybrid_);
  }
  [[nodiscard]] std::vector<std::string> arguments(const std::string& command,
                                                   std::vector<std::string> more) const {
    std::vector<std::string> all{command,   "-m",     hybrid_,        "--cache", "off",
                                 "--quiet", "--json", "--max-tokens", "12"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] nlohmann::json run(const std::string& prompt, bool kept) const {
    std::vector<std::string> more{"--raw", prompt};
    if (kept) more.insert(more.end(), {"--state", file_});
    return nlohmann::json::parse(tandem_ok(arguments("run", more)));
  }

  std::string file_;
  std::string hybrid_;
};

const std::string kStory =
    "Once upon a time there was a fox who lived in the deep wood and liked to tell stories";

TEST_F(StateFile, RunsOfPromptsThatBeginAlikeShareWhatWasComputed) {
  EXPECT_EQ(run(kStory, true)["reused_tokens"], 0);
  for (const std::string end : {" to its friends.", " to nobody."}) {
    const auto kept = run(kStory + end, true);
    const auto alone = run(kStory + end, false);
    EXPECT_GT(kept["reused_tokens"].get<int>(), 40);
    EXPECT_EQ(alone["reused_tokens"], 0);
    EXPECT_EQ(kept["logits_sha256"], alone["logits_sha256"]);
    EXPECT_EQ(kept["tokens"], alone["tokens"]);
  }
}

TEST_F(StateFile, AChatGoesOnInAnotherProcess) {
  const std::vector<std::string> turns{"Tell me a story about a fox.\n", "And then?\n", "Why?\n"};
  const std::string whole = tandem_ok(arguments("chat", {}), turns[0] + turns[1] + turns[2]);
  std::string parts;
  for (const std::string& turn : turns) {
    parts += tandem_ok(arguments("chat", {"--state", file_}), turn);
  }
  EXPECT_EQ(parts, whole);
}

TEST_F(StateFile, OfAnotherModelOrDamagedIsRefused) {
  (void)run(kStory, true);
  const auto refused = [&](const std::vector<std::string>& more) {
    const Output output = tandem(arguments("run", more));
    EXPECT_EQ(output.code, 1) << output.out;
    EXPECT_NE(output.out.find(file_), std::string::npos) << output.out;
  };
  refused({"--raw", kStory, "--state", file_, "--weights", "4"});
  std::fstream bytes(file_, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(300);
  bytes.put('!');
  bytes.close();
  refused({"--raw", kStory, "--state", file_});
  EXPECT_EQ(tandem(arguments("run", {"--state", file_, "--local", "2", kStory})).code, 2);
}

}  // namespace
}  // namespace tandem::cli_test
