// A mixture of experts on the CPU backend: its bits are those of the definitions, token by token,
// whatever the instruction set, the threads, and the tokens of a pass.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "arithmetic/activation.h"
#include "arithmetic/dot.h"
#include "arithmetic/hidden.h"
#include "arithmetic/quantize.h"
#include "arithmetic/router.h"
#include "kernels/self_test.h"
#include "support.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kHidden = 72;
constexpr uint32_t kInner = 40;
constexpr uint32_t kSharedInner = 56;
constexpr uint32_t kExperts = 7;
constexpr uint32_t kChosen = 3;

struct Rows {
  PackedMatrix matrix;
  std::vector<float> bias;
};

Rows random_rows(uint32_t rows, uint32_t columns, cpu::Random& random) {
  Rows result{make_packed(WeightFormat::k8, rows, columns), std::vector<float>(rows)};
  std::vector<int8_t> weights(columns);
  for (uint32_t r = 0; r < rows; ++r) {
    for (int8_t& w : weights) w = static_cast<int8_t>(random.integer(-127, 127));
    store_row8(result.matrix, r, weights, 0.0007F);
    result.bias[r] = random.normal();
  }
  return result;
}

struct Mlp {
  Rows gate, up, down;
};

Mlp random_mlp(uint32_t inner, cpu::Random& random) {
  return {random_rows(inner, kHidden, random), random_rows(inner, kHidden, random),
          random_rows(kHidden, inner, random)};
}

// What a file's weights are to the backend, without a file.
class CountedWeights final : public OnDemand {
 public:
  void want() override { ++wanted; }
  [[nodiscard]] Status fetch() override {
    ++fetched;
    if (broken) return invalid("these weights are damaged");
    return {};
  }
  void drop() override { ++dropped; }
  std::atomic<int> wanted{0};
  std::atomic<int> fetched{0};
  std::atomic<int> dropped{0};
  bool broken = false;
};

struct Model {
  std::vector<Mlp> experts;
  Mlp shared;

  Model() {
    cpu::Random random(3);
    shared = random_mlp(kSharedInner, random);
    for (uint32_t e = 0; e < kExperts; ++e) experts.push_back(random_mlp(kInner, random));
  }
};

struct Inputs {
  std::vector<float> hidden;  // [tokens][kHidden]
  std::vector<float> logits;  // [tokens][kExperts + 1]
};

Inputs inputs(uint32_t tokens) {
  cpu::Random random(4);
  Inputs result;
  for (uint32_t i = 0; i < tokens * kHidden; ++i) {
    result.hidden.push_back(static_cast<float>(random.integer(-2000, 2000)) * 0x1p-10F);
  }
  for (uint32_t i = 0; i < tokens * (kExperts + 1); ++i) {
    result.logits.push_back(static_cast<float>(random.integer(-12, 12)) * 0.25F);
  }
  return result;
}

struct Way {
  GatedActivation activation;
  bool normalize = true;
  bool shared = false;
  bool biased = false;
};

// The definitions, for one token.
class Reference {
 public:
  static std::vector<float> run(const Model& model, const float* hidden, const float* logits,
                                const Way& way) {
    std::vector<float> x(kHidden);
    for (uint32_t i = 0; i < kHidden; ++i) x[i] = 64.0F * hidden[i];
    std::vector<uint32_t> chosen(kChosen);
    std::vector<float> weights(kChosen);
    EXPECT_TRUE(arithmetic::route({logits, kExperts}, way.normalize, chosen, weights));
    std::vector<std::vector<float>> outputs;
    outputs.reserve(chosen.size() + 1);
    for (const uint32_t e : chosen) {
      outputs.push_back(mlp(model.experts[e], x, way.activation, way.biased));
    }
    if (way.shared) {
      outputs.push_back(mlp(model.shared, x, way.activation, way.biased));
      weights.push_back(arithmetic::logistic_f32(logits[kExperts]));
    }
    std::vector<const float*> rows;
    rows.reserve(outputs.size());
    for (const auto& output : outputs) rows.push_back(output.data());
    std::vector<float> out(kHidden);
    arithmetic::weighted_sum(rows, weights, out);
    return out;
  }

