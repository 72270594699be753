// Where a run's routers sent its tokens, against a pass in double precision.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/profile.h"
#include "model/plain_model.h"
#include "model/variants.h"

namespace tandem::model {

/// A run's routers, and a plain pass that follows them: where a choice of experts is closer than
/// the error of its logits, the plain pass goes where the run went. Else one close choice would
/// make two answers of all tokens that come to see it, of which neither is the better one, and hide
/// what error there is. Use: listener() for the run's options, the run, follow() for the plain
/// pass.
class Routers {
 public:
  Routers(const PlainExperts& experts, size_t tokens)
      : chosen_(experts.chosen), count_(experts.count), tokens_(tokens) {}
  Routers(const Routers&) = delete;
  Routers& operator=(const Routers&) = delete;

  /// For StageOptions::profile. One pass of all tokens, layers in their order.
  std::shared_ptr<kernels::Profile> listener() {
    auto profile = std::make_shared<kernels::Profile>();
    profile->routed = [this](const kernels::ExpertsStep&, std::span<const float> logits) {
      runs_.emplace_back(logits.begin(), logits.end());
    };
    return profile;
  }

  /// The model that follows; it refers to this.
  PlainModel follow(PlainModel model) {
    model.experts.choose = [this](uint32_t layer, uint32_t token,
                                  const std::vector<double>& exact) {
      return choose(layer, token, exact);
    };
    return model;
  }

  struct Choice {
    uint32_t layer = 0;
    uint32_t token = 0;
    double margin = 0;  ///< exact: the last chosen expert's logit less the first other one's
    double error = 0;   ///< most that a difference of two logits is off there
  };
  /// Those that the plain pass followed.
  [[nodiscard]] const std::vector<Choice>& changed() const { return changed_; }
  [[nodiscard]] size_t choices() const { return choices_; }
  /// Root mean square and maximum of the logits' errors, in their standard deviations.
  [[nodiscard]] std::pair<double, double> errors() const { return error(exact_, had_); }

  void print() const {
    const auto [rms, most] = errors();
    std::printf(
        "  routers: rms %.4f %%, maximum %.4f %%; closest of %zu choices: margin %.2e, "
        "error %.2e; closer than the error: %zu\n",
        100 * rms, 100 * most, choices_, closest_.margin, closest_.error, close_);
    for (const Choice& one : changed_) {
      std::printf("  changed: layer %u, token %u: margin %.2e, error %.2e\n", one.layer, one.token,
                  one.margin, one.error);
    }
  }

 private:
  // The indices of the `chosen_` largest, of equal ones the lower, in ascending order.
  template <typename T>
  std::vector<uint32_t> largest(std::span<const T> values) const {
    std::vector<uint32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
    order.resize(chosen_);
    std::sort(order.begin(), order.end());
    return order;
  }

  std::vector<uint32_t> choose(uint32_t layer, uint32_t token, const std::vector<double>& exact) {
    if (layers_.empty() || layers_.back() != layer) layers_.push_back(layer);
    const std::vector<float>& run = runs_.at(layers_.size() - 1);
    const std::span<const float> had(&run.at(token * (run.size() / tokens_)), count_);
    std::vector<double> off;
    for (uint32_t i = 0; i < count_; ++i) off.push_back(had[i] - exact[i]);
    exact_.insert(exact_.end(), exact.begin(), exact.end());
    had_.insert(had_.end(), had.begin(), had.end());
    std::vector<double> sorted = exact;
    std::sort(sorted.rbegin(), sorted.rend());
    const auto [least, most] = std::minmax_element(off.begin(), off.end());
    const Choice own{layer, token, sorted[chosen_ - 1] - sorted[chosen_], *most - *least};
    if (choices_++ == 0 || own.margin / own.error < closest_.margin / closest_.error) {
      closest_ = own;
    }
    const auto plain = largest(std::span<const double>(exact));
    const auto other = largest(had);
    if (own.margin > own.error) return plain;
    ++close_;
    if (plain != other) changed_.push_back(own);
    return other;
  }

  const uint32_t chosen_;
  const uint32_t count_;
  const size_t tokens_;
  std::vector<std::vector<float>> runs_;  ///< [mixture][tokens, experts (+ 1)]
  std::vector<uint32_t> layers_;          ///< with a mixture, as the plain pass comes to them
  std::vector<double> exact_;
  std::vector<double> had_;
  size_t choices_ = 0;
  size_t close_ = 0;
  Choice closest_;
  std::vector<Choice> changed_;
};

}  // namespace tandem::model
