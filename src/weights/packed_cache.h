// A folder of quantized weights (docs/cache.md): what was quantized once is mapped the next time.
// It is never needed: whatever is wrong with it costs time and one line, not an answer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "kernels/packed.h"
#include "weights/packed_store.h"

namespace tandem::weights {

/// $TANDEM_CACHE, or tandem in $XDG_CACHE_HOME, or ~/.cache/tandem. Empty if $TANDEM_CACHE is
/// "off", or none of the three is an absolute path.
std::filesystem::path cache_folder();

struct PackedCacheOptions {
  std::filesystem::path folder;             ///< made when something is stored
  uint64_t limit = uint64_t{64} << 30;      ///< bytes of all files together
  std::function<void(std::string)> notice;  ///< one line each; from any thread; may be empty
  /// Entries are read into memory of their own: a slower start, and passes as fast as they will be.
  bool copied = false;
};

/// Thread-safe. Several processes may use one folder.
///
/// Entries are files named by their key. Each is mapped (or read), checked as a whole against its
/// checksum, and used in place; one that fails the check, has another version or another length is
/// deleted, with a notice. Files of other users are not used. A thread of low priority writes new
/// entries: under a temporary name, locked, synced, then renamed.
class PackedCache final : public PackedStore {
 public:
  explicit PackedCache(PackedCacheOptions options);
  /// Gives up what has not been written yet.
  ~PackedCache() override;
  PackedCache(const PackedCache&) = delete;
  PackedCache& operator=(const PackedCache&) = delete;

  std::optional<std::vector<kernels::PackedMatrix>> load(const Digest& key,
                                                         std::span<const PackedShape> shapes,
                                                         ThreadPool& pool) override;
  std::optional<std::vector<kernels::PackedMatrix>> load_on_demand(
      const Digest& key, std::span<const PackedShape> shapes) override;
  Status store_now(const Digest& key, std::vector<kernels::PackedMatrix> matrices) override;
  void store(const Digest& key, std::vector<kernels::PackedMatrix> matrices) override;
  /// Writes what is left, without waiting for the disk, until `deadline` or `*cancel`. Calls
  /// `progress` (may be empty) with bytes done and in all.
  void finish(std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* cancel,
              const std::function<void(uint64_t done, uint64_t total)>& progress);

  [[nodiscard]] uint64_t size_of(const Digest& key) const override;
  struct Usage {
    uint64_t bytes = 0;
    uint64_t files = 0;
  };
  [[nodiscard]] Usage usage() const;
  /// Removes every entry; what processes have mapped stays theirs. Gives what was removed.
  Usage clear();
  [[nodiscard]] const PackedCacheOptions& options() const { return options_; }

 private:
  struct Job {
    Digest key{};
    std::vector<kernels::PackedMatrix> matrices;
    uint64_t bytes = 0;
  };
  [[nodiscard]] std::filesystem::path path_of(const Digest& key) const;
  void work();
  /// Takes the next job, or nothing.
  std::optional<Job> next();
  void done(const Job& job);
  void write(const Job& job);
  /// What became of an entry that was to be written.
  struct Written {
    std::string problem;  ///< why it could not be, or empty
    bool busy = false;    ///< another process is writing a file of that name
  };
  /// `attempt` chooses the temporary name: 0 is the one that processes share.
  Written write_file(const Job& job, uint32_t attempt);
  /// Makes room and takes it: a locked file of that size, or -1 if another process writes it.
  std::string claim(uint64_t bytes, const std::filesystem::path& path, int& claimed);
  std::string fill(int file, const PackedHeader& header, const Job& job);
  /// Deletes old entries until there is room. Looks through the folder only where what the last
  /// look left may be used up.
  std::string make_room(uint64_t bytes, const std::filesystem::path& own);
  bool take_known_room(uint64_t bytes);
  void notice(const std::string& line) const;
  /// Says what is wrong with an entry, and removes it if it is of no use.
  void give_up(const std::filesystem::path& path, const std::string& problem, bool remove) const;

  const PackedCacheOptions options_;
  const std::filesystem::file_time_type started_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> hurry_{false};
  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint32_t under_way_ = 0;
  uint64_t queued_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t known_room_ = 0;  ///< bytes that may be written before the folder is looked through
  bool failed_ = false;      ///< a failure was told about; nothing more is tried
  std::thread thread_;
};

}  // namespace tandem::weights
