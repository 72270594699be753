// The folder of a pulled model while it is written: sparse files under their own names, and the
// journal that says which bytes of them are here (weights/journal.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "fetch/source.h"
#include "weights/journal.h"

namespace tandem::fetch {

/// What a folder is locked by while it is written.
inline constexpr const char* kLockName = "tandem.lock";

/// One process at a time; within it one thread at a time.
class Folder {
 public:
  /// Makes the folder if there is none, waits up to `patience` for another process that writes to
  /// it, and reads the journal; a torn last line is cut off.
  /// Errors: kIo; kInvalid, kUnsupported (the journal); kPeer (another process is at it);
  /// kCancelled.
  static Result<std::unique_ptr<Folder>> open(const std::filesystem::path& path,
                                              std::chrono::milliseconds patience,
                                              const std::atomic<bool>* cancel);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] const weights::Journal& journal() const { return journal_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const weights::PulledFile& file(size_t index) const {
    return journal_.files.at(index);
  }
  /// The number of the file of that name, or nothing.
  [[nodiscard]] std::optional<size_t> find(std::string_view name) const;

  Status set_model(const std::string& model, const std::string& revision,
                   const std::string& commit);
  /// A new file, all of it missing. Errors: kInvalid (the name), kIo.
  Result<size_t> add(const std::string& name, uint64_t size, const std::optional<Digest>& sha256);
  Status tag(size_t file, const std::string& source, const std::string& tag);
  /// Puts bytes into a file, and only then into the journal. Errors: kIo (also: no room).
  Status write(size_t file, uint64_t offset, std::span<const std::byte> bytes,
               const std::string& source);
  /// The piece that begins at `offset` is to be fetched again.
  Status lose(size_t file, uint64_t offset);
  /// The whole file is another one; find() does not give it any more.
  Status forget(size_t file);
  /// To be called once nothing more is written: what serves files may see them if all is here.
  Status settle() { return mark(!journal_.complete()); }
  Status read(size_t file, uint64_t offset, std::span<std::byte> out);
  /// SHA-256 of a range that is here.
  Result<Digest> hash(size_t file, uint64_t offset, uint64_t length);

 private:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}
  /// False: the folder was removed meanwhile and has to be made again. Errors: as open().
  Result<bool> lock(Clock::time_point until, const std::atomic<bool>* cancel);
  Status open_journal();
  /// Has the names of files in the folder reach the disk.
  Status sync_names() const;
  Status append(const std::string& line);
  /// Says beside the files whether all of them is here.
  Status mark(bool partial);
  Result<int> descriptor(size_t file);

  std::filesystem::path path_;
  int lock_ = -1;
  int log_ = -1;
  uint64_t log_size_ = 0;
  bool partial_ = false;  ///< the mark is there
  weights::Journal journal_;
  std::vector<int> files_;  ///< descriptors, -1 while not open
};

/// A model in the cache of models.
struct StoredModel {
  std::filesystem::path path;
  weights::Journal journal;
  uint64_t bytes = 0;  ///< that it takes on the disk
  std::filesystem::file_time_type used;
};

/// The cache of models: a folder of folders, ORG/NAME or NAME, "@REV" behind for another revision
/// than main.
class Store {
 public:
  explicit Store(std::filesystem::path root) : root_(std::move(root)) {}
  /// models in cache_folder() (weights/packed_cache.h); an empty path if that is off.
  static std::filesystem::path usual_root();
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

  [[nodiscard]] std::filesystem::path path_of(const ModelName& model) const;
  /// The folder of that model, if there is one.
  [[nodiscard]] std::optional<std::filesystem::path> find(const ModelName& model) const;
  /// All models, in order of their paths; those whose journal can't be read are left out.
  [[nodiscard]] std::vector<StoredModel> list() const;
  /// Removes the models that were used longest ago, but none that somebody reads or writes and not
  /// `own`, until `bytes` more fit below `limit` and onto the disk. `removed` is told of each.
  /// Errors: kMemory (says what is missing), kIo.
  Status make_room(uint64_t bytes, uint64_t limit, const std::filesystem::path& own,
                   const std::function<void(const StoredModel&)>& removed) const;
  /// Removes a model. False if somebody uses it.
  [[nodiscard]] bool remove(const StoredModel& model) const;

 private:
  std::filesystem::path root_;
};

}  // namespace tandem::fetch
