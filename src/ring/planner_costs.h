// From what is known of devices, links and layers to a problem for the search.
#pragma once

#include <cstdint>
#include <vector>

#include "ring/planner.h"
#include "ring/planner_search.h"

namespace tandem::ring {

/// Everything that a plan's costs are made of, once for an input. Borrows the input.
class PlanCosts {
 public:
  /// The input must have been checked.
  explicit PlanCosts(const PlanInput& input);

  struct Candidate {
    uint32_t device = 0;  ///< of the input
    uint32_t backend = 0;
    std::array<double, kProbeWidths.size()> layer_ms{};
    double pass_ms = 0;
    uint64_t room = 0;         ///< bytes for layers and states
    uint64_t memory = 0;       ///< lent in all
    std::vector<double> cost;  ///< [layers + 1]: ms of the first n layers at the plan's width, with
                               ///< their share of loading
  };

  /// The problem of the devices that can take part, the host first. `limit` bounds what each stage
  /// may take (load()), and links where the objective is throughput.
  [[nodiscard]] search::Problem problem(Objective objective, double limit) const;
  /// What an objective wants to be small for the slowest stage: ms, or the share of memory filled.
  [[nodiscard]] double load(Objective objective, const Candidate& candidate, uint32_t first,
                            uint32_t last) const;
  /// Layers [first, last) and their states fit the candidate, while loading too.
  [[nodiscard]] bool fits(const Candidate& candidate, uint32_t first, uint32_t last) const;
  /// Of problem().choices, in the same order.
  [[nodiscard]] const std::vector<Candidate>& candidates() const { return candidates_; }

  /// Milliseconds of a stage, without loading.
  [[nodiscard]] double stage_ms(const Candidate& candidate, uint32_t first, uint32_t last,
                                double width) const;
  /// Milliseconds of a hop between two devices of the input at `width` tokens; kNever without a
  /// way. The second is what it takes to push the bytes through, which bounds throughput.
  [[nodiscard]] double hop_ms(uint32_t from, uint32_t to, double width) const;
  [[nodiscard]] double wire_ms(uint32_t from, uint32_t to, double width) const;
  [[nodiscard]] uint64_t weight_bytes(uint32_t first, uint32_t last) const {
    return weights_[last] - weights_[first];
  }
  [[nodiscard]] uint64_t state_bytes(uint32_t first, uint32_t last) const {
    return states_[last] - states_[first];
  }
  [[nodiscard]] double load_seconds(uint32_t device, uint32_t first, uint32_t last) const;
  /// Why a device of the input is in no candidate; nothing if it is in one.
  [[nodiscard]] std::optional<LeftOut> absence(uint32_t device) const { return absence_[device]; }
  /// What the host lends is too little for the embedding and the head.
  [[nodiscard]] uint64_t host_short() const { return host_short_; }
  [[nodiscard]] uint32_t layers() const { return layers_; }
  /// The candidates' devices, the host first: index in problem() -> device of the input.
  [[nodiscard]] const std::vector<uint32_t>& members() const { return members_; }

 private:
  struct Way {
    double rtt_ms = 0;
    double bytes_per_second = 0;  ///< 0: no link
  };
  void choose_candidates();
  [[nodiscard]] const Way& way(uint32_t a, uint32_t b) const {
    return ways_[size_t{a} * input_.devices.size() + b];
  }
  [[nodiscard]] std::array<double, kProbeWidths.size()> phone_ms() const;

  const PlanInput& input_;
  const uint32_t layers_;
  std::vector<uint64_t> weights_;  ///< [layers + 1], of the first n layers
  std::vector<uint64_t> states_;
  std::vector<double> work_;
  std::vector<Way> ways_;
  std::vector<Candidate> candidates_;
  std::vector<std::optional<LeftOut>> absence_;
  std::vector<uint32_t> members_;
  std::vector<std::vector<double>> hops_;  ///< between members, at the plan's width
  std::vector<std::vector<double>> wires_;
  uint64_t host_short_ = 0;
};

}  // namespace tandem::ring
