#include "ring/planner_search.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace tandem::ring::search {
namespace {

/// States of by_subsets(): 64 MiB of costs.
constexpr uint64_t kMostStates = uint64_t{8} << 20;

/// What a run of one device adds: for every end e the least of before[s] + run(s, e), over all
/// starts that fit and all backends. `before` and `after` have layers + 1 entries; `after` is only
/// lowered.
class Extension {
 public:
  explicit Extension(const Problem& problem)
      : problem_(problem), queue_(problem.layers + 1), keys_(problem.layers + 1) {
    first_choice_.assign(problem.devices + 1, 0);
    for (const Choice& choice : problem.choices) ++first_choice_[choice.device + 1];
    std::partial_sum(first_choice_.begin(), first_choice_.end(), first_choice_.begin());
  }

  void apply(uint32_t device, const double* before, double* after) {
    for (uint32_t i = first_choice_[device]; i < first_choice_[device + 1]; ++i) {
      apply(problem_.choices[i], before, after);
    }
  }

  /// The choice and start that apply() took for `after` at `end`.
  Step find(uint32_t device, const double* before, uint32_t end) const {
    Step step;
    double least = kNever;
    for (uint32_t i = first_choice_[device]; i < first_choice_[device + 1]; ++i) {
      const Choice& choice = problem_.choices[i];
      for (uint32_t start = choice.start[end]; start < end; ++start) {
        const double cost = before[start] + choice.run(start, end);
        if (cost < least) {
          least = cost;
          step = {i, start, end};
        }
      }
    }
    return step;
  }

 private:
  /// Starts come and go at the ends of a window, whose least key is kept at the queue's front.
  void apply(const Choice& choice, const double* before, double* after) {
    size_t head = 0;
    size_t tail = 0;
    for (uint32_t end = 1; end <= problem_.layers; ++end) {
      const double key = before[end - 1] - choice.cost[end - 1];
      if (key < kNever) {
        while (tail > head && keys_[tail - 1] >= key) --tail;
        queue_[tail] = end - 1;
        keys_[tail++] = key;
      }
      while (head < tail && queue_[head] < choice.start[end]) ++head;
      if (head == tail) continue;
      after[end] = std::min(after[end], keys_[head] + choice.cost[end] + choice.fixed);
    }
  }

  const Problem& problem_;
  std::vector<uint32_t> first_choice_;
  std::vector<uint32_t> queue_;
  std::vector<double> keys_;
};

}  // namespace

bool small_enough(const Problem& problem) {
  return problem.devices <= 16 &&
         (uint64_t{problem.devices} << problem.devices) * (problem.layers + 1) <= kMostStates;
}

Solution by_subsets(const Problem& problem) {
  const uint32_t devices = problem.devices;
  const size_t row = problem.layers + 1;
  Extension extension(problem);
  std::vector<double> table((size_t{devices} << devices) * row, kNever);
  auto at = [&](uint32_t set, uint32_t last) {
    return table.data() + (size_t{set} * devices + last) * row;
  };
  std::vector<double> before(row);
  // What it costs to be about to start at `device`, everything of `set` being used before.
  auto arrive = [&](uint32_t set, uint32_t device) {
    std::fill(before.begin(), before.end(), kNever);
    if (set == 0) {
      before[0] = problem.hop[0][device];
      return;
    }
    for (uint32_t left = set; left != 0; left &= left - 1) {
      const auto last = static_cast<uint32_t>(std::countr_zero(left));
      const double hop = problem.hop[last][device];
      if (hop == kNever) continue;
      const double* from = at(set, last);
      for (size_t layer = 0; layer < row; ++layer) {
        before[layer] = std::min(before[layer], from[layer] + hop);
      }
    }
  };
  Solution best;
  uint32_t best_set = 0;
  uint32_t best_last = 0;
  for (uint32_t set = 1; set < uint32_t{1} << devices; ++set) {
    for (uint32_t left = set; left != 0; left &= left - 1) {
      const auto last = static_cast<uint32_t>(std::countr_zero(left));
      arrive(set & ~(uint32_t{1} << last), last);
      double* to = at(set, last);
      extension.apply(last, before.data(), to);
      const double cost = to[problem.layers] + problem.hop[last][0];
      if (cost < best.cost) {
        best.cost = cost;
        best_set = set;
        best_last = last;
      }
    }
  }
  if (best.cost == kNever) return best;
  for (uint32_t end = problem.layers; best_set != 0;) {
    best_set &= ~(uint32_t{1} << best_last);
    arrive(best_set, best_last);
    const Step step = extension.find(best_last, before.data(), end);
    best.steps.push_back(step);
    end = step.first;
    if (best_set == 0) break;
    uint32_t from = 0;
    double least = kNever;
    for (uint32_t left = best_set; left != 0; left &= left - 1) {
      const auto last = static_cast<uint32_t>(std::countr_zero(left));
      const double cost = at(best_set, last)[end] + problem.hop[last][best_last];
      if (cost < least) {
        least = cost;
        from = last;
      }
    }
    best_last = from;
  }
  std::reverse(best.steps.begin(), best.steps.end());
  return best;
}

