#include "fetch/source.h"

#include <algorithm>
#include <thread>

#include <nlohmann/json.hpp>

#include "weights/printable.h"

namespace tandem::fetch {

namespace {

using std::chrono::milliseconds;

constexpr std::array<std::string_view, kSourceKinds> kNames = {"cache", "peer", "hub", "host",
                                                               "huggingface"};
constexpr milliseconds kLongestBackOff{30000};
constexpr uint64_t kMuch = 64 << 10;  // bytes, in one answer that broke off
constexpr uint64_t kMaxChunkList = uint64_t{64} << 20;

std::string range_text(uint64_t first, uint64_t end) {
  return "bytes " + std::to_string(first) + "-" + std::to_string(end - 1);
}

bool on_this_machine(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// What a server says of its content's version; empty if it can't be one (it becomes part of paths
/// at the server, and of the journal).
std::string commit_of(std::string text) {
  const bool good = text.size() <= 128 && !text.starts_with('.') &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                    });
  return good ? text : std::string();
}

/// A server may repeat what it was sent.
std::string without(std::string text, const std::string& secret) {
  if (secret.empty()) return text;
  for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos;) {
    text.replace(at, secret.size(), "***");
  }
  return text;
}

Error changed(const std::string& file, const std::string& at) {
  return unsupported(file + " is another file at " + at +
                     " by now than when it was begun; nothing of it was mixed");
}

}  // namespace

std::string_view name(SourceKind kind) {
  return kNames.at(static_cast<size_t>(kind));
}

Result<std::set<SourceKind>> parse_sources(std::string_view text) {
  std::set<SourceKind> kinds;
  for (;;) {
    const auto end = text.find(',');
    const std::string_view one = text.substr(0, end);
    const auto found = std::find(kNames.begin(), kNames.end(), one);
    if (found == kNames.end()) {
      return invalid("\"" + weights::printable(one) +
                     "\" is no source; there are cache, peer, hub, host and huggingface");
    }
    kinds.insert(static_cast<SourceKind>(found - kNames.begin()));
    if (end == std::string_view::npos) return kinds;
    text.remove_prefix(end + 1);
  }
}

std::set<SourceKind> all_sources() {
  std::set<SourceKind> kinds;
  for (uint8_t kind = 0; kind < kSourceKinds; ++kind) kinds.insert(static_cast<SourceKind>(kind));
  return kinds;
}

Result<std::vector<Digest>> parse_chunks(std::string_view text, uint64_t size) {
  // Flat, so that no depth of nesting reaches the parser's stack.
  const auto json = nlohmann::json::parse(
      text, [](int depth, auto, auto&) { return depth <= 2; }, false);
  const Error wrong = invalid("the list of chunks does not have the form that it should");
  if (!json.is_object() || !json.contains("chunk_bytes") || json["chunk_bytes"] != kChunkBytes ||
      !json.contains("sha256") || !json["sha256"].is_array()) {
    return wrong;
  }
  const uint64_t expected = std::max<uint64_t>(1, size / kChunkBytes + (size % kChunkBytes != 0));
  if (json["sha256"].size() != expected) return wrong;
  std::vector<Digest> chunks;
  for (const auto& one : json["sha256"]) {
    Digest digest{};
    if (!one.is_string() || !parse_hex(one.get_ref<const std::string&>(), digest)) return wrong;
    chunks.push_back(digest);
  }
  return chunks;
}

HttpSource::HttpSource(SourceOptions options, Url base)
    : Source(options.kind),
      options_(std::move(options)),
      base_(std::move(base)),
      http_(options_.http) {
  const std::string place = base_.origin().substr(base_.encrypted ? 8 : 7);
  name_ = options_.kind == SourceKind::kHuggingFace
              ? place
              : std::string(fetch::name(options_.kind)) + " " + place;
  word_ = base_.origin();
}

