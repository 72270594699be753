// A mixture of experts: which of them a token goes to, and how their outputs are joined.
#pragma once

#include <cstdint>
#include <span>

#include "arithmetic/format.h"

namespace tandem::arithmetic {

/// Most experts of a layer: the denominator of route() stays below 2^51.
inline constexpr uint32_t kMaxExperts = 1024;

/// Chooses experts.size() of the experts by their logits, best first: the larger logit, of equal
/// ones the lower index. With l the largest logit, each difference, product and sum rounded once:
///   d_i = min(round((l - logit_i) * kLog2e16), 2^22), k_i = d_i >> 16, m_i = exp2_fraction(d_i &
///   65535)
///   D   = sum of softmax_mass(d_i) over all experts, or with `normalize` over the chosen ones
///   weight_i = (m_i * r.mantissa) * 2^(r.exponent + 24 - k_i), r = reciprocal(D)
///              (0 from k_i = 42 on)
/// D is in [2^40, 2^51), so the exponent is in [-92, -40]. The relative error of a weight is under
/// 1.1e-4. Returns false, with experts 0, 1, … of weight 0, if a logit is infinite or not a number.
/// `weights` is as long as `experts`, which is not longer than `logits`.
[[nodiscard]] bool route(std::span<const float> logits, bool normalize, std::span<uint32_t> experts,
                         std::span<float> weights);

/// out[i] = ((w_0 y_0[i] + w_1 y_1[i]) + w_2 y_2[i]) + …: each product and each sum rounded once,
/// in the order of the experts' ranks. At least one of them; weights.size() == rows.size().
void weighted_sum(std::span<const float* const> rows, std::span<const float> weights,
                  std::span<float> out);

}  // namespace tandem::arithmetic
