#include "weights/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "weights/mapped_file.h"

namespace tandem::weights {

namespace {

constexpr std::string_view kFirstLine = "tandem journal 1\n";
constexpr size_t kMaxWord = 512;
constexpr size_t kCheckDigits = 8;

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= kMaxWord &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string line_of(const std::string& fields) {
  return hex(sha256(fields)).substr(0, kCheckDigits) + " " + fields + "\n";
}

/// The words of one line, taken from its front.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}
  std::string_view word() {
    const auto end = text_.find(' ');
    const std::string_view result = text_.substr(0, end);
    text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
    ended_ = end == std::string_view::npos;
    ok_ = ok_ && is_word(result);
    return result;
  }
  uint64_t number() {
    const std::string_view text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    ok_ = ok_ && error == std::errc() && end == text.data() + text.size() && value >> 62 == 0;
    return value;
  }
  Digest digest() {
    Digest value{};
    const bool read = parse_hex(word(), value);
    ok_ = ok_ && read;
    return value;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool finished() const { return ok_ && ended_; }

 private:
  std::string_view text_;
  bool ok_ = true;
  bool ended_ = false;
};

bool add_piece(PulledFile& file, uint64_t offset, PulledPiece piece) {
  if (piece.length == 0 || offset > file.size || piece.length > file.size - offset) return false;
  const auto after = file.pieces.lower_bound(offset);
  if (after != file.pieces.end() && after->first < offset + piece.length) return false;
  if (after != file.pieces.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.length > offset) return false;
  }
  file.pieces.emplace(offset, std::move(piece));
  return true;
}

/// One line without check and LF; false if it is none.
bool apply(Journal& journal, std::string_view fields) {
  Words words(fields);
  const std::string_view kind = words.word();
  if (kind == "model") {
    const std::string_view model = words.word();
    const std::string_view revision = words.word();
    const std::string_view commit = words.word();
    if (!words.finished()) return false;
    journal.model = model;
    journal.revision = revision;
    journal.commit = commit == "-" ? std::string_view() : commit;
    return true;
  }
  if (kind == "file") {
    PulledFile file;
    file.size = words.number();
    const std::string_view hash = words.word();
    file.name = words.word();
    Digest digest{};
    if (!words.finished() || !is_plain_file_name(file.name)) return false;
    if (hash != "-" && !parse_hex(hash, digest)) return false;
    if (hash != "-") file.sha256 = digest;
    if (journal.files.size() == kMaxPulledFiles) return false;
    journal.files.push_back(std::move(file));
    return true;
  }
  const uint64_t index = words.number();
  if (!words.ok() || index >= journal.files.size()) return false;
  PulledFile& file = journal.files[index];
  if (kind == "tag") {
    const std::string_view source = words.word();
    const std::string_view tag = words.word();
    if (!words.finished()) return false;
    file.tags[std::string(source)] = tag;
    return true;
  }
  if (kind == "have") {
    const uint64_t offset = words.number();
    PulledPiece piece;
    piece.length = words.number();
    piece.sha256 = words.digest();
    piece.source = words.word();
    return words.finished() && add_piece(file, offset, std::move(piece));
  }
  if (kind == "lost") {
    const uint64_t offset = words.number();
    return words.finished() && file.pieces.erase(offset) == 1;
  }
  if (kind == "forget") {
    if (!words.finished()) return false;
    // The name stays with the entry's number, but no file is found under it.
    file = PulledFile();
    return true;
  }
  return false;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || c == '+';
         });
}

bool PulledFile::has(uint64_t offset, uint64_t length) const {
  if (length > size || offset > size - length) return false;
  const uint64_t end = offset + length;
  auto piece = pieces.upper_bound(offset);
  if (piece != pieces.begin()) --piece;
  while (offset < end && piece != pieces.end() && piece->first <= offset) {
    offset = std::max(offset, piece->first + piece->second.length);
    ++piece;
  }
  return offset >= end;
}

uint64_t PulledFile::present() const {
  uint64_t total = 0;
  for (const auto& [offset, piece] : pieces) total += piece.length;
  return total;
}