Result<std::unique_ptr<Source>> Source::open(SourceOptions options) {
  TANDEM_ASSIGN(Url base, parse_url(options.base));
  while (base.target.ends_with('/')) base.target.pop_back();
  if (base.target.find('?') != std::string::npos) {
    return invalid("expected an endpoint without a query");
  }
  if (!options.credentials.token.empty() && !base.encrypted && !on_this_machine(base.host)) {
    return invalid(base.origin() + ": a token would be sent to it in the clear; expected https");
  }
  return std::unique_ptr<Source>(std::make_unique<HttpSource>(std::move(options), std::move(base)));
}

Result<Url> HttpSource::url_of(const std::string& file) const {
  Url url = base_;
  if (options_.kind == SourceKind::kHuggingFace) {
    const std::string& revision = commit_.empty() ? options_.model.revision : commit_;
    url.target +=
        "/" + options_.model.text() + "/resolve/" + hub::escape(revision) + "/" + hub::escape(file);
  } else {
    url.target += "/v1/models/" + hub::escape(options_.model.name) + "/" + hub::escape(file);
  }
  return url;
}

Status HttpSource::wait(milliseconds pause, const std::string& why) {
  if (options_.waiting) {
    options_.waiting(why + "; trying again in " + std::to_string((pause.count() + 999) / 1000) +
                     " s");
  }
  const auto until = Clock::now() + pause;
  while (Clock::now() < until) {
    if (options_.http.cancel != nullptr && *options_.http.cancel) {
      return Error{ErrorKind::kCancelled, "cancelled"};
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(milliseconds(50), until - Clock::now()));
  }
  return {};
}

HttpSource::Failure HttpSource::refused(const std::string& file, const Answer& answer) const {
  const int status = answer.status;
  const std::string code = answer.header.field("x-error-code");
  const std::string from = answer.url.origin();
  std::string said = answer.header.field("x-error-message");
  if (said.empty()) said = answer.refusal;
  said = without(std::move(said), options_.credentials.token);
  const std::string text =
      file + ": " + from + " answers " + std::to_string(status) +
      (said.empty() ? std::string() : " (" + weights::printable(said.substr(0, 200)) + ")");
  Failure failure{{ErrorKind::kPeer, text}, false, std::nullopt};
  const bool hugging = options_.kind == SourceKind::kHuggingFace;
  if (status == 401 || status == 403) {
    if (hugging && (code == "GatedRepo" || status == 403)) {
      failure.error.message += ": the model is gated; accept its terms at " + base_.origin() +
                               base_.target + "/" + options_.model.text() +
                               " and give a token that may read it";
    } else if (hugging) {
      failure.error.message += ": there is no such model, or it is not for everybody";
    }
    if (hugging) {
      failure.error.message += options_.credentials.token.empty()
                                   ? " ($HF_TOKEN or --token-file)"
                                   : " (the token given is not enough)";
    }
    return failure;
  }
  if (status == 404 || status == 410) {
    failure.error = {ErrorKind::kNotFound, file + ": " + from + " has no such file" +
                                               (code == "RepoNotFound" ? " or model" : "")};
    return failure;
  }
  failure.again = status == 408 || status == 425 || status == 429 || status >= 500;
  if (failure.again) {
    failure.pause =
        parse_retry_after(answer.header.field("retry-after"), std::chrono::system_clock::now());
  }
  return failure;
}

