// Where a device of a room gets its layers' tensors from, and what it gives to the others
// (docs/fetching.md): the room's rule, the devices of the room as sources, and which layers'
// weights are on the disk already.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "fetch/shelf.h"
#include "fetch/source.h"
#include "hub/link.h"
#include "ring/worker.h"
#include "room/entry.h"
#include "room/held.h"
#include "room/json.h"
#include "room/member.h"

namespace tandem::room {

/// The file in a folder of fetched tensors which says that they were fetched for that room.
std::string room_mark(const hub::HubAddress& hub, const std::string& code);

struct SharingOptions {
  std::filesystem::path store;  ///< of fetched weights (fetch::Store); empty: none are kept
  uint64_t limit = 0;           ///< of the store, in bytes
  /// Kinds that the device's owner allows; the room's rule holds as well. Nothing: all.
  std::optional<std::set<fetch::SourceKind>> own;
  uint64_t bytes_per_second = 0;  ///< to all other devices together; 0: no limit
  /// Model servers and Hugging Face, as the owner named them; those of kinds that are not allowed
  /// are not asked. May be empty.
  std::function<Result<std::vector<std::unique_ptr<fetch::Source>>>(
      const fetch::ModelName& model, const std::atomic<bool>* cancel,
      const std::function<void(const std::string&)>& waiting)>
      outside;
};

/// Thread-safe.
class Sharing {
 public:
  /// `way`: the room's, with the hub's address. `device`: this one's id. `refresh` gives the room
  /// anew, from any thread; `worker` has what is needed of the worker's options (cache, log).
  Sharing(SharingOptions options, const Way& way, std::string device,
          std::shared_ptr<const wire::Tls> tls, const ring::WorkerOptions& worker,
          std::function<Result<Json>()> refresh);

  /// Sets what of a worker's options the room's rule decides: fetch, tensors_of_host, share.
  void apply(const Json& room, ring::WorkerOptions& worker);
  /// Who is in the room now.
  void see(const Json& room);
  /// Nothing is given while `why` is not empty.
  void pause(const std::string& why);
  /// The hub's model server, for rooms that allow it.
  void use_hub(const hub::HubAddress& hub, const std::string& token);
  /// Which layers' weights are here, for the device's report: [{"model": HASH, "layers": "0-5"}].
  [[nodiscard]] Json held();

 private:
  [[nodiscard]] bool allows(fetch::SourceKind kind) const;
  Result<std::unique_ptr<weights::TensorSource>> fetch(const ring::FetchRequest& request);
  /// `model`: what the files are called elsewhere; null: nobody is asked for files.
  Result<std::vector<std::unique_ptr<fetch::Source>>> sources(const ring::FetchRequest& request,
                                                              const fetch::ModelName* model);
  Status admit(const wire::Fingerprint& device);
  [[nodiscard]] bool is_member(const wire::Fingerprint& device) const;
  void say(const std::string& line) const {
    if (log_) log_(line);
  }

  const SharingOptions options_;
  const std::string device_;
  const std::string mark_;  ///< of folders that were fetched for this room
  const std::shared_ptr<const wire::Tls> tls_;
  const std::shared_ptr<weights::PackedStore> cache_;
  const std::function<void(const std::string&)> log_;
  const std::function<Result<Json>()> refresh_;
  const std::shared_ptr<fetch::Shelf> shelf_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::set<fetch::SourceKind> allowed_;
  Digest recent_{};   ///< the model that was last asked for
  uint8_t bits_ = 8;  ///< of weights, that the room's layers are held at
  std::vector<Member> members_;
  std::string paused_;  ///< why nothing is given, or empty
  std::optional<hub::HubAddress> hub_;
  std::string token_;
  /// What held() last said, and of what: it costs a look at each matrix in the cache.
  std::vector<std::pair<Digest, size_t>> told_of_;
  std::chrono::steady_clock::time_point told_at_{};
  Json told_;
  std::mutex refresh_mutex_;  ///< guards refreshed_ and the asking
  std::chrono::steady_clock::time_point refreshed_{};
};

}  // namespace tandem::room
