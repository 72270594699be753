// When the next frame of a link is likely to come. A thread that sleeps until it is there pays,
// after hundreds of megabytes of weights have gone through the caches, for being woken and for
// finding the kernel's code in memory: some 0.1 ms a hop. One that looks from shortly before does
// not.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "wire/tcp.h"

namespace tandem::ring {

/// Learns from the last laps of equal width. Not thread-safe.
class Expectation {
 public:
  struct Window {
    wire::Clock::time_point from;   ///< sleep until then
    wire::Clock::time_point until;  ///< then look, at most until then
  };

  /// A frame of `tokens` tokens has left here; the next one in follows a lap later.
  void sent(uint32_t tokens, wire::Clock::time_point now);
  /// It came.
  void came(wire::Clock::time_point now);
  /// Nothing came within the window: sleep until something does.
  void missed() { waiting_ = false; }
  /// Nothing if no frame is expected, laps are too few or too slow for 0.1 ms to matter, or the
  /// window has passed. Never longer than 1.5 ms.
  [[nodiscard]] std::optional<Window> window(wire::Clock::time_point now) const;

 private:
  static constexpr size_t kLaps = 4;
  std::array<wire::Clock::duration, kLaps> gaps_{};
  size_t count_ = 0;
  uint32_t tokens_ = 0;
  wire::Clock::time_point sent_;
  bool under_way_ = false;
  bool waiting_ = false;  ///< under way, and the window is not over
};

/// Waits on descriptors as poll() does, until `deadline`. Thread-safe.
int poll_until(pollfd* polled, size_t count, wire::Clock::time_point deadline);

}  // namespace tandem::ring