Status HttpSource::check_answer(const std::string& file, const Answer& answer, Progress& progress) {
  const std::string at = answer.url.origin();
  const auto nonsense = [&](const std::string& what) {
    return invalid(file + ": " + at + " " + what);
  };
  const auto length = BodyReader::open(answer.header);
  RemoteFile found;
  if (answer.status == 206) {
    const auto range = parse_content_range(answer.header.field("content-range"));
    const uint64_t first = progress.offset + progress.got;
    const uint64_t end = progress.offset + progress.out.size();
    if (!range.ok() || !range->size || range->first != first || range->end > end ||
        range->end <= first ||
        (length.ok() && length->length() && *length->length() != range->end - range->first)) {
      return nonsense(
          "sends other bytes than asked for: expected " + range_text(first, end) + ", found \"" +
          weights::printable(answer.header.field("content-range").substr(0, 100)) + "\"");
    }
    found.size = *range->size;
  } else if (answer.status == 200) {
    // Without ranges a whole file will do if it was to be read from its start to its end.
    const bool sized = length.ok() && length->length().has_value();
    if (progress.offset + progress.got != 0 || (!sized && progress.any) ||
        (sized && *length->length() > progress.out.size())) {
      return nonsense("does not serve byte ranges of it");
    }
    progress.endless = !sized;
    if (sized) found.size = *length->length();
  } else {
    return nonsense("answers " + std::to_string(answer.status));
  }
  // What the origin says of the file before it sends us elsewhere holds over all of its servers.
  const hub::HttpAnswer& origin = answer.redirected() ? answer.first : answer.header;
  const std::string linked = plain_etag(origin.field("x-linked-etag"));
  const bool direct = direct_.contains(file);
  found.tag = !linked.empty() ? linked : plain_etag(origin.field("etag"));
  if (found.tag.empty() && !direct) found.tag = plain_etag(answer.header.field("etag"));
  Digest digest{};
  if (!linked.empty() && parse_hex(linked, digest)) found.sha256 = digest;
  found.commit = commit_of(origin.field("x-repo-commit"));
  if (direct) {
    // The last one's own tag is all that can be compared.
    const std::string etag = plain_etag(answer.header.field("etag"));
    if (!etag.empty() && !direct_[file].etag.empty() && etag != direct_[file].etag) {
      return changed(file, at);
    }
    found.tag = progress.about.tag;
    found.sha256 = progress.about.sha256;
    found.commit = progress.about.commit;
  } else if (answer.redirected()) {
    direct_[file] = {answer.url, plain_etag(answer.header.field("etag"))};
  }
  if (!progress.any) {
    progress.about = found;
    progress.any = true;
    return {};
  }
  RemoteFile& known = progress.about;
  if (found.size != known.size ||
      (!known.tag.empty() && !found.tag.empty() && found.tag != known.tag) ||
      (known.sha256 && found.sha256 && *known.sha256 != *found.sha256)) {
    direct_.erase(file);
    return changed(file, at);
  }
  if (known.tag.empty()) known.tag = found.tag;
  if (!known.sha256) known.sha256 = found.sha256;
  return {};
}

std::optional<HttpSource::Failure> HttpSource::attempt(const std::string& file,
                                                       Progress& progress) {
  auto url = url_of(file);
  if (!url.ok()) return Failure{url.error(), false, {}};
  const auto direct = direct_.find(file);
  const bool shortened = direct != direct_.end();
  if (shortened) url = direct->second.url;
  const uint64_t first = progress.offset + progress.got;
  const uint64_t end = progress.offset + progress.out.size();
  const std::string range = "bytes=" + std::to_string(first) + "-" + std::to_string(end - 1);
  const uint64_t before = progress.got;
  Status wrong;
  const auto answer = http_.get(
      *url, {{"Range", range}},
      shortened && !url->same_origin(base_) ? Credentials{} : options_.credentials,
      [&](const Answer& one) { return wrong = check_answer(file, one, progress); },
      [&](std::string_view part) -> Status {
        if (part.size() > progress.out.size() - progress.got) {
          return wrong = invalid(file + ": " + name_ + " sends more bytes than asked for");
        }
        std::copy_n(reinterpret_cast<const std::byte*>(part.data()), part.size(),
                    progress.out.begin() + static_cast<ptrdiff_t>(progress.got));
        progress.got += part.size();
        return {};
      });
  if (progress.endless) {
    // What came of it can't be gone on with.
    if (!answer.ok()) progress.got = 0;
    if (!answer.ok()) progress.any = false;
    progress.about.size = progress.got;
    progress.endless = false;
  }
  if (!answer.ok()) {
    Failure failure{answer.error(), false, {}};
    failure.again =
        answer.error().kind == ErrorKind::kPeer || answer.error().kind == ErrorKind::kInvalid;
    if (!wrong.ok()) failure.error = wrong.error();
    if (failure.error.kind == ErrorKind::kPeer) failure.error = failure.error.in(file);
    return failure;
  }
  if (answer->status == 200 || answer->status == 206) {
    const uint64_t size = progress.about.size;
    if (size < end) progress.out = progress.out.first(static_cast<size_t>(size - progress.offset));
    if (progress.got == before && progress.got < progress.out.size()) {
      return Failure{invalid(file + ": " + name_ + " sends nothing"), true, {}};
    }
    return std::nullopt;
  }
  if (answer->status == 416) {
    const auto found = parse_content_range(answer->header.field("content-range"));
    if (!progress.any && first == 0 && found.ok() && found->size == 0U) {
      progress.out = {};
      return std::nullopt;
    }
    return Failure{changed(file, answer->url.origin()), false, {}};
  }
  // A signed address is good for a while only: ask again for another.
  if (shortened && (answer->status == 401 || answer->status == 403 || answer->status == 404 ||
                    answer->status == 410)) {
    direct_.erase(file);
    return attempt(file, progress);
  }
  return refused(file, *answer);
}

