// Getting a model's bytes into a folder, from several sources, checked, resumable.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "fetch/folder.h"
#include "fetch/shelf.h"
#include "fetch/source.h"
#include "model/config.h"
#include "weights/manifest.h"
#include "weights/safetensors.h"

namespace tandem::fetch {

/// Bytes [offset, offset + length) of a file.
struct Range {
  std::string file;
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// Where a tensor lies.
struct Place {
  std::string file;
  weights::StoredTensor tensor;
};

struct PullOptions {
  ModelName model;
  std::filesystem::path folder;
  std::string commit;  ///< that and no later one is wanted; or empty
  /// In the order in which they are asked for bytes. What the model is (names, sizes, lists of
  /// tensors, hashes) is taken from the last that knows it: order them by trust, least first.
  std::vector<Source*> sources;
  std::chrono::milliseconds patience{2000};  ///< for another process that writes to the folder
  std::chrono::milliseconds hashes{30000};   ///< for a model server that is still hashing
  const std::atomic<bool>* cancel = nullptr;
  /// Bytes of the present step, of all of them; may be empty.
  std::function<void(std::string_view step, uint64_t done, uint64_t total)> progress;
  /// What went wrong and was mended, a line each; may be empty.
  std::function<void(const std::string& line)> notice;
};

/// One thread at a time.
class Pull {
 public:
  /// Opens the folder. Errors: as Folder::open.
  static Result<std::unique_ptr<Pull>> open(PullOptions options);

  /// Finds out what the model is, of headers alone: config.json, the index, the lists of tensors.
  /// What the folder has is not asked for again, but whether the revision has moved on is; if no
  /// source can be reached, what is here has to do. Errors: those of Source; kInvalid,
  /// kUnsupported (what the files say), kIo.
  Status describe();

  /// Instead of describe(), for a folder of tensors alone (shelf.h): what the model is, is known,
  /// and no source is asked. Errors: kIo, kUnsupported.
  Status describe_tensors(const weights::Manifest& manifest, const std::string& config_json);
  /// After describe(): the tensors that the manifest names have its hashes from now on, as far as
  /// the files hold them in the same type and shape.
  void trust(weights::Manifest manifest);

  /// After describe(): config.json's text; empty for a single file.
  [[nodiscard]] const std::string& config_json() const { return config_json_; }
  [[nodiscard]] const std::map<std::string, Place, std::less<>>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] const Folder& folder() const { return *folder_; }
  /// All bytes of the files of weights.
  [[nodiscard]] std::vector<Range> whole() const;
  /// The tensors of layers [first, last), and those of embedding and head.
  /// Error kUnsupported: the config is of no model that Tandem knows.
  [[nodiscard]] Result<std::vector<Range>> layers(uint32_t first, uint32_t last) const;
  [[nodiscard]] Result<std::vector<Range>> ends() const;
  /// The model's config as far as layers need it. Error: kInvalid, kUnsupported.
  [[nodiscard]] Result<model::ModelConfig> config() const;
  /// Bytes of `wanted` that are not here. Ranges may overlap.
  [[nodiscard]] uint64_t missing(const std::vector<Range>& wanted) const;

  /// Files that whoever tokenizes needs, as far as the model has them. Errors: as fetch().
  Status fetch_text_files();
  /// Checks all bytes of `wanted` that are here against the hashes they came with, and forgets
  /// those that are damaged. Errors: kIo, kCancelled.
  Status check_cached(const std::vector<Range>& wanted);
  /// Fetches what is missing of `wanted`; checks chunks, tensors and files as far as their hashes
  /// are known, and has wrong bytes come from elsewhere. Errors: kPeer, kNotFound (no source gives
  /// a part: says why for each), kInvalid (no source gives the right bytes), kIo, kCancelled.
  Status fetch(std::vector<Range> wanted);
  /// Where a tensor of trust() or describe_tensors() lies; null if the files hold none, or another.
  [[nodiscard]] const Spot* spot(std::string_view tensor) const;
  [[nodiscard]] const Spots& spots() const { return spots_; }
  /// Whether those of the tensors that are here as a whole have the manifest's hashes; of a
  /// damaged one what changed is dropped first. Errors: kIo, kCancelled.
  Result<bool> agrees(const std::vector<std::string>& tensors);
  /// fetch() for one tensor that has a spot: it has the manifest's hash after that.
  Status fetch_tensor(const std::string& tensor);

