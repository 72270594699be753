// Requests and responses of HTTP/1.1 as the hub's handlers see them, and their bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem::hub {

inline constexpr uint64_t kMaxHeaderBytes = 16384;
inline constexpr uint64_t kMaxBodyBytes = 1 << 20;
inline constexpr uint64_t kMaxFileBytes = 4 << 20;  ///< bodies of files for jobs

struct Request {
  std::string method;
  std::vector<std::string> path;             ///< decoded segments: /v1/rooms/ABC is v1, rooms, ABC
  std::map<std::string, std::string> query;  ///< decoded; the last one of a name counts
  std::string host;                          ///< header fields; empty if missing
  std::string authorization;
  std::string range;
  std::string if_none_match;
  std::string upgrade;
  std::string body;
  std::string address;  ///< numeric address of the other end
  bool keep_alive = true;
};

/// Decodes "/v1/rooms/ABC?wait=5" into path and query. Errors: kInvalid (a bad escape, control
/// characters, no UTF-8, more than 32 segments or parameters).
Status parse_target(std::string_view target, Request& request);
/// The number of a query's parameter, `otherwise` if it is missing or no number; at most `most`.
int64_t query_number(const Request& request, const std::string& name, int64_t otherwise,
                     int64_t most);

/// Part of a file that is sent as a body.
struct FilePart {
  std::shared_ptr<const int> descriptor;
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::optional<FilePart> file;                             ///< instead of `body`
  std::vector<std::pair<std::string, std::string>> fields;  ///< further header fields
  /// Subjects whose change makes the same request worth asking again: a status of 204 then waits as
  /// long as the request's parameter `wait` says.
  std::vector<std::string> subjects;
  bool close = false;  ///< the connection ends after it
  /// Who asked, for limits; empty if nobody known.
  std::string caller;
};

/// "HTTP/1.1 200 OK…" up to and including the empty line.
std::string header_of(const Response& response, bool keep_alive);

/// {"error": {"kind": …, "message": …}}.
Response refusal(int status, std::string_view kind, std::string_view message);
/// 429 with Retry-After.
Response too_many(std::string_view message, int64_t seconds);

/// A range of a request's field for a file of `size` bytes: offset and length. Nothing: all of it
/// (no such field, another unit, several ranges). Error: kInvalid (416).
Result<std::optional<std::pair<uint64_t, uint64_t>>> parse_range(std::string_view field,
                                                                 uint64_t size);

/// Reads requests off a stream of bytes.
class RequestReader {
 public:
  enum class State { kMore, kHeader, kDone, kBad };

  RequestReader();
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes bytes of one request; `used` says how many. kHeader once when the header is complete
  /// (the rest is fed again), kDone when all is. After kBad, status() says why.
  State feed(std::string_view bytes, size_t& used);
  /// Header fields, path and query; from kHeader on.
  [[nodiscard]] const Request& request() const { return request_; }
  /// With kHeader: how long the body may be. False, and status() set, if it announces more, or does
  /// not say its length (Transfer-Encoding, with which whoever stands between may count otherwise).
  bool limit_body(uint64_t bytes);
  /// With kHeader: bytes of the body.
  [[nodiscard]] uint64_t body_bytes() const;
  /// The request with its body; after kDone, once.
  Request take();
  [[nodiscard]] bool expects_continue() const;
  [[nodiscard]] int status() const { return status_; }
  /// True if nothing of a request was read yet.
  [[nodiscard]] bool untouched() const { return untouched_; }

 private:
  struct Parser;
  State bad(int status);
  std::unique_ptr<Parser> parser_;
  Request request_;
  int status_ = 400;
  bool untouched_ = true;
  bool header_seen_ = false;
};

}  // namespace tandem::hub
