// The reference models: what transformers computes for them in float32, and what Tandem computes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

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

// Logits with the hidden states between layers moved to a neighbouring binary16, up or down, one
// value in twelve: the mean square of rounding to it.
std::vector<float> moved_logits(const std::vector<std::unique_ptr<Stage>>& layers, Ends& ends,
                                const std::vector<uint32_t>& tokens, uint64_t& state) {
  HiddenStates hidden = *ends.embed(tokens, 0);
  for (size_t i = 0; i < layers.size(); ++i) {
    auto sequence = layers[i]->new_sequence();
    EXPECT_TRUE(layers[i]->run(*sequence, 0, hidden).ok());
    if (i + 1 == layers.size()) break;
    for (uint16_t& value : hidden.values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const uint64_t draw = (state >> 33) % 24;
      // Neither zero nor the largest is moved: both neighbours must be finite and of its sign.
      const uint16_t magnitude = value & 0x7fffU;
      if (draw > 1 || magnitude == 0 || magnitude >= 0x7bffU) continue;
      value = static_cast<uint16_t>(draw == 0 ? value + 1 : value - 1);
    }
  }
  std::vector<float> logits;
  EXPECT_TRUE(ends.logits(hidden, 0, hidden.tokens(), logits).ok());
  return logits;
}