  struct Figures {
    std::map<std::string, uint64_t> fetched;  ///< bytes kept, by source
    uint64_t wrong = 0;                       ///< pieces that were not what they should be
    uint64_t damaged = 0;                     ///< bytes here that had changed
  };
  [[nodiscard]] const Figures& figures() const { return figures_; }

 private:
  explicit Pull(PullOptions options) : options_(std::move(options)) {}

  // describe.cpp
  Status contact();
  Status revalidate(Source& source);
  Result<bool> fetch_small(const std::string& file, uint64_t limit, bool required);
  Status describe_folder();
  Status describe_file(const std::string& file);
  Status read_list(const std::string& file);
  /// A file that the folder does not know yet, with its first bytes.
  Result<size_t> begin_file(const std::string& file, const RemoteFile& about,
                            std::span<const std::byte> bytes, Source& source);
  /// The number of a file, which is made known if it is not.
  Result<size_t> know(const std::string& file, uint64_t first_bytes);
  Result<std::string> text_of(size_t file);
  /// A file of which all is known.
  Status keep_text(const char* file, std::string_view text);

  // pull.cpp
  struct Piece {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  [[nodiscard]] std::vector<Piece> missing_pieces(size_t file, uint64_t offset,
                                                  uint64_t length) const;
  /// Shortens the piece if a source has the beginning of it and not what follows.
  Status fetch_piece(size_t file, Piece& piece);
  Status from_source(size_t file, const Piece& piece, Source& source);
  Status fetch_range(size_t file, uint64_t offset, uint64_t length);
  Status check_chunks(size_t file, const Piece& piece);
  Status check_tensors(size_t file, uint64_t offset, uint64_t length);
  Status check_file(size_t file);
  /// Has a range whose hash is wrong come from one source at a time until it is right.
  Status mend(size_t file, uint64_t offset, uint64_t length, const Digest& expected,
              const std::string& what);
  /// Fetches a range that was dropped, and checks its tensors anew.
  Status fetch_again(size_t file, uint64_t offset, uint64_t length);
  /// Hashes the pieces within a range that are here, and forgets those that have changed.
  Status check_pieces(size_t file, uint64_t offset, uint64_t length);
  /// The source's own view of a file.
  RemoteFile& remote(size_t file, const Source& source);
  void find_chunks(size_t file);
  void accuse(const std::string& source, const std::string& what);
  void notice(const std::string& line) const;
  [[nodiscard]] bool cancelled() const { return options_.cancel != nullptr && *options_.cancel; }

  PullOptions options_;
  std::unique_ptr<Folder> folder_;
  std::string config_json_;
  std::map<std::string, Place, std::less<>> tensors_;
  std::vector<std::string> weight_files_;
  std::optional<weights::Manifest> manifest_;
  Spots spots_;    ///< of manifest_'s tensors
  Layout layout_;  ///< the same by place
  Figures figures_;
  std::set<std::string> absent_;  ///< files that no source has
  /// Of files whose chunks' hashes were asked for; empty if nobody knows them.
  std::map<size_t, std::vector<Digest>> chunks_;
  std::map<std::pair<size_t, const Source*>, RemoteFile> remote_;
  std::map<std::pair<size_t, const Source*>, Error> failed_;  ///< not asked for that file again
  std::map<const Source*, Error> lost_;                       ///< not asked again at all
  std::map<std::string, int> strikes_;                        ///< wrong pieces, by source
  std::set<std::string> checked_;                             ///< tensors that were found right
  uint64_t done_ = 0;                                         ///< for progress
  uint64_t total_ = 0;
};

}  // namespace tandem::fetch
