// Numbers that a process counts of itself, as text for Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::observe {

/// Only rises. Any thread.
class Counter {
 public:
  void add(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Any thread.
class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// How often something took how long, in milliseconds. Any thread.
class Histogram {
 public:
  /// Upper ends of the buckets; there is one more without end.
  static constexpr std::array<double, 15> kEnds{0.5, 1,   2,    5,    10,   20,    50,   100,
                                                200, 500, 1000, 2000, 5000, 10000, 30000};
  void add(double milliseconds);
  [[nodiscard]] uint64_t count(size_t bucket) const {
    return counts_[bucket].load(std::memory_order_relaxed);
  }
  [[nodiscard]] double sum() const {
    return static_cast<double>(sum_us_.load(std::memory_order_relaxed)) / 1000;
  }

 private:
  std::array<std::atomic<uint64_t>, kEnds.size() + 1> counts_{};
  std::atomic<uint64_t> sum_us_{0};
};

/// The metrics of one part of the program. What counter(), gauge() and histogram() return lives as
/// long as the object. Any thread.
class Metrics {
 public:
  /// `prefix`: before each name, "tandem_worker_".
  explicit Metrics(std::string prefix) : prefix_(std::move(prefix)) {}
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// The metric of that name and label, made at first. `help`: one line. `label`: empty, or
  /// `name="value"` as label_text() makes it. Counters' names end in _total.
  Counter& counter(std::string_view name, std::string_view help, std::string_view label = {});
  Gauge& gauge(std::string_view name, std::string_view help, std::string_view label = {});
  Histogram& histogram(std::string_view name, std::string_view help, std::string_view label = {});
  /// Prometheus's text format 0.0.4.
  [[nodiscard]] std::string text() const;

 private:
  template <typename Kind>
  struct Named {
    std::string name;
    std::string help;
    std::string label;
    Kind metric;
  };
  template <typename Kind>
  Kind& find(std::deque<Named<Kind>>& all, std::string_view name, std::string_view help,
             std::string_view label);

  const std::string prefix_;
  mutable std::mutex mutex_;  ///< guards the lists, not what is in them
  std::deque<Named<Counter>> counters_;
  std::deque<Named<Gauge>> gauges_;
  std::deque<Named<Histogram>> histograms_;
};

/// name="value", with what Prometheus wants escaped.
std::string label_text(std::string_view name, std::string_view value);

/// Which of `count` states something is in: gauges state{state="..."}, 1 for the present one and 0
/// for the others (all 0 before the first set()). `State` counts from 0. Any thread.
template <typename State, size_t count>
class States {
 public:
  /// `names` in the order of the enumerators; `all` outlives this.
  States(Metrics& all, std::string_view help, const std::array<std::string_view, count>& names) {
    for (size_t i = 0; i < count; ++i) {
      gauges_[i] = &all.gauge("state", help, label_text("state", names[i]));
    }
  }
  void set(State now) {
    for (size_t i = 0; i < count; ++i) gauges_[i]->set(i == static_cast<size_t>(now) ? 1 : 0);
  }

 private:
  std::array<Gauge*, count> gauges_{};
};

}  // namespace tandem::observe
