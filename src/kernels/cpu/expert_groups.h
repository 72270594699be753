// The tokens of a pass by the experts that they go to: each expert that is needed, with the slots
// of its tokens side by side, so that its weights are read once.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"

namespace tandem::kernels::cpu {

/// An expert that is needed in a pass. Its tokens have slots [first, first + count).
struct ExpertGroup {
  uint32_t expert = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

/// What one of an expert's matrices makes of rows of activations, [rows][columns], and what the
/// rest of it makes of them, which is added before the products are used.
struct ExpertProducts {
  AlignedArray<float> values;
  AlignedArray<float> rest;  ///< empty where no matrix has one
};

/// A pass's choices, and the memory of an experts step, which is kept from layer to layer.
struct ExpertGroups {
  uint32_t chosen = 0;              ///< experts a token
  std::vector<uint32_t> experts;    ///< [tokens][chosen], best first
  std::vector<float> weights;       ///< [tokens][chosen + 1], the shared one's last
  std::vector<ExpertGroup> groups;  ///< in the order of their slots
  std::vector<uint32_t> tokens;     ///< [slots]: whose slot it is
  std::vector<uint32_t> slots;      ///< [tokens][chosen]: where the token's row for that expert is

  /// Makes groups from `experts` of `tokens` tokens. A token's slots for one expert are in the
  /// order of the tokens; groups are in the order of the experts.
  void arrange(uint32_t count, uint32_t expert_count);

  // Rows by slot; then a row a token for the shared expert.
  uint32_t capacity = 0;        ///< tokens that the memory below is for
  ActivationRows gathered;      ///< [slots] inputs
  ActivationRows inner;         ///< [slots]
  ActivationRows shared_inner;  ///< [tokens]
  ExpertProducts gate, up;      ///< [slots][inner columns]
  ExpertProducts shared_gate, shared_up;
  ExpertProducts down;           ///< [slots][columns of the output]
  ExpertProducts shared_down;    ///< [tokens][columns of the output]
  std::vector<uint32_t> active;  ///< scratch: rows that an activation is for
  std::vector<uint32_t> starts;  ///< scratch of arrange()
};

}  // namespace tandem::kernels::cpu
