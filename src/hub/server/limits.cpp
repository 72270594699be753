#include "hub/server/limits.h"

#include <algorithm>
#include <cmath>

namespace tandem::hub {

using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kMaxKeys = 65536;

int64_t seconds_until_one(double level, double per_second) {
  return level >= 1 ? 0 : std::max<int64_t>(1, std::lround(std::ceil((1 - level) / per_second)));
}

}  // namespace

void Limiter::refill(Bucket& bucket, const Rate& rate, Clock::time_point now) {
  if (bucket.level < 0) {
    bucket.level = rate.burst;
  } else {
    const double passed = std::chrono::duration<double>(now - bucket.last).count();
    bucket.level = std::min(rate.burst, bucket.level + passed * rate.per_second);
  }
  bucket.last = now;
}

void Limiter::prune(Clock::time_point now) {
  for (auto entry = buckets_.begin(); entry != buckets_.end();) {
    refill(entry->second, each_, now);
    entry = entry->second.level >= each_.burst ? buckets_.erase(entry) : std::next(entry);
  }
  // All of them in use at once: whoever does that is better served by the limit over all.
  if (buckets_.size() >= kMaxKeys) buckets_.clear();
}

int64_t Limiter::wait_locked(const std::string& key, Clock::time_point now) {
  refill(total_, all_, now);
  int64_t seconds = seconds_until_one(total_.level, all_.per_second);
  if (const auto found = buckets_.find(key); found != buckets_.end()) {
    refill(found->second, each_, now);
    seconds = std::max(seconds, seconds_until_one(found->second.level, each_.per_second));
  }
  return seconds;
}

void Limiter::count_locked(const std::string& key, Clock::time_point now) {
  if (buckets_.size() >= kMaxKeys && !buckets_.contains(key)) prune(now);
  Bucket& bucket = buckets_[key];
  refill(bucket, each_, now);
  bucket.level = std::max(0.0, bucket.level - 1);
  refill(total_, all_, now);
  total_.level = std::max(0.0, total_.level - 1);
}

int64_t Limiter::wait(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return wait_locked(key, Clock::now());
}

void Limiter::count(const std::string& key) {
  const std::lock_guard lock(mutex_);
  count_locked(key, Clock::now());
}

int64_t Limiter::take(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const int64_t seconds = wait_locked(key, now);
  if (seconds == 0) count_locked(key, now);
  return seconds;
}

}  // namespace tandem::hub
