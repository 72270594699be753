// The reference models: what transformers computes for them in float32, and what Tandem computes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "model/support.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

template <typename T>
std::vector<T> read_golden(const weights::SafetensorsFile& file, const std::string& tensor) {
  const auto* entry = file.find(tensor);
  EXPECT_NE(entry, nullptr) << tensor;
  if (entry == nullptr) return {};
  const auto raw = file.read_raw(*entry);
  EXPECT_TRUE(raw.ok());
  std::vector<T> values(raw->bytes.size() / sizeof(T));
  std::memcpy(values.data(), raw->bytes.data(), raw->bytes.size());
  return values;
}

class Oracle : public testing::TestWithParam<const char*> {};

TEST_P(Oracle, LogitsAreWithinTheContractsErrorOfTransformers) {
  const auto folder = oracle_folder() / GetParam();
  Files files = open(GetParam());
  Loaded model = load(files, with(2, Isa::kBest));
  auto golden = weights::SafetensorsFile::open(folder / "golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const auto wanted = read_golden<float>(**golden, "logits");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  auto sequence = model.stage->new_sequence();
  const std::vector<float> logits = model.logits(*sequence, tokens);
  ASSERT_EQ(logits.size(), wanted.size());

  double mean = 0;
  for (const float value : wanted) mean += value;
  mean /= static_cast<double>(wanted.size());
  double variance = 0;
  double squares = 0;
  double largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    variance += (wanted[i] - mean) * (wanted[i] - mean);
    const double difference = double{logits[i]} - wanted[i];
    squares += difference * difference;
    largest = std::max(largest, std::fabs(difference));
  }
  const double deviation = std::sqrt(variance / static_cast<double>(wanted.size()));
  const double rms = std::sqrt(squares / static_cast<double>(wanted.size()));
  RecordProperty("rms_percent", std::to_string(100 * rms / deviation));
  RecordProperty("maximum_percent", std::to_string(100 * largest / deviation));
  printf("%s: rms %.4f %%, maximum %.4f %% of the standard deviation\n", GetParam(),
         100 * rms / deviation, 100 * largest / deviation);
  EXPECT_LT(rms / deviation, 0.002);
  EXPECT_LT(largest / deviation, 0.025);
}

