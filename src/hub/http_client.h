// Requests of HTTP/1.1 to one hub over one connection that is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/channel.h"

namespace tandem::hub {

struct HttpRequest {
  std::string method = "GET";
  std::string target;  ///< path and query, escaped
  std::string token;   ///< bearer token, or empty
  std::string body;
  std::string content_type = "application/json";
  std::map<std::string, std::string> fields;
  std::chrono::milliseconds timeout{30000};
  uint64_t limit = 16 << 20;  ///< most bytes of an answer's body
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> fields;  ///< names in lower case
  std::string body;

  /// A field's value, or nothing.
  [[nodiscard]] std::string field(const std::string& name) const;
};

/// Status and fields of a response's header: `text` up to and with its empty line. Of a field that
/// stands twice the first counts, but for those that say where a body ends or lies, of which there
/// may be only one. HTTP/1.0 counts as "Connection: close". Error: kInvalid.
Result<HttpAnswer> parse_answer_header(std::string_view text);
/// The length that a header announces for the body: 0 for statuses without one. Error: kInvalid
/// (none, or no number).
Result<uint64_t> body_length(const HttpAnswer& header);
/// Escapes a path segment or a query's value.
std::string escape(std::string_view text);

/// Longest header of an answer that is read.
inline constexpr size_t kMaxAnswerHeader = 32768;

class HttpClient {
 public:
  HttpClient(HubAddress hub, Trust trust) : hub_(std::move(hub)), trust_(trust) {}

  /// Errors: kPeer (no connection, no answer in time), kInvalid (the answer is no HTTP or too
  /// long). A status of 400 and more is no error here. A request that may be repeated (GET, PUT,
  /// DELETE) is, once, if the kept connection turns out to be closed.
  Result<HttpAnswer> send(const HttpRequest& request);
  /// Sends a request for an upgrade; with status 101 the connection belongs to the caller, and
  /// `body` holds bytes that came behind the header.
  Result<HttpAnswer> upgrade(const HttpRequest& request, std::optional<Channel>& channel);
  /// Once `stop` is set, requests end with kCancelled. It must outlive the client.
  void stop_on(const std::atomic<bool>* stop) {
    stop_ = stop;
    channel_.reset();
  }
  /// Of the hub's certificate; empty before the first request.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }
  [[nodiscard]] const HubAddress& hub() const { return hub_; }
  [[nodiscard]] Trust trust() const { return trust_; }

 private:
  Status connect(Clock::time_point deadline);
  Result<HttpAnswer> exchange(const HttpRequest& request, Clock::time_point deadline);

  HubAddress hub_;
  Trust trust_;
  std::optional<Channel> channel_;
  Clock::time_point last_use_;
  std::string fingerprint_;
  const std::atomic<bool>* stop_ = nullptr;
  bool answered_ = false;  ///< a byte of the present answer has come
};

}  // namespace tandem::hub
