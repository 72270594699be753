// The searches behind plan(): given what every choice and hop costs, the shortest lap.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace tandem::ring::search {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// One backend of one device.
struct Choice {
  uint32_t device = 0;       ///< within the problem
  uint32_t backend = 0;      ///< of the device
  double fixed = 0;          ///< of a stage, whatever it holds
  std::vector<double> cost;  ///< [layers + 1]: of the first n layers; a run is a difference
  /// [layers + 1]: where a run that ends before layer e may begin at the earliest; e: nowhere.
  /// Never falls with e.
  std::vector<uint32_t> start;

  [[nodiscard]] double run(uint32_t first, uint32_t last) const {
    return fixed + (cost[last] - cost[first]);
  }
};

/// All devices may be used once. Device 0 is the host: laps begin and end there.
struct Problem {
  uint32_t layers = 0;
  uint32_t devices = 0;
  std::vector<Choice> choices;           ///< by device
  std::vector<std::vector<double>> hop;  ///< [from][to]; kNever: not allowed. hop[d][d] is 0
};

struct Step {
  uint32_t choice = 0;
  uint32_t first = 0;
  uint32_t last = 0;
};

struct Solution {
  double cost = kNever;
  std::vector<Step> steps;
};

/// True if by_subsets() takes the problem.
bool small_enough(const Problem& problem);
/// The optimum, whatever layers and links are like: dynamic programming over (devices used, the
/// last of them, layers done).
Solution by_subsets(const Problem& problem);
/// The same for how many layers can be held from the first on, whatever they cost.
uint32_t reach_by_subsets(const Problem& problem);

/// The optimum among splits that visit devices in this order, leaving out any: exact cuts,
/// backends and omissions.
Solution in_order(const Problem& problem, const std::vector<uint32_t>& order);

struct SitesAnswer {
  double bound = kNever;        ///< no split costs less
  std::vector<uint32_t> order;  ///< in which in_order() finds the bound if it can be reached
};
/// A bound on all splits, and an order to try. Devices whose links are alike form a site; a pass
/// over sites (all subsets of at most 10) is combined with a table for each site of what it costs
/// to have it hold n layers. Each device counts with its cheapest run of n layers, each link with
/// the cheapest of its two sites. So the bound is the optimum if layers cost and need the same and
/// links are those of sites.
SitesAnswer by_sites(const Problem& problem);

/// The best of it all. `proved`: no split is better. Otherwise none is better than `bound`.
struct Best {
  Solution solution;
  double bound = 0;
  bool proved = false;
};
Best best(const Problem& problem);

}  // namespace tandem::ring::search
