// A regular file mapped read-only, with what identifies its content, and the bounded reading of
// small text files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace tandem::weights {

/// What the operating system says of a file: two equal identities mean, for all that can be known
/// without reading it, equal bytes.
struct FileIdentity {
  std::string path;  ///< absolute, without symbolic links
  uint64_t size = 0;
  int64_t modified_ns = 0;  ///< mtime since 1970
  int64_t changed_ns = 0;   ///< ctime since 1970: unlike mtime it can't be set back
  uint64_t inode = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// A mapping of a whole regular file. Nothing is read before it is touched.
///
/// Threads: every member may be called concurrently.
///
/// A file that is cut short by somebody else while mapped makes access to the lost part end the
/// process (SIGBUS), as with any mapping: call check_unchanged() before each use; read_at() has no
/// such risk.
class MappedFile {
 public:
  /// Errors: kNotFound, kIo, kInvalid (a folder or a device instead of a regular file).
  /// `growing`: its size stays, but bytes that nobody reads yet are still being filled in, so its
  /// times prove nothing.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path,
                                                        bool growing = false);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// The identity at the time of opening.
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  /// Fails with kInvalid if the file's size or (unless it grows) times are not those of opening.
  [[nodiscard]] Status check_unchanged() const;
  /// Fills `bytes` from `offset`, past the mapping. Errors: kIo, kInvalid (file too short).
  [[nodiscard]] Status read_at(uint64_t offset, std::span<std::byte> bytes) const;
  /// Asks for [offset, offset + length) to be read ahead.
  void will_need(uint64_t offset, uint64_t length) const;
  /// Gives the pages that hold [offset, offset + length) back to the system. Neighbours that share
  /// the first or last page lose nothing: touching it again maps it again.
  void release(uint64_t offset, uint64_t length) const;

 private:
  MappedFile() = default;

  int descriptor_ = -1;
  bool growing_ = false;
  std::span<const std::byte> bytes_;
  FileIdentity identity_;
};

/// The whole of a regular file of at most `limit` bytes.
/// Errors: kNotFound, kIo, kInvalid (not a regular file, or larger).
Result<std::string> read_text_file(const std::filesystem::path& path, uint64_t limit);

}  // namespace tandem::weights