TEST_P(Oracle, GreedyContinuationIsTheSameWhereItIsClear) {
  const auto folder = oracle_folder() / GetParam();
  Files files = open(GetParam());
  Loaded model = load(files, with(2, Isa::kBest));
  auto golden = weights::SafetensorsFile::open(folder / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto prompt = read_golden<int32_t>(**golden, "greedy_prompt");
  const auto greedy = read_golden<int32_t>(**golden, "greedy");
  const auto margin = read_golden<float>(**golden, "greedy_margin");
  auto sequence = model.stage->new_sequence();
  std::vector<uint32_t> tokens(prompt.begin(), prompt.end());
  for (size_t step = 0; step < greedy.size(); ++step) {
    const std::vector<float> logits = model.logits(*sequence, tokens);
    const auto last = logits.end() - files.config.vocab;
    const auto best = static_cast<int32_t>(std::max_element(last, logits.end()) - last);
    if (margin[step] > 0.05F) {
      EXPECT_EQ(best, greedy[step]) << "step " << step;
    }
    // Go on with the oracle's choice, so that one close call does not end the comparison.
    tokens = {static_cast<uint32_t>(greedy[step])};
  }
}

TEST_P(Oracle, TheReferenceAndTheFastKernelsGiveTheSameBitsAtEveryWidth) {
  const auto folder = oracle_folder() / GetParam();
  auto golden = weights::SafetensorsFile::open(folder / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Files files = open(GetParam());
  Loaded reference = load(files, with(1, Isa::kScalar));
  auto whole = reference.stage->new_sequence();
  const std::vector<float> wanted = reference.logits(*whole, tokens);
  for (const Isa isa : kIsas) {
    if (!available(isa)) continue;
    Loaded model = load(files, with(2, isa));
    for (const size_t width : {1, 2, 5, 16, 48}) {
      auto sequence = model.stage->new_sequence();
      std::vector<float> logits;
      for (size_t begin = 0; begin < tokens.size(); begin += width) {
        const size_t count = std::min(width, tokens.size() - begin);
        const auto part = model.logits(*sequence, std::span(tokens).subspan(begin, count));
        logits.insert(logits.end(), part.begin(), part.end());
      }
      ASSERT_EQ(logits.size(), wanted.size());
      EXPECT_EQ(std::memcmp(logits.data(), wanted.data(), wanted.size() * sizeof(float)), 0)
          << name(isa) << ", passes of " << width;
    }
  }
}

// The same bits on every machine: SHA-256 of the logits of golden.safetensors's tokens, as
// `tandem logits` prints it. They change with arithmetic::kContractVersion and never otherwise.
struct StoredHash {
  std::string_view model;
  WeightBits weights;
  const char* hash;
};
constexpr StoredHash kHashes[] = {
    {"llama", WeightBits::k8, "dfae6580507904722fc76a5e5e9becc4e6e2bc3e14cbc09af0a4614ca3e6362c"},
    {"llama", WeightBits::k4, "ac9518cfb892a275dd46f69639ba25b70ae234449bc154ba9a54ff293195f66a"},
    {"llama-tied", WeightBits::k8,
     "b6ca26a9605b1ef4bfd52e08cb11ebbb9079888f132b8a57edf3c3aa0c7661e3"},
    {"llama-tied", WeightBits::k4,
     "bad75f92158eb5e34fe3db5181f55b8b188bcc9e0577c88d14301ec831ca44c9"},
    {"mistral", WeightBits::k8, "f117dcb424fd4a06168b07a299d847750435c635248272345f2496f27b467137"},
    {"mistral", WeightBits::k4, "d5958a9392c4a1ba406a31a592ad5f2742401125a18d357ebac845caabf78b4d"},
    {"qwen2", WeightBits::k8, "d3c7be64b2b1c7c1daced4f6f45efbdf83e5e44668f769d5b72ec65d37512d58"},
    {"qwen2", WeightBits::k4, "39e6852389e4a8c240ba013826100ba9fcdd5bbd74301a6dc58664804b5e66ce"},
    {"qwen3", WeightBits::k8, "afea7e00597651555ff3341b5f8504d9a404267b3dc2bfbfde28713046e7bd04"},
    {"qwen3", WeightBits::k4, "d65ecf0e099e961313f288b06338e978be0dbe758684475432cd1d9cd742d538"},
    {"gpt2", WeightBits::k8, "56b5bbb6b61baceaf012517d54207b4c0b6bd2f467c6408dff608a54d4e1b070"},
    {"gpt2", WeightBits::k4, "df4e1445dedb89bb195566fd697a47446299b05fc4fb9d49fb1cd6621caeba9a"},
};

TEST_P(Oracle, LogitsHaveTheStoredHash) {
  auto golden = weights::SafetensorsFile::open(oracle_folder() / GetParam() / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Files files = open(GetParam());
  size_t compared = 0;
  for (const StoredHash& stored : kHashes) {
    if (stored.model != GetParam()) continue;
    StageOptions options = with(2, Isa::kBest);
    options.weights = stored.weights;
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    const std::vector<float> logits = model.logits(*sequence, tokens);
    const Digest digest = sha256(std::as_bytes(std::span(logits)));
    EXPECT_EQ(hex(digest), stored.hash)
        << GetParam() << ", " << static_cast<int>(stored.weights) << " bits";
    ++compared;
  }
  EXPECT_EQ(compared, 2U);
}

INSTANTIATE_TEST_SUITE_P(Families, Oracle,
                         testing::Values("llama", "llama-tied", "mistral", "qwen2", "qwen3",
                                         "gpt2"),
                         [](const auto& family) {
                           std::string id = family.param;
                           std::replace(id.begin(), id.end(), '-', '_');
                           return id;
                         });

}  // namespace
}  // namespace tandem::model
