// A model's files: a folder as transformers writes it (config.json, and either model.safetensors or
// model.safetensors.index.json with its shards), whose weights may be quantized (quantized.h), or
// a GGUF file (gguf_model.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/gguf.h"
#include "weights/journal.h"
#include "weights/quantized.h"
#include "weights/safetensors.h"
#include "weights/source.h"
#include "weights/stored_weight.h"

namespace tandem::weights {

inline constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
inline constexpr uint64_t kMaxIndexBytes = uint64_t{32} << 20;

/// An open checkpoint. Its files are mapped: opening reads headers only, reading a tensor reads
/// that tensor's pages, and dropping a TensorData gives them back. All members may be called
/// concurrently.
class Checkpoint final : public TensorSource {
 public:
  /// Opens a folder or a GGUF file (of a split one the first part). As in transformers,
  /// model.safetensors goes before an index; a folder without config.json but with a single GGUF
  /// model in it stands for that.
  ///
  /// With an index: shard names must be plain file names, every shard must exist, and every tensor
  /// of the index must be in the shard that it names. A tensor that a shard holds but the index
  /// does not name is no part of the model (transformers does not use it either); unlisted()
  /// counts them.
  ///
  /// A folder with a journal of its own (journal.h) may hold some of the tensors only: all of them
  /// are listed, and reading one that is not here is an error.
  ///
  /// Errors: kNotFound (no such folder, config.json or weights), kInvalid, kUnsupported, kIo; each
  /// names the file.
  static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& folder);

  /// The folder, absolute and without symbolic links, or the absolute path of the GGUF file.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The text of config.json, at most 1 MiB, not parsed; without quantization_config if the weights
  /// are converted, and made from the metadata of a GGUF file.
  [[nodiscard]] const std::string& config_json() const { return config_json_; }
  /// The metadata of a GGUF file, or null.
  [[nodiscard]] const GgufHeader* gguf() const { return gguf_.get(); }
  /// What a tensor is made from, or null.
  [[nodiscard]] const StoredWeight* stored(std::string_view tensor) const;
  /// Every tensor that can be a weight, ordered by name.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Tensors in the shards that the index does not name.
  [[nodiscard]] uint64_t unlisted() const { return unlisted_; }
  /// Bytes of all tensors() together.
  [[nodiscard]] uint64_t bytes() const;

  /// Null also for a tensor that is there but can't be a weight (an integer buffer, say); read()
  /// tells the two apart.
  [[nodiscard]] const TensorInfo* find(std::string_view tensor) const override;
  /// Errors: kNotFound, kUnsupported, kInvalid (a file changed since it was opened); each names the
  /// file and the tensor. The bytes are borrowed from the mapping, without any alignment.
  [[nodiscard]] Result<TensorData> read(std::string_view tensor) override;

  /// The place, unless a file was written to so shortly before it was opened that another write
  /// could leave the same times; the content once it was told.
  [[nodiscard]] TensorIdentity identity(std::string_view tensor) const override;
  /// Tells the SHA-256 of a tensor's bytes, as a manifest has it. Not concurrently with others.
  void tell_content(std::string_view tensor, const Digest& sha256);

  /// Whether the tensor's bytes are here, all of them. Error: kNotFound, which says how to get
  /// them.
  [[nodiscard]] Status check_here(const StoredWeight& weight) const;
  /// The journal of a pulled model, or null.
  [[nodiscard]] const Journal* journal() const {
    return lock_ == nullptr ? nullptr : &lock_->journal();
  }
  /// Some bytes of the model are not here.
  [[nodiscard]] bool partial() const { return partial_; }

  /// The files of the weights, ordered by name.
  [[nodiscard]] const std::vector<std::shared_ptr<const MappedFile>>& files() const {
    return files_;
  }

 private:
  Checkpoint() = default;
  [[nodiscard]] Status open_folder();
  [[nodiscard]] Status open_journal();
  [[nodiscard]] Result<std::unique_ptr<SafetensorsFile>> open_file(const std::string& name) const;
  [[nodiscard]] Status open_gguf_file(const std::filesystem::path& path);
  [[nodiscard]] Status open_single(StoredTensors& found);
  [[nodiscard]] Status open_index(StoredTensors& found);
  [[nodiscard]] Status list_stored(const StoredTensors& found);
  [[nodiscard]] Status list_tensors();

  std::filesystem::path folder_;
  std::string config_json_;
  std::unique_ptr<GgufHeader> gguf_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::map<std::string, StoredWeight, std::less<>> weights_;
  std::map<std::string, Error, std::less<>> others_;  ///< why a tensor can't be a weight
  std::vector<TensorInfo> tensors_;
  std::map<std::string, Digest, std::less<>> contents_;
  std::unique_ptr<JournalLock> lock_;
  bool partial_ = false;
  int64_t opened_ns_ = 0;  ///< since 1970
  uint64_t unlisted_ = 0;
};

}  // namespace tandem::weights