Status HttpSource::patient(const std::string& file, Progress& progress) {
  int tries = 0;
  milliseconds back_off = options_.first_pause;
  while (progress.got < progress.out.size()) {
    const uint64_t before = progress.got;
    const auto failure = attempt(file, progress);
    if (!failure) continue;
    if (!failure->again) return failure->error;
    // A server that gives a few bytes each time would hold up the others for ever.
    if (progress.got > before &&
        progress.got - before >= std::min<uint64_t>(kMuch, progress.out.size() / 8 + 1)) {
      tries = 0;
      back_off = options_.first_pause;
    }
    // Nonsense may be a bad moment of something in between, but hardly gets better with time.
    tries += failure->error.kind == ErrorKind::kInvalid ? 2 : 1;
    if (tries >= options_.tries) {
      return Error{failure->error.kind,
                   failure->error.message + "; given up after " + std::to_string(tries) + " tries"};
    }
    const milliseconds pause = failure->pause.value_or(back_off);
    if (pause > options_.longest_pause) {
      return Error{ErrorKind::kPeer, failure->error.message + " and asks to come back in " +
                                         std::to_string(pause.count() / 1000) + " s"};
    }
    back_off = std::min(back_off * 2, kLongestBackOff);
    TANDEM_TRY(wait(pause, failure->error.message));
  }
  return {};
}

Result<std::vector<std::byte>> HttpSource::begin(const std::string& file, uint64_t length,
                                                 RemoteFile& about) {
  std::vector<std::byte> bytes(static_cast<size_t>(length));
  Progress progress{0, bytes, 0, {}, false};
  direct_.erase(file);
  TANDEM_TRY(patient(file, progress));
  about = progress.about;
  bytes.resize(static_cast<size_t>(progress.got));
  return bytes;
}

Status HttpSource::range(const std::string& file, RemoteFile& about, uint64_t offset,
                         std::span<std::byte> out) {
  Progress progress{offset, out, 0, about, true};
  Status status = patient(file, progress);
  about = progress.about;
  return status;
}

Result<std::vector<Digest>> HttpSource::chunks(const std::string& file, uint64_t size,
                                               milliseconds patience) {
  if (options_.kind == SourceKind::kHuggingFace) {
    return Error{ErrorKind::kNotFound, name_ + " has no hashes of chunks"};
  }
  TANDEM_ASSIGN(Url url, url_of(file));
  url.target += "?chunks=1";
  const auto until = Clock::now() + patience;
  for (;;) {
    std::string text;
    TANDEM_ASSIGN(const Answer answer,
                  http_.get(
                      url, {}, options_.credentials, [](const Answer&) { return Status(); },
                      [&](std::string_view part) -> Status {
                        if (part.size() > kMaxChunkList - text.size()) {
                          return invalid(file + ": " + name_ + "'s list of chunks is too long");
                        }
                        text += part;
                        return {};
                      }));
    if (answer.status == 200) {
      auto chunks = parse_chunks(text, size);
      if (!chunks.ok()) return chunks.error().in(file + ": " + name_);
      return chunks;
    }
    const Failure failure = refused(file, answer);
    if (!failure.again || Clock::now() >= until) return failure.error;
    TANDEM_TRY(wait(std::min(failure.pause.value_or(milliseconds(1000)), milliseconds(1000)),
                    name_ + " is hashing " + file));
  }
}

}  // namespace tandem::fetch
