// A model from a GGUF file is the model that the file was made from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/hash.h"
#include "model/support.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

class Gguf : public testing::TestWithParam<const char*> {};

TEST_P(Gguf, GivesTheLogitsOfTheModelItWasMadeFrom) {
  const std::string model_name = GetParam();
  Files files = open_path(TANDEM_SOURCE_DIR "/tests/data/gguf/" + model_name + "-bf16.gguf");
  auto golden =
      weights::SafetensorsFile::open(oracle_folder() / (model_name + "/golden.safetensors"));
  ASSERT_TRUE(golden.ok());
  const auto raw = (*golden)->read_raw(*(*golden)->find("tokens"));
  ASSERT_TRUE(raw.ok());
  std::vector<uint32_t> tokens(raw->bytes.size() / sizeof(uint32_t));
  std::memcpy(tokens.data(), raw->bytes.data(), raw->bytes.size());

  std::ifstream list(oracle_folder() / "logits_sha256.txt");
  std::string name;
  std::string wanted;
  int bits = 0;
  size_t compared = 0;
  while (list >> name >> bits >> wanted) {
    if (name != model_name) continue;
    StageOptions options = with(2, Isa::kBest);
    options.weights = static_cast<WeightBits>(bits);
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    const std::vector<float> logits = model.logits(*sequence, tokens);
    EXPECT_EQ(hex(sha256(std::as_bytes(std::span(logits)))), wanted) << bits << " bits";
    ++compared;
  }
  EXPECT_EQ(compared, 2U);
}

INSTANTIATE_TEST_SUITE_P(Models, Gguf, testing::Values("llama-tied", "gpt_oss"),
                         [](const auto& model) {
                           std::string id = model.param;
                           std::replace(id.begin(), id.end(), '-', '_');
                           return id;
                         });

}  // namespace
}  // namespace tandem::model
