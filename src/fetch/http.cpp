#include "fetch/http.h"

#include <algorithm>
#include <array>

namespace tandem::fetch {

namespace {

constexpr size_t kMaxRefusal = 4096;
constexpr int kMaxRedirects = 5;
constexpr size_t kMaxKept = 4;
constexpr auto kKeptFor = std::chrono::seconds(20);  // less than servers wait

bool redirects(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string request_text(const Url& url,
                         const std::vector<std::pair<std::string, std::string>>& fields,
                         const std::string& token) {
  std::string text = "GET " + url.target +
                     " HTTP/1.1\r\nHost: " + url.origin().substr(url.encrypted ? 8 : 7) +
                     "\r\nUser-Agent: tandem\r\nAccept-Encoding: identity\r\n";
  for (const auto& [name, value] : fields) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  if (!token.empty()) text += "Authorization: Bearer " + token + "\r\n";
  return text + "\r\n";
}

/// Text of a refusal for a message: one line without control characters.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text.substr(0, 300);
}

}  // namespace

Result<hub::Channel> Http::connect(const Url& url, const Credentials& credentials) {
  hub::ChannelOptions options;
  options.encrypted = url.encrypted;
  options.older_tls = credentials.fingerprint.empty();
  options.what = "the server";
  options.cancel = options_.cancel;
  return hub::Channel::open({url.host, url.port, credentials.fingerprint}, options,
                            Clock::now() + options_.connect);
}

Result<Answer> Http::exchange(const Url& url, const std::string& request,
                              const Credentials& credentials, bool fresh, bool& stale,
                              const std::function<Status(const Answer&)>& begin,
                              const std::function<Status(std::string_view)>& sink) {
  stale = false;
  const std::string key = url.origin() + " " + credentials.fingerprint;
  std::optional<hub::Channel> channel;
  if (auto kept = kept_.extract(key); !kept.empty() && !fresh) {
    channel = std::move(kept.mapped().channel);
    stale = true;
  }
  if (!channel) {
    TANDEM_ASSIGN(channel, connect(url, credentials));
  }
  const auto latest = Clock::now() + options_.longest;
  TANDEM_TRY(channel->write(request, Clock::now() + options_.silence));

  std::string held;
  std::array<char, 65536> buffer;
  bool ended = false;
  const auto more = [&]() -> Status {
    TANDEM_ASSIGN(const size_t count,
                  channel->read(buffer, std::min(latest, Clock::now() + options_.silence)));
    ended = count == 0;
    stale = stale && count == 0;
    held.append(buffer.data(), count);
    return {};
  };
  Answer answer;
  answer.url = url;
  for (;;) {
    const auto end = held.find("\r\n\r\n");
    if (end != std::string::npos) {
      TANDEM_ASSIGN(answer.header,
                    hub::parse_answer_header(std::string_view(held).substr(0, end + 4)));
      held.erase(0, end + 4);
      if (answer.header.status >= 200) break;
      continue;  // 100 and 103 come before the answer
    }
    if (held.size() > hub::kMaxAnswerHeader) return invalid("the answer's header is too long");
    TANDEM_TRY(more());
    if (ended) return Error{ErrorKind::kPeer, url.origin() + " closed the connection"};
  }
  answer.status = answer.header.status;
  TANDEM_ASSIGN(BodyReader body, BodyReader::open(answer.header));
  const bool good = answer.status >= 200 && answer.status < 300;
  if (good) {
    const std::string coding = answer.header.field("content-encoding");
    if (!coding.empty() && coding != "identity") {
      return invalid(url.origin() + " sends " + coding + ", which was not asked for");
    }
    TANDEM_TRY(begin(answer));
  }
  const auto receive = [&](std::string_view part) -> Status {
    if (good) {
      received_ += part.size();
      return sink(part);
    }
    answer.refusal += part.substr(0, kMaxRefusal - std::min(kMaxRefusal, answer.refusal.size()));
    return {};
  };
  while (!body.done()) {
    std::string_view rest(held);
    TANDEM_TRY(body.take(rest, receive));
    held.erase(0, held.size() - rest.size());
    if (body.done()) break;
    // A redirect's or refusal's body is not worth waiting for.
    if (!good && (!body.bounded() || answer.refusal.size() >= kMaxRefusal)) break;
    TANDEM_TRY(more());
    if (!ended) continue;
    const Status status = body.connection_ended();
    if (!status.ok() && good) {
      return Error{ErrorKind::kPeer, url.origin() + " " + status.error().message};
    }
    break;
  }
  answer.refusal = one_line(std::move(answer.refusal));
  if (body.done() && body.bounded() && held.empty() && !ended &&
      answer.header.field("connection") != "close") {
    if (kept_.size() >= kMaxKept) kept_.clear();
    kept_.emplace(key, Kept{std::move(*channel), Clock::now()});
  }
  return answer;
}

Result<Answer> Http::get(const Url& url,
                         const std::vector<std::pair<std::string, std::string>>& fields,
                         const Credentials& credentials,
                         const std::function<Status(const Answer&)>& begin,
                         const std::function<Status(std::string_view)>& sink) {
  std::erase_if(kept_, [&](const auto& one) { return Clock::now() - one.second.used > kKeptFor; });
  Url at = url;
  hub::HttpAnswer first;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const Credentials own = at.same_origin(url) ? credentials : Credentials{};
    const std::string request = request_text(at, fields, own.token);
    const auto seen = [&](const Answer& answer) -> Status {
      Answer whole = answer;
      whole.first = first;
      return begin(whole);
    };
    bool stale = false;
    auto answer = exchange(at, request, own, false, stale, seen, sink);
    if (!answer.ok() && answer.error().kind == ErrorKind::kPeer && stale) {
      // The kept connection was closed meanwhile.
      answer = exchange(at, request, own, true, stale, seen, sink);
    }
    if (!answer.ok()) return answer;
    if (!redirects(answer->status)) {
      answer->first = first;
      return answer;
    }
    TANDEM_ASSIGN(Url next, resolve(at, answer->header.field("location")));
    if (hop == 0) first = answer->header;
    at = std::move(next);
  }
  return invalid(url.shown() + " redirects more than " + std::to_string(kMaxRedirects) + " times");
}

}  // namespace tandem::fetch
