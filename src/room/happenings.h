// What happened in a room while this process was its host, for people and for `--json`.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "room/json.h"

namespace tandem::room {

struct Happening {
  int64_t at_ms = 0;   ///< since the process entered the room
  std::string kind;    ///< joined, left, asks, waiting, planned, loading, ready, …
  std::string device;  ///< label of the device that it is about, or empty
  std::string text;    ///< more, for people; or empty
};

/// Thread-safe.
class Happenings {
 public:
  static constexpr size_t kMost = 1000;

  void add(const std::string& kind, const std::string& device, const std::string& text) {
    const auto at = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - start_);
    const std::lock_guard lock(mutex_);
    if (list_.size() < kMost) list_.push_back({at.count(), kind, device, text});
  }
  [[nodiscard]] std::vector<Happening> all() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;  ///< guards list_
  std::vector<Happening> list_;
};

}  // namespace tandem::room
