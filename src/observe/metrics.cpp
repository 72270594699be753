#include "observe/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::observe {
namespace {

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : "0";
}

/// {a="1",le="5"}, or nothing.
std::string labels(std::string_view label, std::string_view more = {}) {
  if (label.empty() && more.empty()) return "";
  std::string text = "{";
  text += label;
  if (!label.empty() && !more.empty()) text += ",";
  text += more;
  return text + "}";
}

}  // namespace

void Histogram::add(double milliseconds) {
  const double value = std::isfinite(milliseconds) && milliseconds > 0 ? milliseconds : 0;
  const auto end = std::lower_bound(kEnds.begin(), kEnds.end(), value);
  counts_[static_cast<size_t>(end - kEnds.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_us_.fetch_add(static_cast<uint64_t>(std::min(value, 1e12) * 1000), std::memory_order_relaxed);
}

template <typename Kind>
Kind& Metrics::find(std::deque<Named<Kind>>& all, std::string_view name, std::string_view help,
                    std::string_view label) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
    return one.name == name && one.label == label;
  });
  if (found != all.end()) return found->metric;
  // Beside those of its name: the format wants them together.
  auto& made = all.emplace_back();
  made.name = name;
  made.help = help;
  made.label = label;
  return made.metric;
}

Counter& Metrics::counter(std::string_view name, std::string_view help, std::string_view label) {
  return find(counters_, name, help, label);
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, std::string_view label) {
  return find(gauges_, name, help, label);
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help,
                              std::string_view label) {
  return find(histograms_, name, help, label);
}

std::string Metrics::text() const {
  std::string text;
  const std::lock_guard lock(mutex_);
  // Families in the order in which they were made, all of a name behind its first.
  const auto families = [&](const auto& all, const char* type, const auto& line) {
    for (auto one = all.begin(); one != all.end(); ++one) {
      const auto same = [&](const auto& other) { return other.name == one->name; };
      if (std::find_if(all.begin(), one, same) != one) continue;
      const std::string name = prefix_ + one->name;
      text += "# HELP " + name + " " + one->help + "\n# TYPE " + name + " " + type + "\n";
      for (auto each = one; each != all.end(); ++each) {
        if (same(*each)) line(name, *each);
      }
    }
  };
  families(counters_, "counter", [&](const std::string& name, const auto& one) {
    text += name + labels(one.label) + " " + std::to_string(one.metric.value()) + "\n";
  });
  families(gauges_, "gauge", [&](const std::string& name, const auto& one) {
    text += name + labels(one.label) + " " + number_text(one.metric.value()) + "\n";
  });
  families(histograms_, "histogram", [&](const std::string& name, const auto& one) {
    uint64_t count = 0;
    for (size_t i = 0; i <= Histogram::kEnds.size(); ++i) {
      count += one.metric.count(i);
      const std::string end =
          i < Histogram::kEnds.size() ? number_text(Histogram::kEnds[i]) : "+Inf";
      text += name + "_bucket" + labels(one.label, label_text("le", end)) + " " +
              std::to_string(count) + "\n";
    }
    text += name + "_sum" + labels(one.label) + " " + number_text(one.metric.sum()) + "\n";
    text += name + "_count" + labels(one.label) + " " + std::to_string(count) + "\n";
  });
  return text;
}

std::string label_text(std::string_view name, std::string_view value) {
  std::string text(name);
  text += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
    }
  }
  return text + "\"";
}

}  // namespace tandem::observe
