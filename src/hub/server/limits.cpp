#include "hub/server/limits.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tandem::hub {

using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kMaxKeys = 65536;

int64_t seconds_until_one(double level, double per_second) {
  return level >= 1 ? 0 : std::max<int64_t>(1, std::lround(std::ceil((1 - level) / per_second)));
}

}  // namespace

std::string network_of(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  const std::string plain = address.substr(0, address.find('%'));
  if (::inet_pton(AF_INET6, plain.c_str(), bytes.data()) != 1) return address;
  constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (std::equal(kMapped.begin(), kMapped.end(), bytes.begin())) {
    ::inet_ntop(AF_INET, bytes.data() + kMapped.size(), text.data(), text.size());
    return text.data();
  }
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  ::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  return std::string(text.data()) + "/64";
}

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