uint32_t reach_by_subsets(const Problem& problem) {
  const uint32_t devices = problem.devices;
  // furthest[choice][s]: where a run from s may end at most; s: nowhere.
  std::vector<std::vector<uint32_t>> furthest(devices, std::vector<uint32_t>(problem.layers + 1));
  for (auto& ends : furthest) std::iota(ends.begin(), ends.end(), 0);
  for (const Choice& choice : problem.choices) {
    auto& ends = furthest[choice.device];
    for (uint32_t end = 1; end <= problem.layers; ++end) {
      for (uint32_t start = choice.start[end]; start < end; ++start) {
        ends[start] = std::max(ends[start], end);
      }
    }
  }
  // By (devices used, last of them); one more than the layers done, 0: can't be.
  std::vector<uint32_t> reached(size_t{devices} << devices, 0);
  uint32_t most = 0;
  for (uint32_t set = 1; set < uint32_t{1} << devices; ++set) {
    for (uint32_t left = set; left != 0; left &= left - 1) {
      const auto last = static_cast<uint32_t>(std::countr_zero(left));
      const uint32_t rest = set & ~(uint32_t{1} << last);
      uint32_t from = rest == 0 && problem.hop[0][last] < kNever ? 1 : 0;
      for (uint32_t others = rest; others != 0; others &= others - 1) {
        const auto other = static_cast<uint32_t>(std::countr_zero(others));
        if (problem.hop[other][last] == kNever) continue;
        from = std::max(from, reached[size_t{rest} * devices + other]);
      }
      if (from == 0) continue;
      const uint32_t end = furthest[last][from - 1];
      if (end == from - 1) continue;
      reached[size_t{set} * devices + last] = end + 1;
      if (problem.hop[last][0] < kNever) most = std::max(most, end);
    }
  }
  return most;
}

Solution in_order(const Problem& problem, const std::vector<uint32_t>& order) {
  const size_t row = problem.layers + 1;
  Extension extension(problem);
  std::vector<double> table(order.size() * row, kNever);
  std::vector<double> before(row);
  auto arrive = [&](size_t at) {
    std::fill(before.begin(), before.end(), kNever);
    before[0] = problem.hop[0][order[at]];
    for (size_t earlier = 0; earlier < at; ++earlier) {
      const double hop = problem.hop[order[earlier]][order[at]];
      if (hop == kNever) continue;
      const double* from = table.data() + earlier * row;
      for (size_t layer = 0; layer < row; ++layer) {
        before[layer] = std::min(before[layer], from[layer] + hop);
      }
    }
  };
  Solution best;
  size_t last = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    arrive(at);
    double* to = table.data() + at * row;
    extension.apply(order[at], before.data(), to);
    const double cost = to[problem.layers] + problem.hop[order[at]][0];
    if (cost < best.cost) {
      best.cost = cost;
      last = at;
    }
  }
  if (best.cost == kNever) return best;
  for (uint32_t end = problem.layers;;) {
    arrive(last);
    const Step step = extension.find(order[last], before.data(), end);
    best.steps.push_back(step);
    end = step.first;
    double least = end == 0 ? problem.hop[0][order[last]] : kNever;
    size_t from = last;
    for (size_t earlier = 0; earlier < last; ++earlier) {
      const double cost = table[earlier * row + end] + problem.hop[order[earlier]][order[last]];
      if (cost < least) {
        least = cost;
        from = earlier;
      }
    }
    if (from == last) break;
    last = from;
  }
  std::reverse(best.steps.begin(), best.steps.end());
  return best;
}

Best best(const Problem& problem) {
  auto meets = [](double cost, double bound) { return cost <= bound + 1e-9 * (1 + bound); };
  Best best;
  const SitesAnswer sites = by_sites(problem);
  best.bound = sites.bound;
  if (sites.bound == kNever) {
    best.proved = true;
    return best;
  }
  best.solution = in_order(problem, sites.order);
  best.proved = meets(best.solution.cost, best.bound);
  if (best.proved || !small_enough(problem)) return best;
  best.solution = by_subsets(problem);
  best.bound = best.solution.cost;
  best.proved = true;
  return best;
}

}  // namespace tandem::ring::search
