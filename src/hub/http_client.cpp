#include "hub/http_client.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace tandem::hub {
namespace {

constexpr uint64_t kMaxRefusal = 65536;
constexpr auto kKept = std::chrono::seconds(60);  // the hub closes after 75 s
constexpr auto kConnectTimeout = std::chrono::seconds(10);

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string header_of(const HttpRequest& request, const HubAddress& hub) {
  std::string text = request.method;
  text.append(" ").append(request.target).append(" HTTP/1.1\r\nHost: ");
  text.append(hub.authority()).append("\r\n");
  if (!request.token.empty()) text += "Authorization: Bearer " + request.token + "\r\n";
  if (!request.body.empty()) text += "Content-Type: " + request.content_type + "\r\n";
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  }
  for (const auto& [name, value] : request.fields) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  return text + "\r\n";
}

}  // namespace

std::string HttpAnswer::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

Result<HttpAnswer> parse_answer_header(std::string_view text) {
  const Error wrong = invalid("the answer is not HTTP/1.1");
  HttpAnswer answer;
  bool first = true;
  while (!text.empty()) {
    const auto end = text.find("\r\n");
    if (end == std::string_view::npos) return wrong;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (first) {
      const bool old = line.starts_with("HTTP/1.0 ");
      if (line.size() < 12 || (!old && !line.starts_with("HTTP/1.1 "))) return wrong;
      if (old) answer.fields["connection"] = "close";
      const auto [stop, error] = std::from_chars(line.data() + 9, line.data() + 12, answer.status);
      if (error != std::errc() || stop != line.data() + 12 || answer.status < 100 ||
          (line.size() > 12 && line[12] != ' ')) {
        return wrong;
      }
      first = false;
      continue;
    }
    if (line.empty()) return text.empty() ? Result<HttpAnswer>(std::move(answer)) : wrong;
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return wrong;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    // Two lengths could be read differently by whoever stands between.
    const bool single = name == "content-length" || name == "transfer-encoding" ||
                        name == "content-range" || name == "location";
    const bool added =
        answer.fields.emplace(std::move(name), trimmed(line.substr(colon + 1))).second;
    if (!added && single) return wrong;
  }
  return wrong;
}

Result<uint64_t> body_length(const HttpAnswer& header) {
  if (header.status < 200 || header.status == 204 || header.status == 304) return uint64_t{0};
  const std::string text = header.field("content-length");
  uint64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return invalid("the answer does not say how long it is");
  }
  return length;
}

std::string escape(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string result;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos) {
      result += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    result += '%';
    result += kDigits[byte >> 4];
    result += kDigits[byte & 15];
  }
  return result;
}

Status HttpClient::connect(Clock::time_point deadline) {
  TANDEM_ASSIGN(Channel opened,
                Channel::open(hub_, ChannelOptions{.trust = trust_, .cancel = stop_},
                              std::min(deadline, Clock::now() + kConnectTimeout)));
  fingerprint_ = opened.fingerprint();
  channel_ = std::move(opened);
  return {};
}

Result<HttpAnswer> HttpClient::exchange(const HttpRequest& request, Clock::time_point deadline) {
  answered_ = false;
  TANDEM_TRY(channel_->write(header_of(request, hub_) + request.body, deadline));
  std::string held;
  std::array<char, 16384> buffer{};
  const auto more = [&]() -> Status {
    TANDEM_ASSIGN(const size_t count, channel_->read(buffer, deadline));
    if (count == 0) {
      return Error{ErrorKind::kPeer, "the hub " + hub_.authority() + " closed the connection"};
    }
    answered_ = true;
    held.append(buffer.data(), count);
    return {};
  };
  size_t end = std::string::npos;
  while ((end = held.find("\r\n\r\n")) == std::string::npos) {
    if (held.size() > kMaxAnswerHeader) return invalid("the answer's header is too long");
    TANDEM_TRY(more());
  }
  TANDEM_ASSIGN(HttpAnswer answer, parse_answer_header(std::string_view(held).substr(0, end + 4)));
  held.erase(0, end + 4);
  TANDEM_ASSIGN(const uint64_t length, body_length(answer));
  // A refusal's reason may be longer than what was asked for.
  const uint64_t limit = answer.status < 400 ? request.limit : std::max(request.limit, kMaxRefusal);
  if (length > limit) {
    return invalid("the answer has " + std::to_string(length) + " bytes; expected at most " +
                   std::to_string(limit));
  }
  if (answer.status == 101) {
    answer.body = std::move(held);
    return answer;
  }
  while (held.size() < length) TANDEM_TRY(more());
  if (held.size() != length) return invalid("more came than the answer's length");
  answer.body = std::move(held);
  return answer;
}

Result<HttpAnswer> HttpClient::send(const HttpRequest& request) {
  const auto deadline = Clock::now() + request.timeout;
  if (channel_.has_value() && Clock::now() - last_use_ > kKept) channel_.reset();
  const bool kept = channel_.has_value();
  if (!kept) TANDEM_TRY(connect(deadline));
  auto answer = exchange(request, deadline);
  if (!answer.ok() && kept && !answered_ && request.method != "POST") {
    channel_.reset();
    TANDEM_TRY(connect(deadline));
    answer = exchange(request, deadline);
  }
  last_use_ = Clock::now();
  if (!answer.ok() || answer->field("connection") == "close") channel_.reset();
  return answer;
}

Result<HttpAnswer> HttpClient::upgrade(const HttpRequest& request,
                                       std::optional<Channel>& channel) {
  const auto deadline = Clock::now() + request.timeout;
  channel_.reset();
  TANDEM_TRY(connect(deadline));
  auto answer = exchange(request, deadline);
  if (answer.ok() && answer->status == 101) channel = std::move(channel_);
  channel_.reset();
  return answer;
}

}  // namespace tandem::hub
