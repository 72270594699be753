#include "ring/expectation.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

/// Beyond this a lap is bound by links whose delays dwarf a wake-up.
constexpr auto kSlowest = 100ms;
constexpr auto kAhead = 100us;
constexpr auto kShortest = 300us;
constexpr auto kLongest = 1500us;

}  // namespace

void Expectation::sent(uint32_t tokens, wire::Clock::time_point now) {
  if (tokens != tokens_) count_ = 0;
  tokens_ = tokens;
  sent_ = now;
  under_way_ = true;
  waiting_ = true;
}

void Expectation::came(wire::Clock::time_point now) {
  if (!under_way_) return;
  gaps_[count_++ % kLaps] = now - sent_;
  under_way_ = false;
  waiting_ = false;
}

std::optional<Expectation::Window> Expectation::window(wire::Clock::time_point now) const {
  if (!waiting_ || count_ < kLaps) return {};
  const auto [least, most] = std::minmax_element(gaps_.begin(), gaps_.end());
  if (*most > kSlowest) return {};
  Window window;
  window.from = sent_ + *least - kAhead;
  const auto length =
      std::clamp<wire::Clock::duration>(*most - *least + kAhead + kAhead, kShortest, kLongest);
  window.until = window.from + length;
  if (now >= window.until) return {};
  return window;
}

int poll_until(pollfd* polled, size_t count, wire::Clock::time_point deadline) {
  const auto left = std::max<wire::Clock::duration>(deadline - wire::Clock::now(), 0ns);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  timespec timeout{};
  timeout.tv_sec = seconds.count();
  timeout.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
  return ::ppoll(polled, count, &timeout, nullptr);
}

}  // namespace tandem::ring
