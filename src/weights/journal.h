// tandem.journal beside a pulled model's files: which bytes of them are here, and from where. Only
// ever appended to, one whole line at a time, so that a process that is killed leaves at most a
// torn last line; a line counts once the bytes that it tells of are in their file.
//
//   journal = "tandem journal 1" LF line*
//   line    = check SP fields LF                 check: the first 8 digits of the fields' SHA-256
//   fields  = "model" SP NAME SP REVISION SP (COMMIT | "-")     the last such line holds
//           | "file" SP SIZE SP (SHA256 | "-") SP NAME          files count from 0 in this order
//           | "tag" SP FILE SP SOURCE SP TAG                    what a source calls this content
//           | "have" SP FILE SP OFFSET SP LENGTH SP SHA256 SP SOURCE
//           | "lost" SP FILE SP OFFSET                          that piece is not here any more
//           | "forget" SP FILE                                  the file has another content by now
//
// Numbers are decimal; words are 1 to 512 printable ASCII characters without spaces; a file's NAME
// is a plain one (is_plain_file_name). Pieces of a file never overlap.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace tandem::weights {

inline constexpr const char* kJournalName = "tandem.journal";
/// A file that is there as long as some bytes of the folder's files are not: for who serves files
/// and does not read journals.
inline constexpr const char* kPartialName = "tandem.partial";
inline constexpr uint64_t kMaxJournalBytes = uint64_t{256} << 20;
inline constexpr size_t kMaxPulledFiles = 8192;

/// 1 to 255 bytes of letters, digits and "._-+", not beginning with a dot: what a file of a pulled
/// model may be called.
bool is_plain_file_name(std::string_view name);

/// Bytes that came in one go.
struct PulledPiece {
  uint64_t length = 0;
  Digest sha256{};
  std::string source;
};

struct PulledFile {
  std::string name;
  uint64_t size = 0;
  std::optional<Digest> sha256;             ///< of the whole, if a source said so
  std::map<std::string, std::string> tags;  ///< by source
  std::map<uint64_t, PulledPiece> pieces;   ///< by offset

  /// Whether all of [offset, offset + length) is here.
  [[nodiscard]] bool has(uint64_t offset, uint64_t length) const;
  /// Bytes that are here.
  [[nodiscard]] uint64_t present() const;
  [[nodiscard]] bool complete() const { return has(0, size); }
};

struct Journal {
  std::string model;     ///< "ORG/NAME" or "NAME"
  std::string revision;  ///< as it was asked for
  std::string commit;    ///< that it stood for, or empty
  std::vector<PulledFile> files;

  [[nodiscard]] const PulledFile* find(std::string_view name) const;
  [[nodiscard]] bool complete() const;

  /// Reads a journal. Ends without an error at the first line that is torn or damaged, since what
  /// follows may depend on it; `good` is where that line begins. Errors: kInvalid (not a journal
  /// at all), kUnsupported (another version, or beyond the limits).
  static Result<Journal> parse(std::string_view text, uint64_t& good);
};

/// The lines, check and LF included.
std::string journal_header();
std::string model_line(std::string_view model, std::string_view revision, std::string_view commit);
std::string file_line(const PulledFile& file);
std::string tag_line(size_t file, std::string_view source, std::string_view tag);
std::string have_line(size_t file, uint64_t offset, const PulledPiece& piece);
std::string lost_line(size_t file, uint64_t offset);
std::string forget_line(size_t file);
/// `text` as a word of the journal: what is not printable becomes "?", at most 512 characters.
std::string journal_word(std::string_view text);

/// A pulled model's journal as somebody who reads the model holds it: while the object lives nobody
/// removes the folder (a shared lock on the journal), and the model counts as used just now.
class JournalLock {
 public:
  /// Nothing if the folder has no journal. Errors: kIo, kInvalid; kNotFound: it was being removed.
  static Result<std::unique_ptr<JournalLock>> open(const std::filesystem::path& folder);
  ~JournalLock();
  JournalLock(const JournalLock&) = delete;
  JournalLock& operator=(const JournalLock&) = delete;
  [[nodiscard]] const Journal& journal() const { return journal_; }

 private:
  JournalLock(int descriptor, Journal journal)
      : descriptor_(descriptor), journal_(std::move(journal)) {}
  int descriptor_;
  Journal journal_;
};

}  // namespace tandem::weights
