// Any bytes as what servers of models say: fields, bodies, addresses, lists of chunks; as the
// journal of a pulled model; and as what devices and rooms say of weights.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/hash.h"
#include "fetch/folder.h"
#include "fetch/http.h"
#include "fetch/source.h"
#include "fetch/url.h"
#include "ring/planner.h"
#include "room/held.h"
#include "weights/journal.h"

using namespace tandem;
using namespace tandem::fetch;

namespace {

void fields(std::string_view text) {
  const auto range = parse_content_range(text);
  if (range.ok() && range->size && (range->first > range->end || range->end > *range->size)) {
    std::abort();
  }
  const auto wait = parse_retry_after(text, std::chrono::system_clock::time_point{});
  if (wait && (wait->count() < 0 || *wait > std::chrono::hours(24))) std::abort();
  (void)plain_etag(text);
}

void urls(std::string_view text) {
  const auto url = parse_url(text);
  if (url.ok()) {
    const auto again = parse_url(url->origin() + url->target);
    if (!again.ok() || !again->same_origin(*url) || again->target != url->target) std::abort();
  }
  const auto next = resolve(Url{true, "host", 443, "/a/b"}, text);
  if (next.ok() && !next->encrypted) std::abort();
  std::string endpoint;
  (void)parse_model_url(text, endpoint).ok();
  const auto name = parse_model_name(text);
  if (!name.ok()) return;
  // It becomes a folder's name.
  const std::string path = Store("/root").path_of(*name).string();
  if (!path.starts_with("/root/") || path.find("/.") != std::string::npos) std::abort();
}

void body(std::string_view text) {
  const auto end = text.find("\r\n\r\n");
  if (end == std::string_view::npos) return;
  const auto header = hub::parse_answer_header(text.substr(0, end + 4));
  if (!header.ok()) return;
  auto reader = BodyReader::open(*header);
  if (!reader.ok()) return;
  std::string_view rest = text.substr(end + 4);
  size_t taken = 0;
  const Status status = reader->take(rest, [&](std::string_view part) {
    taken += part.size();
    return Status();
  });
  if (taken > text.size()) std::abort();
  if (status.ok() && reader->done() && reader->length() && *reader->length() != taken) std::abort();
  (void)reader->connection_ended().ok();
}

void journal(std::string_view text) {
  uint64_t good = 0;
  const auto read = weights::Journal::parse(text, good);
  if (!read.ok()) return;
  if (good > text.size()) std::abort();
  for (const auto& file : read->files) {
    if (file.present() > file.size || file.has(0, file.size) != (file.present() == file.size)) {
      std::abort();
    }
  }
  // What was good is read the same again.
  uint64_t again = 0;
  if (!weights::Journal::parse(text.substr(0, good), again).ok() || again != good) std::abort();
}

void weights_of_a_room(std::string_view text) {
  const room::Json json = room::Json::parse(text, nullptr, false);
  const std::set<SourceKind> allowed = room::room_sources(json);
  if (allowed.size() > kSourceKinds) std::abort();
  // What is there and not understood allows nothing.
  const room::Json& list = room::part_of(json, "sources");
  if (!list.is_null() && !list.is_array() && !allowed.empty()) std::abort();
  for (const room::Held& held : room::held_of(json)) {
    uint32_t end = 0;
    for (const ring::LayerRange& range : held.layers) {
      if (range.first < end || range.last <= range.first || range.last > ring::kMaxPlanLayers) {
        std::abort();
      }
      end = range.last;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      fields(text);
      return 0;
    case 1:
      urls(text);
      return 0;
    case 2:
      body(text);
      return 0;
    case 3:
      (void)parse_chunks(text, text.size()).ok();
      return 0;
    case 4:
      weights_of_a_room(text);
      return 0;
    default:
      // Lines with a right check, which a fuzzer does not find by itself.
      if (size > 1 && data[0] >= 128) {
        std::string whole = weights::journal_header();
        while (!text.empty()) {
          const auto end = text.find('\n');
          const std::string line(text.substr(0, end));
          whole += hex(sha256(line)).substr(0, 8) + " " + line + "\n";
          text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        }
        journal(whole);
      }
      journal(text);
      return 0;
  }
}
