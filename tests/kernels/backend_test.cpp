// The CPU backend: a pass's bits depend on neither the instruction set, nor the number of threads,
// nor how its tokens are cut into passes.
#include <memory>

#include "arithmetic/attention.h"
#include "kernels/self_test.h"
#include "support.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kHidden = 200;
constexpr uint32_t kHeads = 6;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 40;
constexpr uint32_t kInner = 330;

// One decoder layer on a backend, enough to use every step.
class Layer {
 public:
  explicit Layer(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {
    cpu::Random random(7);
    query_ = matrix(kHeads * kHeadDim, kHidden, WeightFormat::k8, random);
    key_ = matrix(kKvHeads * kHeadDim, kHidden, WeightFormat::k8, random);
    value_ = matrix(kKvHeads * kHeadDim, kHidden, WeightFormat::k4, random);
    output_ = matrix(kHidden, kHeads * kHeadDim, WeightFormat::k4, random);
    gate_ = matrix(kInner, kHidden, WeightFormat::k4, random);
    up_ = matrix(kInner, kHidden, WeightFormat::k8, random);
    down_ = matrix(kHidden, kInner, WeightFormat::k6, random);
    norm_ = norm(kHidden, false, random);
    layer_norm_ = norm(kHidden, true, random);
    head_norm_ = norm(kHeadDim, false, random);
    bias_ = vector(kHeads * kHeadDim, random);
    sinks_ = vector(kHeads, random);
    hidden_ = backend_->add_floats(kHidden);
    normed_ = backend_->add_activations(kHidden);
    queries_ = backend_->add_floats(kHeads * kHeadDim);
    keys_ = backend_->add_floats(kKvHeads * kHeadDim);
    values_ = backend_->add_floats(kKvHeads * kHeadDim);
    heads_ = backend_->add_heads(kHeads, kHeadDim);
    attended_ = backend_->add_activations(kHeads * kHeadDim);
    delta_ = backend_->add_floats(kHidden);
    gates_ = backend_->add_floats(kInner);
    ups_ = backend_->add_floats(kInner);
    inner_ = backend_->add_activations(kInner);
    final_ = backend_->add_floats(kHidden);
    cache_ = backend_->new_cache(2, kKvHeads, kHeadDim);
  }

  // Runs tokens [position, position + count) of a fixed input; returns the final norm's bits.
  std::vector<uint32_t> run(uint32_t position, uint32_t count) {
    EXPECT_TRUE(cache_->reserve(position + count).ok());
    EXPECT_TRUE(backend_->begin(count).ok());
    std::vector<uint16_t> half;
    std::vector<int16_t> exponents;
    std::vector<arithmetic::Rotation> rotations;
    for (uint32_t t = position; t < position + count; ++t) {
      cpu::Random random(1000 + t);
      for (uint32_t c = 0; c < kHidden; ++c) {
        half.push_back(
            static_cast<uint16_t>(random.integer(0, 1) << 15 | random.integer(0x3000, 0x77ff)));
      }
      exponents.push_back(static_cast<int16_t>(random.integer(-20, -12)));
      for (uint32_t i = 0; i < kHeadDim / 2; ++i) {
        rotations.push_back(arithmetic::rotation(t * arithmetic::phase_step(1.0 / (1 + i))));
      }
    }
    backend_->load_hidden(half, exponents, hidden_);
    backend_->set_rotations(0, rotations);
    for (size_t i = 0; i < rotations.size(); ++i) {
      if (i % (kHeadDim / 2) >= kHeadDim / 4) rotations[i] = {};
    }
    backend_->set_rotations(1, rotations);
    backend_->norm(hidden_, norm_, normed_);
    const Product products[] = {
        {query_, queries_, true, bias_}, {key_, keys_, false, {}}, {value_, values_, false, {}}};
    backend_->matmul(normed_, products);
    backend_->queries(queries_, &head_norm_, {true}, heads_);
    backend_->keys(keys_, &head_norm_, {true}, *cache_, 0, position);
    backend_->values(values_, *cache_, 0, position);
    backend_->attention(heads_, *cache_, attention_step(position), attended_);
    const Product output[] = {{output_, delta_, false, {}}};
    backend_->matmul(attended_, output);
    backend_->add(hidden_, delta_);
    backend_->norm(hidden_, layer_norm_, normed_);
    const Product inner[] = {{gate_, gates_, false, {}}, {up_, ups_, false, {}}};
    backend_->matmul(normed_, inner);
    backend_->gated_silu(gates_, ups_, inner_);
    const Product down[] = {{down_, delta_, false, {}}};
    backend_->matmul(inner_, down);
    backend_->add(hidden_, delta_);
    backend_->gelu(gates_, inner_);
    backend_->matmul(inner_, down);
    backend_->add(hidden_, delta_);
    backend_->gated_gelu(gates_, ups_, inner_);
    backend_->matmul(inner_, down);
    backend_->scale(delta_, 0.7F);
    backend_->add(hidden_, delta_);
    partly_rotated(position);
    backend_->round_hidden(hidden_);
    backend_->norm_floats(hidden_, norm_, final_);
    std::vector<float> out(size_t{count} * kHidden);
    backend_->read(final_, 0, count, out);
    backend_->store_hidden(hidden_, half, exponents);
    EXPECT_TRUE(backend_->finish().ok());
    std::vector<uint32_t> result = cpu::bits(out);
    result.insert(result.end(), half.begin(), half.end());
    for (const int16_t e : exponents) result.push_back(static_cast<uint32_t>(e + 1000));
    return result;
  }

  // Attention again: from the hidden state itself, by the other table, over a part of each head.
  void partly_rotated(uint32_t position) {
    const Product products[] = {{query_, queries_, false, {}}, {key_, keys_, false, {}}};
    const Rotary rotary{true, 1, kHeadDim / 2, 0.9F};
    backend_->quantize(hidden_, normed_);
    backend_->matmul(normed_, products);
    backend_->queries(queries_, nullptr, rotary, heads_);
    backend_->keys(keys_, nullptr, rotary, *cache_, 1, position);
    backend_->values(values_, *cache_, 1, position);
    AttentionStep step = attention_step(position);
    step.layer = 1;
    step.window = 0;
    step.sinks.reset();
    backend_->attention(heads_, *cache_, step, attended_);
    const Product output[] = {{output_, delta_, false, {}}};
    backend_->matmul(attended_, output);
    backend_->norm_floats(delta_, norm_, delta_);
    backend_->add(hidden_, delta_);
  }

  AttentionStep attention_step(uint32_t position) const {
    AttentionStep step;
    step.position = position;
    step.window = 50;
    step.constant = arithmetic::score_constant(0.15);
    step.sinks = sinks_;
    return step;
  }
  Backend& backend() { return *backend_; }
  Floats hidden() const { return hidden_; }
  Activations normed() const { return normed_; }
  const Norm& plain_norm() const { return norm_; }

 private:
  Matrix matrix(uint32_t rows, uint32_t columns, WeightFormat format, cpu::Random& random) {
    PackedMatrix packed = make_packed(format, rows, columns);
    for (uint32_t r = 0; r < rows; ++r) {
      std::vector<int8_t> weights(columns);
      std::vector<uint8_t> quants(columns);
      for (int8_t& w : weights) w = static_cast<int8_t>(random.integer(-127, 127));
      for (uint8_t& q : quants) q = static_cast<uint8_t>(random.integer(0, 15));
      const std::vector<uint8_t> scales((columns + 31) / 32, 16);
      for (uint8_t& q : quants) q = static_cast<uint8_t>(format == WeightFormat::k6 ? q * 4 : q);
      const std::vector<uint8_t> minimums((columns + 31) / 32, 15);
      if (format == WeightFormat::k8) {
        store_row8(packed, r, weights, 0.0011F);
      } else if (format == WeightFormat::k6) {
        store_row6(packed, r, quants, scales, 0.0004F);
      } else {
        store_row4(packed, r, quants, scales, minimums, 0.0011F);
      }
    }
    const Result<Matrix> added = backend_->add_matrix(std::move(packed));
    EXPECT_TRUE(added.ok());
    return added.value();
  }
  Vector vector(uint32_t n, cpu::Random& random) {
    std::vector<float> values(n);
    for (float& v : values) v = random.normal();
    return backend_->add_vector(std::move(values));
  }
  Norm norm(uint32_t n, bool layer, cpu::Random& random) {
    Norm result;
    result.layer = layer;
    result.weight = vector(n, random);
    result.bias = vector(n, random);
    result.constants = arithmetic::NormConstants(n, 1e-5);
    return result;
  }

  std::unique_ptr<Backend> backend_;
  Matrix query_, key_, value_, output_, gate_, up_, down_;
  Norm norm_, layer_norm_, head_norm_;
  Vector bias_, sinks_;
  Floats hidden_, queries_, keys_, values_, delta_, gates_, ups_, final_;
  Activations normed_, attended_, inner_;
  Heads heads_;
  std::unique_ptr<KvCache> cache_;
};

std::unique_ptr<Backend> make(std::string_view isa, uint32_t threads) {
  Result<std::unique_ptr<Backend>> backend =
      make_cpu_backend(isa, std::make_shared<ThreadPool>(threads));
  EXPECT_TRUE(backend.ok());
  return std::move(*backend);
}

TEST(Backend, BitsDependOnNeitherInstructionSetNorThreads) {
  Layer reference(make("scalar", 1));
  const std::vector<uint32_t> prompt = reference.run(0, 71);
  const std::vector<uint32_t> next = reference.run(71, 1);
  const std::vector<uint32_t> several = reference.run(72, 5);
  for (const SelfTestReport& report : self_test_reports()) {
    for (uint32_t threads = 1; threads <= 7; ++threads) {
      if (report.isa == "scalar" && threads > 2) continue;
      Layer layer(make(report.isa, threads));
      ASSERT_EQ(layer.run(0, 71), prompt) << report.isa << " " << threads;
      ASSERT_EQ(layer.run(71, 1), next) << report.isa << " " << threads;
      ASSERT_EQ(layer.run(72, 5), several) << report.isa << " " << threads;
    }
  }
}

TEST(Backend, BitsDoNotDependOnHowTokensAreCutIntoPasses) {
  Layer together(make("best", 2));
  together.run(0, 60);
  const std::vector<uint32_t> last = together.run(60, 1);
  Layer apart(make("best", 2));
  for (uint32_t position = 0; position < 60; position += 4) apart.run(position, 4);
  EXPECT_EQ(apart.run(60, 1), last);
}

TEST(Backend, ActivationsThatAreNotFiniteFailThePass) {
  Layer layer(make("best", 2));
  Backend& backend = layer.backend();
  ASSERT_TRUE(backend.begin(1).ok());
  const std::vector<uint16_t> half(kHidden, 0x7c00);  // infinity
  const std::vector<int16_t> exponents(1, 0);
  backend.load_hidden(half, exponents, layer.hidden());
  backend.norm(layer.hidden(), layer.plain_norm(), layer.normed());
  const Status status = backend.finish();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalid);
  // The next pass starts afresh.
  layer.run(0, 3);
}

}  // namespace
}  // namespace tandem::kernels