 private:
  static std::vector<float> product(const Rows& rows, std::span<const float> x, bool biased) {
    std::vector<int16_t> values(x.size());
    int exponent = 0;
    EXPECT_TRUE(arithmetic::quantize(x, values, exponent));
    std::vector<float> out(rows.matrix.rows);
    std::vector<int32_t> weights(rows.matrix.columns);
    for (uint32_t r = 0; r < rows.matrix.rows; ++r) {
      load_row(rows.matrix, r, weights);
      int64_t sum = 0;
      for (size_t i = 0; i < values.size(); ++i) sum += int64_t{weights[i]} * values[i];
      const float y = arithmetic::scaled(sum, rows.matrix.row_scales[r], exponent);
      out[r] = biased ? y + rows.bias[r] : y;
    }
    return out;
  }
  static std::vector<float> mlp(const Mlp& expert, std::span<const float> x,
                                const GatedActivation& activation, bool biased) {
    const std::vector<float> gate = product(expert.gate, x, biased);
    const std::vector<float> up = product(expert.up, x, biased);
    std::vector<float> inner(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      inner[i] =
          activation.kind == GatedActivation::Kind::kSilu
              ? arithmetic::gated_silu(gate[i], up[i])
              : arithmetic::clamped_swiglu(gate[i], up[i], activation.alpha, activation.limit);
    }
    return product(expert.down, inner, biased);
  }
};

// The step on a backend.
class Block {
 public:
  Block(const Model& model, std::string_view isa, uint32_t threads, bool shared, bool biased,
        const std::vector<std::shared_ptr<CountedWeights>>& files = {}) {
    auto made = make_cpu_backend(isa, std::make_shared<ThreadPool>(threads));
    EXPECT_TRUE(made.ok());
    backend_ = std::move(*made);
    hidden_ = backend_->add_floats(kHidden);
    ones_ = backend_->add_floats(kHidden);
    normed_ = backend_->add_activations(kHidden);
    logits_ = backend_->add_floats(kExperts + 1);
    out_ = backend_->add_floats(kHidden);
    for (size_t e = 0; e < model.experts.size(); ++e) {
      experts_.push_back(add(model.experts[e], biased, files.empty() ? nullptr : files[e]));
    }
    if (shared) shared_ = add(model.shared, biased, nullptr);
  }

  Backend& backend() { return *backend_; }

  // Tokens [first, first + count). `status`: what finish() says.
  std::vector<float> run(const Inputs& in, uint32_t first, uint32_t count, const Way& way,
                         Status* status) {
    EXPECT_TRUE(backend_->begin(count).ok());
    set(hidden_, in.hidden.data() + size_t{first} * kHidden, kHidden, count);
    set(logits_, in.logits.data() + size_t{first} * (kExperts + 1), kExperts + 1, count);
    // SiLU of 64 is 64: what is quantized is 64 times the input.
    set(ones_, std::vector<float>(size_t{count} * kHidden, 64.0F).data(), kHidden, count);
    backend_->gated_silu(ones_, hidden_, normed_);
    ExpertsStep step;
    step.experts = experts_;
    step.chosen = kChosen;
    step.normalize = way.normalize;
    step.activation = way.activation;
    step.shared = shared_ ? &*shared_ : nullptr;
    backend_->experts(normed_, logits_, step, out_);
    std::vector<float> out(size_t{count} * kHidden);
    backend_->read(out_, 0, count, out);
    *status = backend_->finish();
    return out;
  }

 private:
  Expert add(const Mlp& mlp, bool biased, const std::shared_ptr<CountedWeights>& file) {
    const auto one = [&](const Rows& rows) {
      PackedMatrix packed = rows.matrix.share();
      packed.mapped = file != nullptr;
      packed.on_demand = file;
      auto added = backend_->add_matrix(std::move(packed));
      EXPECT_TRUE(added.ok());
      ExpertMatrix matrix{*added, biased, {}};
      if (biased) matrix.bias = backend_->add_vector(rows.bias);
      return matrix;
    };
    return {one(mlp.gate), one(mlp.up), one(mlp.down)};
  }

  // Values that halves hold exactly.
  void set(Floats floats, const float* values, uint32_t columns, uint32_t count) {
    std::vector<uint16_t> half(size_t{count} * columns);
    std::vector<int16_t> exponents(count);
    for (uint32_t t = 0; t < count; ++t) {
      EXPECT_TRUE(arithmetic::to_boundary({values + size_t{t} * columns, columns},
                                          std::span(half).subspan(size_t{t} * columns, columns),
                                          exponents[t]));
    }
    backend_->load_hidden(half, exponents, floats);
  }

  std::unique_ptr<Backend> backend_;
  Floats hidden_, ones_, logits_, out_;
  Activations normed_;
  std::vector<Expert> experts_;
  std::optional<Expert> shared_;
};

