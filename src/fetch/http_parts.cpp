// What servers say in single fields, and the framing of bodies.
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "fetch/http.h"

namespace tandem::fetch {

namespace {

constexpr size_t kMaxLine = 1024;

bool read_number(std::string_view text, uint64_t& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() &&
         value >> 62 == 0;
}

/// "Sun, 06 Nov 1994 08:49:37 GMT".
std::optional<std::chrono::system_clock::time_point> parse_date(std::string_view text) {
  constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  if (text.size() != 29 || text.substr(3, 2) != ", " || text.substr(25) != " GMT") return {};
  const auto month = std::find(kMonths.begin(), kMonths.end(), text.substr(8, 3));
  std::array<uint64_t, 5> numbers{};
  constexpr std::array<std::pair<size_t, size_t>, 5> kPlaces = {
      {{5, 2}, {12, 4}, {17, 2}, {20, 2}, {23, 2}}};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!read_number(text.substr(kPlaces[i].first, kPlaces[i].second), numbers[i])) return {};
  }
  const auto [day, year, hour, minute, second] = numbers;
  // Within what the clock's own unit can say; who asks for more waits a day at most anyway.
  if (month == kMonths.end() || year < 1970 || year > 2200 || hour > 23 || minute > 59 ||
      second > 60)
    return {};
  const std::chrono::year_month_day date{
      std::chrono::year(static_cast<int>(year)),
      std::chrono::month(static_cast<unsigned>(month - kMonths.begin() + 1)),
      std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return {};
  return std::chrono::sys_days(date) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::seconds(second);
}

}  // namespace

Result<ContentRange> parse_content_range(std::string_view text) {
  const Error wrong = invalid("no Content-Range of bytes");
  if (!text.starts_with("bytes ")) return wrong;
  text.remove_prefix(6);
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return wrong;
  ContentRange range;
  const std::string_view size = text.substr(slash + 1);
  if (size != "*") {
    uint64_t value = 0;
    if (!read_number(size, value)) return wrong;
    range.size = value;
  }
  const std::string_view place = text.substr(0, slash);
  if (place == "*") return range.size ? Result<ContentRange>(range) : wrong;
  const auto dash = place.find('-');
  uint64_t last = 0;
  if (dash == std::string_view::npos || !read_number(place.substr(0, dash), range.first) ||
      !read_number(place.substr(dash + 1), last) || last < range.first) {
    return wrong;
  }
  range.end = last + 1;
  if (range.size && range.end > *range.size) return wrong;
  return range;
}

std::optional<std::chrono::milliseconds> parse_retry_after(
    std::string_view text, std::chrono::system_clock::time_point now) {
  constexpr std::chrono::milliseconds kDay = std::chrono::hours(24);
  uint64_t seconds = 0;
  if (read_number(text, seconds)) {
    return std::min(kDay, std::chrono::milliseconds(std::min<uint64_t>(seconds, 86400) * 1000));
  }
  const auto date = parse_date(text);
  if (!date) return std::nullopt;
  if (*date <= now) return std::chrono::milliseconds(0);
  return std::min(kDay, std::chrono::duration_cast<std::chrono::milliseconds>(*date - now));
}

std::string plain_etag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return c > 0x20 && c < 0x7f && c != '"'; });
  return plain && text.size() <= 512 ? std::string(text) : std::string();
}

Result<BodyReader> BodyReader::open(const hub::HttpAnswer& header) {
  BodyReader body;
  const std::string coding = header.field("transfer-encoding");
  if (!coding.empty()) {
    if (coding != "chunked") return invalid("a body in the transfer coding " + coding);
    if (!header.field("content-length").empty()) {
      return invalid("a body with both a length and chunks");
    }
    body.chunked_ = true;
    body.state_ = State::kSize;
    return body;
  }
  if (header.status == 204 || header.status == 304 || !header.field("content-length").empty()) {
    TANDEM_ASSIGN(body.left_, hub::body_length(header));
    body.length_ = body.left_;
    if (body.left_ == 0) body.state_ = State::kDone;
  }
  return body;
}

Status BodyReader::take(std::string_view& bytes,
                        const std::function<Status(std::string_view)>& sink) {
  while (!bytes.empty() && state_ != State::kDone) {
    if (state_ == State::kBytes) {
      const uint64_t most = bounded() ? std::min<uint64_t>(left_, bytes.size()) : bytes.size();
      const std::string_view part = bytes.substr(0, static_cast<size_t>(most));
      bytes.remove_prefix(part.size());
      if (bounded()) left_ -= part.size();
      if (bounded() && left_ == 0) state_ = chunked_ ? State::kEndOfChunk : State::kDone;
      TANDEM_TRY(sink(part));
      continue;
    }
    const auto end = bytes.find('\n');
    const std::string_view part =
        bytes.substr(0, end == std::string_view::npos ? bytes.size() : end + 1);
    line_ += part;
    bytes.remove_prefix(part.size());
    if (line_.size() > kMaxLine) return invalid("a chunked body with a line that is too long");
    if (end == std::string_view::npos) break;
    std::string_view line(line_);
    line.remove_suffix(line.ends_with("\r\n") ? 2 : 1);
    if (state_ == State::kEndOfChunk) {
      if (!line.empty()) return invalid("a chunk of a body is longer than it says");
      state_ = State::kSize;
    } else if (state_ == State::kTrailer) {
      if (line.empty()) state_ = State::kDone;
    } else {
      line = line.substr(0, line.find(';'));
      while (line.ends_with(' ')) line.remove_suffix(1);
      if (!read_number(line, left_, 16)) return invalid("a chunked body with a wrong size");
      state_ = left_ == 0 ? State::kTrailer : State::kBytes;
    }
    line_.clear();
  }
  return {};
}

Status BodyReader::connection_ended() {
  if (state_ == State::kDone) return {};
  if (!bounded()) {
    state_ = State::kDone;
    return {};
  }
  return Error{ErrorKind::kPeer, "closed the connection within the answer"};
}

}  // namespace tandem::fetch
