#include "hub/server/http.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace tandem::hub {
namespace {

constexpr size_t kMaxSegments = 32;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// UTF-8 without control characters: what the store and the log take as text.
bool is_text(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 32 || first == 127) return false;
    const size_t more = first < 128    ? 0
                        : first < 0xC2 ? 4
                        : first < 0xE0 ? 1
                        : first < 0xF0 ? 2
                        : first < 0xF5 ? 3
                                       : 4;
    if (more > 3 || more >= text.size() - i) return false;
    for (size_t k = 1; k <= more; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    }
    const auto second = more == 0 ? 0U : static_cast<unsigned char>(text[i + 1]);
    // Longer than needed, surrogates, beyond the last code point.
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

bool decode(std::string_view text, std::string& result) {
  result.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return is_text(result);
}

std::string_view reason(int status) {
  switch (status) {
    case 101:
      return "Switching Protocols";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 416:
      return "Range Not Satisfiable";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

bool parse_number(std::string_view text, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Status parse_target(std::string_view target, Request& request) {
  request.path.clear();
  request.query.clear();
  if (target.empty() || target[0] != '/') return invalid("the target has to begin with '/'");
  const auto mark = target.find('?');
  std::string_view path = target.substr(1, mark == std::string_view::npos ? mark : mark - 1);
  while (!path.empty()) {
    const auto slash = std::min(path.find('/'), path.size());
    std::string segment;
    if (!decode(path.substr(0, slash), segment)) return invalid("the path has a bad escape");
    request.path.push_back(std::move(segment));
    path.remove_prefix(std::min(slash + 1, path.size()));
    if (request.path.size() > kMaxSegments) return invalid("the path has too many segments");
  }
  if (mark == std::string_view::npos) return {};
  std::string_view query = target.substr(mark + 1);
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const auto equals = std::min(pair.find('='), pair.size());
    std::string name;
    std::string value;
    if (!decode(pair.substr(0, equals), name) ||
        !decode(pair.substr(std::min(equals + 1, pair.size())), value)) {
      return invalid("the query has a bad escape");
    }
    request.query[name] = value;
    if (request.query.size() > kMaxSegments) return invalid("the query has too many parameters");
  }
  return {};
}

int64_t query_number(const Request& request, const std::string& name, int64_t otherwise,
                     int64_t most) {
  const auto found = request.query.find(name);
  uint64_t value = 0;
  if (found == request.query.end() || !parse_number(found->second, value)) return otherwise;
  return value > static_cast<uint64_t>(most) ? most : static_cast<int64_t>(value);
}

std::string header_of(const Response& response, bool keep_alive) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " ";
  text += reason(response.status);
  text +=
      "\r\nServer: tandem-hub\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  if (response.status != 101 && response.status != 204 && response.status != 304) {
    const uint64_t length = response.file ? response.file->length : response.body.size();
    text += "Content-Type: " + response.content_type +
            "\r\nContent-Length: " + std::to_string(length) + "\r\n";
  }
  for (const auto& [name, value] : response.fields) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  if (response.status != 101) {
    text += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  }
  return text + "\r\n";
}

Response refusal(int status, std::string_view kind, std::string_view message) {
  Response response;
  response.status = status;
  // Text from outside may not be UTF-8.
  response.body = nlohmann::json{{"error", {{"kind", kind}, {"message", message}}}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  return response;
}

Response too_many(std::string_view message, int64_t seconds) {
  Response response = refusal(429, "too_many", message);
  response.fields.emplace_back("Retry-After", std::to_string(std::max<int64_t>(seconds, 1)));
  return response;
}

Result<std::optional<std::pair<uint64_t, uint64_t>>> parse_range(std::string_view field,
                                                                 uint64_t size) {
  using Range = std::optional<std::pair<uint64_t, uint64_t>>;
  constexpr std::string_view kUnit = "bytes=";
  if (!field.starts_with(kUnit)) return Range();
  field.remove_prefix(kUnit.size());
  const auto dash = field.find('-');
  if (field.find(',') != std::string_view::npos || dash == std::string_view::npos) return Range();
  const std::string_view from = field.substr(0, dash);
  const std::string_view to = field.substr(dash + 1);
  uint64_t first = 0;
  uint64_t last = 0;
  if ((!from.empty() && !parse_number(from, first)) || (!to.empty() && !parse_number(to, last))) {
    return Range();
  }
  const Error outside = invalid("the range " + std::string(field) + " lies outside a file of " +
                                std::to_string(size) + " bytes");
  if (from.empty()) {  // the last so many bytes
    if (to.empty()) return Range();
    if (last == 0 || size == 0) return outside;
    first = last < size ? size - last : 0;
    last = size - 1;
  } else {
    if (first >= size) return outside;
    if (to.empty() || last >= size) last = size - 1;
    if (last < first) return Range();
  }
  return Range(std::pair(first, last - first + 1));
}

}  // namespace tandem::hub