const PulledFile* Journal::find(std::string_view name) const {
  const auto found = std::find_if(files.rbegin(), files.rend(),
                                  [&](const auto& file) { return file.name == name; });
  return found == files.rend() ? nullptr : &*found;
}

bool Journal::complete() const {
  return std::all_of(files.begin(), files.end(), [](const auto& file) { return file.complete(); });
}

Result<Journal> Journal::parse(std::string_view text, uint64_t& good) {
  if (!text.starts_with(kFirstLine)) {
    // Killed while it wrote the first line: nothing was here yet.
    good = 0;
    if (kFirstLine.starts_with(text)) return Journal();
    if (text.starts_with("tandem journal ")) {
      return unsupported("a journal of another version; this program reads version 1");
    }
    return invalid("expected a journal of a pulled model, found something else");
  }
  if (text.size() > kMaxJournalBytes) {
    return unsupported("expected a journal of at most " + std::to_string(kMaxJournalBytes) +
                       " bytes, found more");
  }
  Journal journal;
  good = kFirstLine.size();
  while (good < text.size()) {
    const auto end = text.find('\n', good);
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(good, end - good);
    if (line.size() <= kCheckDigits || line[kCheckDigits] != ' ') break;
    const std::string_view fields = line.substr(kCheckDigits + 1);
    if (hex(sha256(fields)).substr(0, kCheckDigits) != line.substr(0, kCheckDigits)) break;
    if (!apply(journal, fields)) break;
    good = end + 1;
  }
  return journal;
}

std::string journal_header() {
  return std::string(kFirstLine);
}

std::string model_line(std::string_view model, std::string_view revision, std::string_view commit) {
  return line_of("model " + std::string(model) + " " + std::string(revision) + " " +
                 (commit.empty() ? "-" : std::string(commit)));
}

std::string file_line(const PulledFile& file) {
  return line_of("file " + std::to_string(file.size) + " " +
                 (file.sha256 ? hex(*file.sha256) : "-") + " " + file.name);
}

std::string tag_line(size_t file, std::string_view source, std::string_view tag) {
  return line_of("tag " + std::to_string(file) + " " + std::string(source) + " " +
                 std::string(tag));
}

std::string have_line(size_t file, uint64_t offset, const PulledPiece& piece) {
  return line_of("have " + std::to_string(file) + " " + std::to_string(offset) + " " +
                 std::to_string(piece.length) + " " + hex(piece.sha256) + " " + piece.source);
}

std::string lost_line(size_t file, uint64_t offset) {
  return line_of("lost " + std::to_string(file) + " " + std::to_string(offset));
}

std::string forget_line(size_t file) {
  return line_of("forget " + std::to_string(file));
}

std::string journal_word(std::string_view text) {
  std::string word(text.substr(0, kMaxWord));
  std::replace_if(
      word.begin(), word.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }, '?');
  return word.empty() ? "-" : word;
}

Result<std::unique_ptr<JournalLock>> JournalLock::open(const std::filesystem::path& folder) {
  const auto path = folder / kJournalName;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::unique_ptr<JournalLock>();
    return Error{ErrorKind::kIo, path.string() + ": " + std::strerror(errno)};
  }
  std::unique_ptr<JournalLock> lock(new JournalLock(descriptor, {}));
  struct stat status {};
  while (::flock(descriptor, LOCK_SH) != 0 && errno == EINTR) {
  }
  if (::fstat(descriptor, &status) != 0 || status.st_nlink == 0) {
    return Error{ErrorKind::kNotFound,
                 folder.string() + ": was removed from the cache of models just now"};
  }
  TANDEM_ASSIGN(const std::string text, read_text_file(path, kMaxJournalBytes));
  uint64_t good = 0;
  auto journal = Journal::parse(text, good);
  if (!journal.ok()) return journal.error().in(path.string());
  lock->journal_ = std::move(*journal);
  // When it was last used: the order in which models are removed. A folder that can't be written
  // to is none that anything is removed from.
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return lock;
}

JournalLock::~JournalLock() {
  ::close(descriptor_);
}

}  // namespace tandem::weights