// How far rounding the hidden states between layers to binary16 throws each position's logits: root
// of the mean square of the largest change. A delta net's head whose output is nearly zero before
// its norm magnifies it (docs/arithmetic.md); the float32 reference does so as well.
std::vector<double> rounding_spread(Files& files, const std::vector<uint32_t>& tokens) {
  constexpr int kDraws = 32;
  StageOptions options = with(2, Isa::kBest);
  options.pool = std::make_shared<ThreadPool>(2);
  auto ends = Ends::load(files.config, options, *files.checkpoint, {});
  EXPECT_TRUE(ends.ok());
  std::vector<std::unique_ptr<Stage>> layers;
  for (uint32_t i = 0; i < files.config.layers; ++i) {
    options.first_layer = i;
    options.last_layer = i + 1;
    auto stage = Stage::load(files.config, options, *files.checkpoint, {});
    EXPECT_TRUE(stage.ok());
    layers.push_back(std::move(*stage));
  }
  Loaded whole = load(files, with(2, Isa::kBest));
  auto sequence = whole.stage->new_sequence();
  const std::vector<float> still = whole.logits(*sequence, tokens);
  std::vector<double> squares(tokens.size());
  uint64_t state = 1;
  for (int draw = 0; draw < kDraws; ++draw) {
    const std::vector<float> moved = moved_logits(layers, **ends, tokens, state);
    const size_t vocab = moved.size() / tokens.size();
    for (size_t t = 0; t < tokens.size(); ++t) {
      double largest = 0;
      for (size_t i = t * vocab; i < (t + 1) * vocab; ++i) {
        largest = std::max(largest, std::fabs(double{moved[i]} - still[i]));
      }
      squares[t] += largest * largest / kDraws;
    }
  }
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

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
  std::vector<double> at(tokens.size());  // each position's largest difference
  for (size_t i = 0; i < wanted.size(); ++i) {
    variance += (wanted[i] - mean) * (wanted[i] - mean);
    const double difference = double{logits[i]} - wanted[i];
    squares += difference * difference;
    largest = std::max(largest, std::fabs(difference));
    double& own = at[i / files.config.vocab];
    own = std::max(own, std::fabs(difference));
  }
  const double deviation = std::sqrt(variance / static_cast<double>(wanted.size()));
  const double rms = std::sqrt(squares / static_cast<double>(wanted.size()));
  RecordProperty("rms_percent", std::to_string(100 * rms / deviation));
  RecordProperty("maximum_percent", std::to_string(100 * largest / deviation));
  printf("%s: rms %.4f %%, maximum %.4f %% of the standard deviation\n", GetParam(),
         100 * rms / deviation, 100 * largest / deviation);
  const bool chooses = files.config.moe.experts != 0;
  EXPECT_LT(rms / deviation, chooses ? 0.004 : 0.002);
  const double limit = (chooses ? 0.03 : 0.025) * deviation;
  if (largest < limit || files.config.recurrent_layers(0, files.config.layers) == 0) {
    EXPECT_LT(largest, limit);
    return;
  }
  // Beyond the limit only where rounding between layers alone reaches it, and no farther than that
  // explains; at few positions.
  const std::vector<double> spread = rounding_spread(files, tokens);
  size_t beyond = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (at[t] < limit) continue;
    ++beyond;
    printf("  position %zu: %.2f %%, rounding between layers alone: %.2f %% RMS\n", t,
           100 * at[t] / deviation, 100 * spread[t] / deviation);
    EXPECT_LT(at[t], 3 * spread[t]) << "position " << t;
  }
  EXPECT_LE(beyond, tokens.size() / 16);
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
// `tandem logits` prints it. Other devices' tests (tests/wasm) compare with the same file: it
// changes with arithmetic::kContractVersion and never otherwise.
TEST_P(Oracle, LogitsHaveTheStoredHash) {
  auto golden = weights::SafetensorsFile::open(oracle_folder() / GetParam() / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Files files = open(GetParam());
  std::ifstream list(oracle_folder() / "logits_sha256.txt");
  ASSERT_TRUE(list.good());
  std::string name;
  int bits = 0;
  std::string wanted;
  size_t compared = 0;
  while (list >> name >> bits >> wanted) {
    if (name != GetParam()) continue;
    StageOptions options = with(2, Isa::kBest);
    options.weights = static_cast<WeightBits>(bits);
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    const std::vector<float> logits = model.logits(*sequence, tokens);
    EXPECT_EQ(hex(sha256(std::as_bytes(std::span(logits)))), wanted)
        << name << ", " << bits << " bits";
    ++compared;
  }
  EXPECT_EQ(compared, 2U);
}

// Rows of the reference models lie on grids of 8 bits: nothing is left for a second plane.
TEST_P(Oracle, WeightsOf16BitsGiveTheBitsOf8) {
  auto golden = weights::SafetensorsFile::open(oracle_folder() / GetParam() / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Files files = open(GetParam());
  StageOptions options = with(2, Isa::kBest);
  options.weights = WeightBits::k16;
  options.last_layer = files.config.layers;
  Loaded model = load(files, options);
  Loaded plain = load(files, with(2, Isa::kBest));
  EXPECT_TRUE(model.logits(*model.stage->new_sequence(), tokens) ==
              plain.logits(*plain.stage->new_sequence(), tokens));
  EXPECT_EQ(model.stage->bytes(), stage_bytes(files.config, options));
  EXPECT_EQ(model.ends->bytes(), ends_bytes(files.config, options.weights));
}

// Each position's difference from `exact` relative to it, root of mean squares, least first.
std::vector<double> relative_errors(const std::vector<float>& logits,
                                    const std::vector<float>& exact, size_t positions) {
  const size_t width = logits.size() / positions;
  std::vector<double> errors;
  for (size_t at = 0; at < logits.size(); at += width) {
    double squares = 0;
    double all = 0;
    for (size_t i = at; i < at + width; ++i) {
      squares += (double{logits[i]} - exact[i]) * (double{logits[i]} - exact[i]);
      all += double{exact[i]} * exact[i];
    }
    errors.push_back(std::sqrt(squares / all));
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

// The same with keys and values of 8 bits, on every set: another answer, near the first one.
TEST_P(Oracle, LogitsWithKeysAndValuesOf8BitsHaveTheStoredHash) {
  std::ifstream list(oracle_folder() / "logits_kv8_sha256.txt");
  ASSERT_TRUE(list.good());
  std::string name;
  std::string hash;
  std::string wanted;  // the first set's, where none is stored
  while (list >> name >> hash) {
    if (name == GetParam()) wanted = hash;
  }
  auto golden = weights::SafetensorsFile::open(oracle_folder() / GetParam() / "golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const auto ids = read_golden<int32_t>(**golden, "tokens");
  const auto exact = read_golden<float>(**golden, "logits");
  const std::vector<uint32_t> tokens(ids.begin(), ids.end());
  Files files = open(GetParam());
  for (const Isa isa : kIsas) {
    if (!available(isa)) continue;
    StageOptions options = with(2, isa);
    options.kv = KvBits::k8;
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    const std::vector<float> logits = model.logits(*sequence, tokens);
    hash = hex(sha256(std::as_bytes(std::span(logits))));
    if (wanted.empty()) wanted = hash;
    EXPECT_EQ(hash, wanted) << GetParam() << ", " << tandem::model::name(isa);
    const std::vector<double> errors = relative_errors(logits, exact, tokens.size());
    RecordProperty("median_rms_percent", std::to_string(100 * errors[errors.size() / 2]));
    // Where a token goes to another expert the answer is another one, and there are many such here:
    // the routers' weights are random.
    const bool routed = files.config.moe.experts != 0;
    EXPECT_LT(errors[routed ? errors.size() / 8 : errors.size() / 2], 0.05)
        << tandem::model::name(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Oracle,
                         testing::Values("llama", "llama-tied", "mistral", "qwen2", "qwen3", "gpt2",
                                         "gemma3", "phi3", "olmo2", "smollm3", "granite",
                                         "qwen3_moe", "mixtral", "gpt_oss", "qwen3_5",
                                         "qwen3_5_moe"),
                         [](const auto& family) {
                           std::string id = family.param;
                           std::replace(id.begin(), id.end(), '-', '_');
                           return id;
                         });

}  // namespace
}  // namespace tandem::model
