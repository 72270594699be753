// A GGUF file wherever a model's folder goes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

const char* const kFile = "tests/data/gguf/llama-tied-bf16.gguf";
const char* const kFolder = "tests/data/oracle/llama-tied";

std::string logits(const std::string& model, std::vector<std::string> flags = {}) {
  std::vector<std::string> arguments{"logits", "-m", source(model), "--tokens", "1,2,3,400,5,6,7"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return tandem_ok(arguments);
}

TEST(Gguf, GivesTheLogitsOfTheFolderItWasMadeFrom) {
  EXPECT_EQ(logits(kFile), logits(kFolder));
}

TEST(Gguf, RunsOverWorkersThatHaveItAndThatDoNot) {
  WorkerProcess with({"--models", source("tests/data/gguf")});
  WorkerProcess without;
  EXPECT_EQ(logits(kFile, {"--workers", with.address() + "," + without.address()}), logits(kFile));
  EXPECT_EQ(logits("tests/data/gguf/gemma3-q5_1.gguf",
                   {"--workers", with.address() + "," + without.address()}),
            logits("tests/data/gguf/gemma3-q5_1.gguf", {"--local", "2"}));
}

TEST(Gguf, ModelsSaysWhatItHoldsAndWhatQuantizingItCosts) {
  const auto object = nlohmann::json::parse(
      tandem_ok({"models", source("tests/data/gguf/gpt2-iq4_nl.gguf"), "--quality", "--json"}));
  const auto& model = object["models"][0];
  EXPECT_EQ(model["architecture"], "GPT2LMHeadModel");
  EXPECT_NE(model["stored_types"].get<std::string>().find("IQ4_NL"), std::string::npos);
  const auto& all = model["quality"].back();
  EXPECT_EQ(all["kind"], "all");
  EXPECT_GT(all["relative_error_8"].get<double>(), 0);
  EXPECT_LT(all["relative_error_8"].get<double>(), 0.02);
  EXPECT_GT(all["relative_error_4"].get<double>(), all["relative_error_8"].get<double>());
  const auto folder =
      nlohmann::json::parse(tandem_ok({"models", source("tests/data/gguf"), "--json"}));
  EXPECT_EQ(folder["models"].size(), 5U);
}

TEST(Gguf, QualityCountsExpertsHoweverTheyAreStored) {
  for (const char* name : {"qwen3_moe", "gpt_oss", "qwen3_5_moe", "gpt2", "phi3"}) {
    const auto object = nlohmann::json::parse(tandem_ok(
        {"models", source("tests/data/oracle/" + std::string(name)), "--quality", "--json"}));
    const auto& quality = object["models"][0]["quality"];
    uint64_t weights = 0;
    bool experts = false;
    for (const auto& kind : quality) {
      const auto text = kind["kind"].get<std::string>();
      if (text == "all") continue;
      weights += kind["weights"].get<uint64_t>();
      experts = experts || text.find("experts") != std::string::npos;
      // The models lie on a grid that 8 bits hold.
      EXPECT_LT(kind["relative_error_8"].get<double>(), 1e-6) << name << " " << text;
      EXPECT_GT(kind["relative_error_4"].get<double>(), 1e-3) << name << " " << text;
    }
    EXPECT_EQ(weights, quality.back()["weights"].get<uint64_t>());
    EXPECT_EQ(experts,
              std::string(name).find("moe") != std::string::npos || std::string(name) == "gpt_oss");
  }
}

}  // namespace
}  // namespace tandem::cli_test
