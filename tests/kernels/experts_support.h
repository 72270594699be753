// A small mixture of experts: random weights, the definitions, and the step on a backend.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arithmetic/activation.h"
#include "arithmetic/dot.h"
#include "arithmetic/hidden.h"
#include "arithmetic/quantize.h"
#include "arithmetic/router.h"
#include "support.h"

namespace tandem::kernels::mixture {

inline constexpr uint32_t kHidden = 72;
inline constexpr uint32_t kInner = 40;
inline constexpr uint32_t kSharedInner = 56;
inline constexpr uint32_t kExperts = 7;
inline constexpr uint32_t kChosen = 3;

struct Rows {
  PackedMatrix matrix;
  PackedMatrix rest;  // what the matrix leaves out
  std::vector<float> bias;
};

inline Rows random_rows(uint32_t rows, uint32_t columns, cpu::Random& random) {
  Rows result{make_packed(WeightFormat::k8, rows, columns),
              make_packed(WeightFormat::k8, rows, columns), std::vector<float>(rows)};
  std::vector<int8_t> weights(columns);
  for (uint32_t r = 0; r < rows; ++r) {
    for (PackedMatrix* plane : {&result.matrix, &result.rest}) {
      for (int8_t& w : weights) w = static_cast<int8_t>(random.integer(-127, 127));
      store_row8(*plane, r, weights, plane == &result.rest ? 0.0000027F : 0.0007F);
    }
    result.bias[r] = random.normal();
  }
  return result;
}

struct Mlp {
  Rows gate, up, down;
};

inline Mlp random_mlp(uint32_t inner, cpu::Random& random) {
  return {random_rows(inner, kHidden, random), random_rows(inner, kHidden, random),
          random_rows(kHidden, inner, random)};
}

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

inline Inputs inputs(uint32_t tokens) {
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
  bool rests = false;
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
      outputs.push_back(mlp(model.experts[e], x, way));
    }
    if (way.shared) {
      outputs.push_back(mlp(model.shared, x, way));
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
  static float dot(const PackedMatrix& matrix, uint32_t row, std::span<const int16_t> values,
                   int exponent) {
    std::vector<int32_t> weights(matrix.columns);
    load_row(matrix, row, weights);
    int64_t sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += int64_t{weights[i]} * values[i];
    return arithmetic::scaled(sum, matrix.row_scales[row], exponent);
  }
  static std::vector<float> product(const Rows& rows, std::span<const float> x, const Way& way) {
    std::vector<int16_t> values(x.size());
    int exponent = 0;
    EXPECT_TRUE(arithmetic::quantize(x, values, exponent));
    std::vector<float> out(rows.matrix.rows);
    for (uint32_t r = 0; r < rows.matrix.rows; ++r) {
      out[r] = dot(rows.matrix, r, values, exponent);
      if (way.biased) out[r] += rows.bias[r];
      if (way.rests) out[r] += dot(rows.rest, r, values, exponent);
    }
    return out;
  }
  static std::vector<float> mlp(const Mlp& expert, std::span<const float> x, const Way& way) {
    const GatedActivation& activation = way.activation;
    const std::vector<float> gate = product(expert.gate, x, way);
    const std::vector<float> up = product(expert.up, x, way);
    std::vector<float> inner(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      inner[i] =
          activation.kind == GatedActivation::Kind::kSilu
              ? arithmetic::gated_silu(gate[i], up[i])
              : arithmetic::clamped_swiglu(gate[i], up[i], activation.alpha, activation.limit);
    }
    return product(expert.down, inner, way);
  }
};

// The step on a backend.
class Block {
 public:
  Block(const Model& model, std::string_view isa, uint32_t threads, const Way& way,
        const std::vector<std::shared_ptr<OnDemand>>& files = {}) {
    auto made = make_cpu_backend(isa, std::make_shared<ThreadPool>(threads));
    EXPECT_TRUE(made.ok());
    backend_ = std::move(*made);
    hidden_ = backend_->add_floats(kHidden);
    ones_ = backend_->add_floats(kHidden);
    normed_ = backend_->add_activations(kHidden);
    logits_ = backend_->add_floats(kExperts + 1);
    out_ = backend_->add_floats(kHidden);
    for (size_t e = 0; e < model.experts.size(); ++e) {
      experts_.push_back(add(model.experts[e], way, files.empty() ? nullptr : files[e]));
    }
    if (way.shared) shared_ = add(model.shared, way, nullptr);
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
  Expert add(const Mlp& mlp, const Way& way, const std::shared_ptr<OnDemand>& file) {
    const auto plane = [&](const PackedMatrix& matrix) {
      PackedMatrix packed = matrix.share();
      packed.mapped = file != nullptr;
      packed.on_demand = file;
      auto added = backend_->add_matrix(std::move(packed));
      EXPECT_TRUE(added.ok());
      return *added;
    };
    const auto one = [&](const Rows& rows) {
      ExpertMatrix matrix;
      matrix.matrix = plane(rows.matrix);
      matrix.has_bias = way.biased;
      if (way.biased) matrix.bias = backend_->add_vector(rows.bias);
      if (way.rests) matrix.rest = plane(rows.rest);
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

inline constexpr uint32_t kTokens = 45;

inline std::vector<Way> ways() {
  const GatedActivation clamped{GatedActivation::Kind::kClampedSwiglu, 1.702F, 7.0F};
  return {{{}, true, false, false, false},
          {{}, false, true, false, false},
          {clamped, true, false, true, false},
          {{}, true, true, false, true},
          {clamped, true, false, true, true}};
}

inline std::vector<float> reference(const Model& model, const Inputs& in, const Way& way) {
  std::vector<float> all;
  for (uint32_t t = 0; t < kTokens; ++t) {
    const auto one = Reference::run(model, in.hidden.data() + size_t{t} * kHidden,
                                    in.logits.data() + size_t{t} * (kExperts + 1), way);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace tandem::kernels::mixture
