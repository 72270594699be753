// A model from a GGUF file is the model that the file was made from.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/hash.h"
#include "model/support.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

TEST(Gguf, GivesTheLogitsOfTheModelItWasMadeFrom) {
  const std::string path = TANDEM_SOURCE_DIR "/tests/data/gguf/llama-tied-bf16.gguf";
  auto checkpoint = weights::Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto config = parse_config((*checkpoint)->config_json());
  ASSERT_TRUE(config.ok()) << config.error().message;
  Files files{std::move(*checkpoint), *config};
  resolve_prefix(files.config, [&](std::string_view tensor) {
    return files.checkpoint->find(tensor) != nullptr;
  });
  auto golden = weights::SafetensorsFile::open(oracle_folder() / "llama-tied/golden.safetensors");
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
    if (name != "llama-tied") continue;
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

}  // namespace
}  // namespace tandem::model
