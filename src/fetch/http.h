// GET requests over HTTP/1.1 to servers of files, with byte ranges and redirects, over connections
// that are kept. One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fetch/url.h"
#include "hub/channel.h"
#include "hub/http_client.h"

namespace tandem::fetch {

using hub::Clock;

/// What stands in a Content-Range field.
struct ContentRange {
  uint64_t first = 0;  ///< both 0 for an unsatisfied one ("bytes */SIZE")
  uint64_t end = 0;    ///< one past the last byte
  std::optional<uint64_t> size;
};
/// "bytes 0-99/1000", "bytes 0-99/*", "bytes */1000". Error: kInvalid.
Result<ContentRange> parse_content_range(std::string_view text);
/// "120" or a date (RFC 9110, 5.6.7), as milliseconds from `now`; nothing for anything else. At
/// most a day.
std::optional<std::chrono::milliseconds> parse_retry_after(
    std::string_view text, std::chrono::system_clock::time_point now);
/// An ETag without W/ and quotes; empty if it is none.
std::string plain_etag(std::string_view text);

/// Takes a body apart that comes in pieces: by Content-Length, in chunks, or to the end of the
/// connection.
class BodyReader {
 public:
  /// Error: kInvalid (lengths that contradict each other, a coding other than chunked).
  static Result<BodyReader> open(const hub::HttpAnswer& header);
  /// Takes bytes off the front of `bytes` and hands the body's on, until the body ends.
  /// Errors: kInvalid, and what `sink` returns.
  Status take(std::string_view& bytes, const std::function<Status(std::string_view)>& sink);
  /// What the end of the connection means. Error: kPeer (something is missing).
  Status connection_ended();
  [[nodiscard]] bool done() const { return state_ == State::kDone; }
  /// What Content-Length says.
  [[nodiscard]] std::optional<uint64_t> length() const { return length_; }
  /// The connection can be used again after the body.
  [[nodiscard]] bool bounded() const { return length_.has_value() || chunked_; }

 private:
  enum class State : uint8_t { kBytes, kSize, kEndOfChunk, kTrailer, kDone };
  std::optional<uint64_t> length_;
  bool chunked_ = false;
  State state_ = State::kBytes;
  uint64_t left_ = 0;  ///< of the body or of the present chunk
  std::string line_;   ///< the unfinished one
};

struct HttpOptions {
  std::chrono::milliseconds connect{15000};
  std::chrono::milliseconds silence{30000};   ///< without a byte
  std::chrono::milliseconds longest{600000};  ///< of one request, however it drips
  const std::atomic<bool>* cancel = nullptr;
};

/// A server's answer without its body.
struct Answer {
  int status = 0;
  Url url;                 ///< that answered in the end
  hub::HttpAnswer header;  ///< its header
  hub::HttpAnswer first;   ///< the header of the first redirect; status 0 if there was none
  std::string refusal;     ///< the body of a status of 400 or more: text for people, cut
  [[nodiscard]] bool redirected() const { return first.status != 0; }
};

/// Who a request speaks for, bound to one origin: neither token nor fingerprint are used elsewhere.
struct Credentials {
  std::string token;        ///< bearer token, or empty
  std::string fingerprint;  ///< of the only certificate that is taken, or empty
};

class Http {
 public:
  explicit Http(HttpOptions options) : options_(options) {}

  /// Sends a GET, follows up to 5 redirects, and hands the body of a status of 200 to 299 to
  /// `sink`, after `begin` has seen the answer; an error of either ends the request and is
  /// returned. `fields` go along to every server, `credentials` only to the URL's own origin.
  /// Errors: kPeer (no connection, none any more, silence), kInvalid (no HTTP, or not what its
  /// header says), kNotFound (unknown host), kCancelled.
  Result<Answer> get(const Url& url, const std::vector<std::pair<std::string, std::string>>& fields,
                     const Credentials& credentials,
                     const std::function<Status(const Answer&)>& begin,
                     const std::function<Status(std::string_view)>& sink);
  [[nodiscard]] const HttpOptions& options() const { return options_; }
  /// Bytes of all bodies of status 200 to 299.
  [[nodiscard]] uint64_t received() const { return received_; }

 private:
  struct Kept {
    hub::Channel channel;
    Clock::time_point used;
  };
  Result<hub::Channel> connect(const Url& url, const Credentials& credentials);
  /// One request to one server. `fresh`: over a connection of its own. `stale`: a kept connection
  /// was used, and no byte came over it.
  Result<Answer> exchange(const Url& url, const std::string& request,
                          const Credentials& credentials, bool fresh, bool& stale,
                          const std::function<Status(const Answer&)>& begin,
                          const std::function<Status(std::string_view)>& sink);

  HttpOptions options_;
  std::map<std::string, Kept> kept_;  ///< by origin and fingerprint
  uint64_t received_ = 0;
};

}  // namespace tandem::fetch
