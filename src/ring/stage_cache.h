// The stages that a worker holds, shared between its clients, and the memory that they and the
// clients' KV caches may take.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/hash.h"
#include "base/result.h"
#include "model/stage.h"

namespace tandem::ring {

/// How long passes of a stage take, to tell a slow pass from one that hangs. One writer, any
/// readers.
class PassTimes {
 public:
  void add(uint32_t tokens, uint32_t microseconds);
  /// How long a pass may take before its stage counts as hung: 8 times what passes of that size
  /// took lately, at least 3.5 s; 30 s if nothing is known yet.
  [[nodiscard]] uint32_t allowed_ms(uint32_t tokens) const;

 private:
  /// Smoothed time of passes of [2^i, 2^(i+1)) tokens; 0 if there was none.
  std::array<std::atomic<uint32_t>, 13> microseconds_{};
};

/// What makes two clients' stages the same one.
struct StageIdentity {
  Digest model_hash{};
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;
  uint8_t weight_bits = 8;
  uint8_t kv_bits = 16;

  bool operator==(const StageIdentity&) const = default;
};

/// A stage that some clients use.
struct SharedStage {
  std::unique_ptr<model::Stage> stage;
  PassTimes times;
};

/// Thread-safe. Must outlive every lease.
class StageCache {
 public:
  /// `limit` in bytes; 0 is none. A stage that nobody uses is kept for `keep`, unless its memory is
  /// needed.
  StageCache(uint64_t limit, std::chrono::milliseconds keep) : limit_(limit), keep_(keep) {}
  StageCache(const StageCache&) = delete;
  StageCache& operator=(const StageCache&) = delete;
  ~StageCache() = default;

  /// Memory taken from the limit until it is destroyed.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();
    [[nodiscard]] uint64_t bytes() const { return bytes_; }

   private:
    friend class StageCache;
    Reservation(StageCache* cache, uint64_t bytes) : cache_(cache), bytes_(bytes) {}
    StageCache* cache_ = nullptr;
    uint64_t bytes_ = 0;
  };
  /// Takes `bytes`, dropping unused stages if it must. Error: kMemory, "`what` needs X, …".
  Result<Reservation> reserve(uint64_t bytes, const std::string& what);

  struct Lease {
    std::shared_ptr<SharedStage> stage;
    bool loaded = false;  ///< by this call, not shared or kept
  };
  using Loader = std::function<Result<std::unique_ptr<model::Stage>>()>;
  /// The stage of that identity: one that is held already, or else what `load` gives, which is
  /// called without locks and at most by one client at a time for an identity. `bytes` are reserved
  /// before, and `scratch` more during the load. While another client loads the same stage this
  /// waits, calling `keep_waiting` now and then; should that other client fail, it loads itself.
  /// Errors: kMemory, kCancelled (keep_waiting said no), and those of `load`.
  Result<Lease> acquire(const StageIdentity& identity, uint64_t bytes, uint64_t scratch,
                        const std::string& what, const Loader& load,
                        const std::function<bool()>& keep_waiting);

  /// Drops stages that nobody has used for long enough.
  void expire();

  [[nodiscard]] uint64_t limit() const { return limit_.load(); }
  /// Holds for what is reserved from now on; unused stages that are too much then are dropped.
  void set_limit(uint64_t limit);
  [[nodiscard]] uint64_t used() const;
  /// Stages held, used or kept.
  [[nodiscard]] size_t stages() const;
  /// Layers of the stages that are loaded.
  [[nodiscard]] uint64_t layers() const;

 private:
  struct Entry {
    StageIdentity identity;
    std::shared_ptr<SharedStage> stage;  ///< null while it loads
    Reservation reservation;
    std::chrono::steady_clock::time_point unused_since;
  };
  bool fits(uint64_t bytes) const;
  Result<Reservation> reserve_locked(uint64_t bytes, const std::string& what);
  void release(uint64_t bytes);

  std::atomic<uint64_t> limit_;
  const std::chrono::milliseconds keep_;
  mutable std::mutex mutex_;  ///< guards what follows, except that used_ may be read without
  std::condition_variable changed_;
  std::list<Entry> entries_;
  std::atomic<uint64_t> used_{0};
};

/// "1.5 GB", "320.0 MB", for messages.
std::string bytes_text(uint64_t bytes);

}  // namespace tandem::ring
