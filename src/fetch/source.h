// One place that files of a model come from over the network, by byte range: Hugging Face and what
// behaves like it, or a model server as a hub has one (docs/api.md). Patient: what may go better
// the next time is tried again, and an answer that broke off goes on where it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fetch/http.h"
#include "fetch/url.h"

namespace tandem::fetch {

/// Kinds of sources that a policy names; the order is that in which they are asked for bytes.
enum class SourceKind : uint8_t { kCache, kPeer, kHub, kHost, kHuggingFace };
inline constexpr uint8_t kSourceKinds = 5;
/// "cache", "peer", "hub", "host", "huggingface".
std::string_view name(SourceKind kind);
/// "cache,hub,…", at least one. Error: kInvalid, which names the wrong one.
Result<std::set<SourceKind>> parse_sources(std::string_view text);
/// All of them.
std::set<SourceKind> all_sources();

/// Chunks that hashes are known of and that bytes come in, cut at multiples of this.
inline constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
/// The SHA-256 of each chunk, as a model server answers to "?chunks=1", of a file of `size` bytes.
/// Error: kInvalid.
Result<std::vector<Digest>> parse_chunks(std::string_view json, uint64_t size);

/// What a source says of a file.
struct RemoteFile {
  uint64_t size = 0;
  std::string tag;               ///< changes with the content; empty if it says none
  std::optional<Digest> sha256;  ///< of the whole file
  std::string commit;            ///< of the model, or empty
};

struct SourceOptions {
  SourceKind kind = SourceKind::kHuggingFace;
  std::string base;         ///< Hugging Face style: the endpoint; a model server: its origin
  Credentials credentials;  ///< for the base's origin only
  ModelName model;          ///< a model server knows it by its name alone
  HttpOptions http;
  int tries = 6;                                         ///< without a byte in between
  std::chrono::milliseconds first_pause{500};            ///< doubles with each try, up to 30 s
  std::chrono::milliseconds longest_pause{300000};       ///< that a server may ask for
  std::function<void(const std::string& line)> waiting;  ///< told why nothing moves; may be empty
};

/// Where tensors lie in files: offset, and length and name of the tensor that begins there.
struct TensorSpan {
  uint64_t length = 0;
  std::string name;
};
using Layout = std::map<std::string, std::map<uint64_t, TensorSpan>, std::less<>>;

class Source {
 public:
  /// One that is asked over HTTP. Errors: kInvalid (the base is no URL, or the token would be sent
  /// in the clear to another machine).
  static Result<std::unique_ptr<Source>> open(SourceOptions options);
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// "huggingface.co", "hub 10.0.0.1:7443": no spaces but one, for messages.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] SourceKind kind() const { return kind_; }
  /// The source and its content's name, for the journal: one word.
  [[nodiscard]] const std::string& word() const { return word_; }
  /// It knows no files, but has ranges of tensors, and maybe only of some: kNotFound for one says
  /// nothing of others.
  [[nodiscard]] virtual bool by_tensor() const { return false; }
  /// Tells a source that is by_tensor() what range() asks for. It must outlive the calls.
  virtual void use(const Layout* /*layout*/) {}
  /// Bytes from the beginning of the range that range() was last asked for, with kNotFound for the
  /// tensor after them: asked for alone they are there, and don't come twice.
  [[nodiscard]] virtual uint64_t at_hand() const { return 0; }

  /// The first bytes of a file, at most `length`, and what the source says of it.
  /// Errors: kNotFound (no such file or model, or not for us), kPeer (can't be reached, refuses,
  /// asks to wait too long), kInvalid (answers nonsense), kCancelled.
  virtual Result<std::vector<std::byte>> begin(const std::string& file, uint64_t length,
                                               RemoteFile& about) = 0;
  /// Fills `out` from `offset` of a file that `about` describes, and what is not known of it yet in
  /// `about`. Errors: as above; kUnsupported: the file is another one by now.
  virtual Status range(const std::string& file, RemoteFile& about, uint64_t offset,
                       std::span<std::byte> out) = 0;
  /// Hashes of a file's chunks; waits for a server that is still at it, up to `wait`.
  /// Errors: kNotFound (it has none), kCancelled, kPeer, kInvalid.
  virtual Result<std::vector<Digest>> chunks(const std::string& file, uint64_t size,
                                             std::chrono::milliseconds wait) = 0;
  /// From now on files are taken of this commit.
  virtual void pin(const std::string& /*commit*/) {}
  [[nodiscard]] virtual uint64_t received() const = 0;

 protected:
  explicit Source(SourceKind kind) : kind_(kind) {}
  SourceKind kind_;
  std::string name_;
  std::string word_;
};

/// Fills `out` from byte `offset` of a tensor on. Errors: as Source::range().
using RangeReader =
    std::function<Status(const std::string& tensor, uint64_t offset, std::span<std::byte> out)>;
/// A source that is by_tensor(): another device of a room, a ring's host, or what lies elsewhere on
/// this machine. `name` as Source::name().
std::unique_ptr<Source> source_of_tensors(SourceKind kind, const std::string& name,
                                          RangeReader reader);

class HttpSource final : public Source {
 public:
  HttpSource(SourceOptions options, Url base);

  Result<std::vector<std::byte>> begin(const std::string& file, uint64_t length,
                                       RemoteFile& about) override;
  Status range(const std::string& file, RemoteFile& about, uint64_t offset,
               std::span<std::byte> out) override;
  Result<std::vector<Digest>> chunks(const std::string& file, uint64_t size,
                                     std::chrono::milliseconds wait) override;
  void pin(const std::string& commit) override { commit_ = commit; }
  [[nodiscard]] uint64_t received() const override { return http_.received(); }

 private:
  /// Why a request failed and what to do about it.
  struct Failure {
    Error error;
    bool again = false;                              ///< it may go better later
    std::optional<std::chrono::milliseconds> pause;  ///< that the server asked for
  };
  struct Progress {
    uint64_t offset = 0;
    std::span<std::byte> out;
    uint64_t got = 0;
    RemoteFile about;
    bool any = false;      ///< `about` is known
    bool endless = false;  ///< a whole file whose size shows at its end
  };

  [[nodiscard]] Result<Url> url_of(const std::string& file) const;
  std::optional<Failure> attempt(const std::string& file, Progress& progress);
  Status check_answer(const std::string& file, const Answer& answer, Progress& progress);
  Failure refused(const std::string& file, const Answer& answer) const;
  Status patient(const std::string& file, Progress& progress);
  Status wait(std::chrono::milliseconds pause, const std::string& why);

  SourceOptions options_;
  Url base_;
  std::string commit_;
  Http http_;
  /// Where redirects led, so that each range costs one request.
  struct Direct {
    Url url;
    std::string etag;
  };
  std::map<std::string, Direct> direct_;
};

}  // namespace tandem::fetch
