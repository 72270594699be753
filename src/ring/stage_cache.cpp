#include "ring/stage_cache.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>
#include <vector>

namespace tandem::ring {
namespace {

constexpr uint32_t kLeastAllowedMs = 3500;
constexpr uint32_t kFirstAllowedMs = 30000;
constexpr uint64_t kSlack = 8;

size_t bucket(uint32_t tokens) {
  return std::min<size_t>(std::bit_width(std::max(tokens, 1u)) - 1, 12);
}

}  // namespace

std::string bytes_text(uint64_t bytes) {
  std::array<char, 32> text{};
  if (bytes >= 1000000000) {
    std::snprintf(text.data(), text.size(), "%.2f GB", static_cast<double>(bytes) * 1e-9);
  } else if (bytes >= 1000000) {
    std::snprintf(text.data(), text.size(), "%.1f MB", static_cast<double>(bytes) * 1e-6);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f KB", static_cast<double>(bytes) * 1e-3);
  }
  return text.data();
}

void PassTimes::add(uint32_t tokens, uint32_t microseconds) {
  auto& slot = microseconds_[bucket(tokens)];
  const uint64_t before = slot.load(std::memory_order_relaxed);
  const uint64_t now = std::max(microseconds, 1u);
  slot.store(static_cast<uint32_t>(before == 0 ? now : (3 * before + now) / 4),
             std::memory_order_relaxed);
}

uint32_t PassTimes::allowed_ms(uint32_t tokens) const {
  // A pass of more tokens than were ever seen takes at most as long as that many of the widest
  // passes seen; one of fewer tokens no longer than a wider one.
  const size_t wanted = bucket(tokens);
  uint64_t expected = 0;
  for (size_t i = wanted; i < microseconds_.size() && expected == 0; ++i) {
    expected = microseconds_[i].load(std::memory_order_relaxed);
  }
  for (size_t i = wanted; i-- > 0 && expected == 0;) {
    expected = uint64_t{microseconds_[i].load(std::memory_order_relaxed)} << (wanted - i + 1);
  }
  if (expected == 0) return kFirstAllowedMs;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(expected * kSlack / 1000, kLeastAllowedMs, 3600u * 1000));
}

StageCache::Reservation::Reservation(Reservation&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

StageCache::Reservation& StageCache::Reservation::operator=(Reservation&& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

StageCache::Reservation::~Reservation() {
  if (cache_ != nullptr) cache_->release(bytes_);
}

void StageCache::release(uint64_t bytes) {
  used_.fetch_sub(bytes);
}

bool StageCache::fits(uint64_t bytes) const {
  const uint64_t used = used_.load();
  const uint64_t limit = limit_.load();
  return limit == 0 || (bytes <= limit && used <= limit - bytes);
}

Result<StageCache::Reservation> StageCache::reserve_locked(uint64_t bytes,
                                                           const std::string& what) {
  while (!fits(bytes)) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->stage == nullptr || entry->stage.use_count() > 1) continue;
      if (oldest == entries_.end() || entry->unused_since < oldest->unused_since) oldest = entry;
    }
    if (oldest == entries_.end()) {
      const uint64_t limit = limit_.load();
      const uint64_t used = std::min(used_.load(), limit);
      return Error{ErrorKind::kMemory, what + " needs " + bytes_text(bytes) + ", and " +
                                           bytes_text(limit - used) + " of " + bytes_text(limit) +
                                           " are free"};
    }
    entries_.erase(oldest);
  }
  used_.fetch_add(bytes);
  return Reservation(this, bytes);
}

Result<StageCache::Reservation> StageCache::reserve(uint64_t bytes, const std::string& what) {
  const std::lock_guard lock(mutex_);
  return reserve_locked(bytes, what);
}

Result<StageCache::Lease> StageCache::acquire(const StageIdentity& identity, uint64_t bytes,
                                              uint64_t scratch, const std::string& what,
                                              const Loader& load,
                                              const std::function<bool()>& keep_waiting) {
  std::unique_lock lock(mutex_);
  auto find = [&] {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry& entry) { return entry.identity == identity; });
  };
  for (auto entry = find(); entry != entries_.end(); entry = find()) {
    if (entry->stage != nullptr) return Lease{entry->stage, false};
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    lock.unlock();
    const bool go_on = keep_waiting();
    lock.lock();
    if (!go_on) return Error{ErrorKind::kCancelled, "the client left"};
  }
  TANDEM_ASSIGN(Reservation reservation, reserve_locked(bytes + scratch, what));
  entries_.push_back({identity, nullptr, std::move(reservation), {}});
  const auto mine = std::prev(entries_.end());
  lock.unlock();
  auto stage = load();
  lock.lock();
  Status fit;
  if (stage.ok()) {
    const uint64_t held = (*stage)->bytes();
    mine->reservation = Reservation();
    auto exact = reserve_locked(held, what);
    if (exact.ok()) {
      mine->reservation = std::move(*exact);
    } else {
      fit = exact.error();
    }
  }
  if (!stage.ok() || !fit.ok()) {
    entries_.erase(mine);
    changed_.notify_all();
    if (!stage.ok()) return stage.error();
    return fit.error();
  }
  mine->stage = std::make_shared<SharedStage>();
  mine->stage->stage = std::move(*stage);
  mine->unused_since = std::chrono::steady_clock::now();
  changed_.notify_all();
  return Lease{mine->stage, true};
}

void StageCache::set_limit(uint64_t limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
  // Drops what it can; an error says that what is left is in use.
  (void)reserve_locked(0, "").ok();
}

void StageCache::expire() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->stage != nullptr && entry->stage.use_count() > 1) entry->unused_since = now;
    if (entry->stage != nullptr && now - entry->unused_since > keep_) {
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
}

uint64_t StageCache::used() const {
  return used_.load();
}

size_t StageCache::stages() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t StageCache::layers() const {
  const std::lock_guard lock(mutex_);
  uint64_t layers = 0;
  for (const Entry& entry : entries_) {
    if (entry.stage == nullptr) continue;
    layers += entry.identity.last_layer - entry.identity.first_layer;
  }
  return layers;
}

}  // namespace tandem::ring
