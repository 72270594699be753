// Tensors that were fetched without a model's files around them, and what of them is on this
// machine's disk.
//
// A folder of the cache of models, "by-hash/HASH-tensors[-SLOT]" with the model's hash, holds
//
//   stage.manifest   the manifest in its canonical form: its SHA-256 is HASH
//   stage.config     config.json, whose SHA-256 the manifest names
//   stage.tensors    each tensor of the manifest in its order, from the next multiple of 64 bytes
//                    on; a hole where it is not here
//
// and a journal (weights/journal.h). Devices that share a machine have a SLOT each, since one
// process at a time writes to a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fetch/folder.h"
#include "weights/manifest.h"

namespace tandem::fetch {

inline constexpr const char* kStageManifest = "stage.manifest";
inline constexpr const char* kStageConfig = "stage.config";
inline constexpr const char* kStageTensors = "stage.tensors";

/// Where a tensor lies in a folder.
struct Spot {
  std::string file;
  uint64_t offset = 0;
  uint64_t length = 0;
};
using Spots = std::map<std::string, Spot, std::less<>>;

/// Of all tensors in stage.tensors; `size` is that of the file. Error: kUnsupported (too large).
Result<Spots> stage_spots(const weights::Manifest& manifest, uint64_t& size);
/// The folder's name below the cache of models. `slot`: letters and digits, or empty.
std::filesystem::path stage_folder(const Digest& model_hash, const std::string& slot);

/// A model of which something is here.
struct Shelved {
  Digest model_hash{};
  std::string config_json;
  std::shared_ptr<const weights::Manifest> manifest;
  std::set<std::string> tensors;  ///< that are here as a whole
};

/// What a cache of models has of such folders, and of folders of files that a stage was loaded
/// from. Thread-safe; several processes may write meanwhile. Whoever reads through it holds the
/// folder's shared lock while it does, so that nothing is removed under it.
class Shelf {
 public:
  explicit Shelf(Store store) : store_(std::move(store)) {}
  [[nodiscard]] const Store& store() const { return store_; }

  /// A folder of a pulled model's files whose tensors are this model's, until the process ends.
  void put(const Digest& model_hash, const std::filesystem::path& folder, Spots spots);
  /// Fills `out` from byte `offset` of a tensor that is here as a whole. The bytes are not checked.
  /// `mark`: only from folders with a file of that name, which says for whom they were fetched;
  /// empty: from any. Errors: kNotFound, kInvalid (a range beyond the tensor), kIo.
  Status read(const Digest& model_hash, const std::string& tensor, uint64_t offset,
              std::span<std::byte> out, const std::string& mark = "");
  /// Of all models in folders of tensors with that mark.
  std::vector<Shelved> list(const std::string& mark = "");

 private:
  struct Entry {
    Digest model_hash{};
    std::filesystem::path folder;
    std::shared_ptr<const weights::Manifest> manifest;  ///< null: a folder of files
    Spots spots;
    std::string config_json;
    std::pair<uint64_t, uint64_t> read;  ///< inode and size of what `journal` was read from
    std::shared_ptr<const weights::Journal> journal;
  };
  /// Finds folders that came meanwhile.
  void look(const std::optional<Digest>& model_hash);
  void add(const Digest& model_hash, const std::filesystem::path& folder);
  /// Reads the journal again if it has changed; false if the folder is gone.
  static bool refresh(Entry& entry);

  const Store store_;
  std::mutex mutex_;  ///< guards what follows
  std::map<std::filesystem::path, Entry> entries_;
};

}  // namespace tandem::fetch