constexpr uint32_t kTokens = 45;

std::vector<Way> ways() {
  const GatedActivation clamped{GatedActivation::Kind::kClampedSwiglu, 1.702F, 7.0F};
  return {{{}, true, false, false}, {{}, false, true, false}, {clamped, true, false, true}};
}

std::vector<float> reference(const Model& model, const Inputs& in, const Way& way) {
  std::vector<float> all;
  for (uint32_t t = 0; t < kTokens; ++t) {
    const auto one = Reference::run(model, in.hidden.data() + size_t{t} * kHidden,
                                    in.logits.data() + size_t{t} * (kExperts + 1), way);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(Experts, BitsAreTheDefinitionsHoweverTokensAreGrouped) {
  const Model model;
  const Inputs in = inputs(kTokens);
  for (const Way& way : ways()) {
    const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
    for (const SelfTestReport& report : self_test_reports()) {
      for (const uint32_t threads : {1U, 3U}) {
        Block block(model, report.isa, threads, way.shared, way.biased);
        for (const uint32_t width : {1U, 2U, 7U, kTokens}) {
          std::vector<float> all;
          for (uint32_t t = 0; t < kTokens; t += width) {
            Status status;
            const auto part = block.run(in, t, std::min(width, kTokens - t), way, &status);
            ASSERT_TRUE(status.ok()) << status.error().message;
            all.insert(all.end(), part.begin(), part.end());
          }
          ASSERT_EQ(cpu::bits(all), expected) << report.isa << " " << threads << " " << width;
        }
      }
    }
  }
}

#if !defined(__wasm__)  // nothing is mapped there
std::vector<std::shared_ptr<CountedWeights>> files() {
  std::vector<std::shared_ptr<CountedWeights>> result;
  for (uint32_t e = 0; e < kExperts; ++e) result.push_back(std::make_shared<CountedWeights>());
  return result;
}

TEST(Experts, OnlyChosenExpertsAreFetchedAndOnlyOnceWhileTheyAreInUse) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const Way way = ways().front();
  const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
  const auto lying = files();
  Block block(model, "best", 2, false, false, lying);
  std::vector<uint32_t> chosen(kChosen);
  std::vector<float> weights(kChosen);
  ASSERT_TRUE(arithmetic::route({in.logits.data(), kExperts}, true, chosen, weights));
  for (int round = 0; round < 3; ++round) {
    Status status;
    const auto out = cpu::bits(block.run(in, 0, 1, way, &status));
    ASSERT_TRUE(status.ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
    for (uint32_t e = 0; e < kExperts; ++e) {
      const bool used = std::find(chosen.begin(), chosen.end(), e) != chosen.end();
      EXPECT_EQ(lying[e]->wanted, used ? 1 : 0) << e;
      EXPECT_EQ(lying[e]->fetched, used ? 1 : 0) << e;
      EXPECT_EQ(lying[e]->dropped, 0) << e;
    }
  }
}

TEST(Experts, ThoseUsedMostAreCopiedUpToTheLimitAndGiveTheSameBits) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const Way way = ways().front();
  const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
  const Mlp& one = model.experts.front();
  const uint64_t bytes = one.gate.matrix.bytes() + one.up.matrix.bytes() + one.down.matrix.bytes();
  for (const uint64_t copies : {uint64_t{0}, uint64_t{2}, uint64_t{kExperts}}) {
    const auto lying = files();
    Block block(model, "best", 2, false, false, lying);
    block.backend().limit_experts(copies * bytes);
    const auto dropped = [&] {
      return std::count_if(lying.begin(), lying.end(),
                           [](const auto& file) { return file->dropped > 0; });
    };
    const auto wanted = static_cast<ptrdiff_t>(copies);
    for (int round = 0; round < 2000 && (round < 20 || dropped() < wanted); ++round) {
      Status status;
      const auto out = cpu::bits(block.run(in, 0, kTokens, way, &status));
      ASSERT_TRUE(status.ok());
      ASSERT_EQ(out, expected) << round;
      if (round > 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(dropped(), wanted);
  }
}

TEST(Experts, DamagedWeightsFailThePassThatNeedsThem) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const auto lying = files();
  for (const auto& file : lying) file->broken = true;
  Block block(model, "best", 2, false, false, lying);
  Status status;
  block.run(in, 0, 1, ways().front(), &status);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("damaged"), std::string::npos);
}
#endif

}  // namespace
}  // namespace tandem::kernels
