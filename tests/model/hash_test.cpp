// The SHA-256 of every logit that the reference models give for their golden tokens, against stored
// ones. Other devices' tests (tests/wasm) compare with the same file: it changes with
// arithmetic::kContractVersion and never otherwise.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/hash.h"
#include "model/support.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

std::vector<uint32_t> golden_tokens(const std::string& name) {
  auto file = weights::SafetensorsFile::open(oracle_folder() / name / "golden.safetensors");
  EXPECT_TRUE(file.ok()) << file.error().message;
  const auto* entry = (*file)->find("tokens");
  EXPECT_NE(entry, nullptr);
  const auto raw = (*file)->read_raw(*entry);
  std::vector<uint32_t> tokens(raw->bytes.size() / sizeof(uint32_t));
  std::memcpy(tokens.data(), raw->bytes.data(), raw->bytes.size());
  return tokens;
}

TEST(LogitsHash, IsTheStoredOneForEveryModelAndWidthOfWeights) {
  std::ifstream list(oracle_folder() / "logits_sha256.txt");
  ASSERT_TRUE(list.good());
  std::string name;
  int bits = 0;
  std::string wanted;
  size_t lines = 0;
  for (; list >> name >> bits >> wanted; ++lines) {
    Files files = open(name);
    StageOptions options = with(2, Isa::kBest);
    options.weights = static_cast<WeightBits>(bits);
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    const std::vector<float> logits = model.logits(*sequence, golden_tokens(name));
    EXPECT_EQ(hex(sha256(std::as_bytes(std::span(logits)))), wanted) << name << " " << bits;
  }
  EXPECT_EQ(lines, 12U);
}

}  // namespace
}  // namespace tandem::model
