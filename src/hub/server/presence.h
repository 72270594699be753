// Who was heard of when. Heartbeats stay in memory; the store learns of them in batches.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::hub {

struct Sighting {
  int64_t seen = 0;    ///< ms since 1970
  std::string report;  ///< what the device said of itself: a JSON object
};

/// Thread-safe.
class Presence {
 public:
  void beat(const std::string& device, int64_t now, std::string report);
  [[nodiscard]] std::optional<Sighting> find(const std::string& device) const;
  void forget(const std::string& device);
  /// At most `most` sightings that were not taken since they changed.
  std::vector<std::pair<std::string, Sighting>> take_changed(size_t most);
  /// Forgets those not heard of since `before`; they are in the store.
  void forget_older(int64_t before);
  /// Devices heard of since.
  [[nodiscard]] size_t count_since(int64_t since) const;

 private:
  struct Entry {
    Sighting sighting;
    bool changed = false;
  };
  mutable std::mutex mutex_;  ///< guards entries_
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace tandem::hub
