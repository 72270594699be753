#include "hub/server/presence.h"

namespace tandem::hub {

void Presence::beat(const std::string& device, int64_t now, std::string report) {
  const std::lock_guard lock(mutex_);
  entries_[device] = {{now, std::move(report)}, true};
}

std::optional<Sighting> Presence::find(const std::string& device) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(device);
  if (found == entries_.end()) return std::nullopt;
  return found->second.sighting;
}

void Presence::forget(const std::string& device) {
  const std::lock_guard lock(mutex_);
  entries_.erase(device);
}

std::vector<std::pair<std::string, Sighting>> Presence::take_changed(size_t most) {
  std::vector<std::pair<std::string, Sighting>> changed;
  const std::lock_guard lock(mutex_);
  for (auto& [device, entry] : entries_) {
    if (!entry.changed) continue;
    if (changed.size() == most) break;
    entry.changed = false;
    changed.emplace_back(device, entry.sighting);
  }
  return changed;
}

void Presence::forget_older(int64_t before) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) {
    return !entry.second.changed && entry.second.sighting.seen < before;
  });
}

size_t Presence::count_since(int64_t since) const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [device, entry] : entries_) count += entry.sighting.seen >= since ? 1 : 0;
  return count;
}

}  // namespace tandem::hub
