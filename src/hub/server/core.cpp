#include "hub/server/core.h"

#include <algorithm>
#include <chrono>

#include "hub/secret.h"
#include "hub/server/signals.h"

namespace tandem::hub {
namespace {

constexpr int64_t kCacheMs = 600000;
constexpr size_t kMaxCached = 65536;
constexpr int64_t kKeptEvents = 1000;
constexpr int64_t kEventsAtOnce = 100;
constexpr size_t kEventBytesAtOnce = size_t{1} << 20;
constexpr size_t kSmallEvent = 4096;
constexpr int64_t kKeptBytes = int64_t{8} << 20;  ///< about: of a scope's large events

Response run(Core& core, const Work& work, bool reading) {
  Response response;
  bool refused = false;
  const auto inner = [&](Connection& connection) -> Status {
    refused = false;
    auto result = work(connection);
    if (!result.ok()) return result.error();
    response = std::move(*result);
    refused = response.status >= 400;
    if (refused) return Error{ErrorKind::kCancelled, "refused"};
    return {};
  };
  const Status status = reading ? core.database->reading(inner) : core.database->transaction(inner);
  if (!status.ok() && !refused) {
    core.log(status.error().message);
    Response busy = refusal(503, "io", "the hub's store does not answer; try again");
    busy.fields.emplace_back("Retry-After", "2");
    return busy;
  }
  return response;
}

}  // namespace

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_json(std::string_view text) {
  // Deep nesting costs stack in the parser and wherever the value goes.
  constexpr int kMaxDepth = 32;
  Json value = Json::parse(
      text, [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxDepth; }, false);
  if (value.is_discarded()) return nullptr;
  return value;
}

std::optional<Caller> CallerCache::find(const std::string& token_hash) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(token_hash);
  if (found == entries_.end() || found->second.until < now_ms()) return std::nullopt;
  return found->second.caller;
}

bool CallerCache::was_good(const std::string& token_hash) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(token_hash);
}

void CallerCache::drop(const std::string& token_hash) {
  const std::lock_guard lock(mutex_);
  entries_.erase(token_hash);
}

uint64_t CallerCache::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void CallerCache::put(const std::string& token_hash, const Caller& caller, uint64_t generation) {
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return;
  if (entries_.size() >= kMaxCached) entries_.clear();
  entries_[token_hash] = {caller, now_ms() + kCacheMs};
}

void CallerCache::forget(const std::string& id) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (auto& [hash, entry] : entries_) {
    if (entry.caller.device == id || entry.caller.member == id) entry.until = 0;
  }
}

void CallerCache::clear() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (auto& [hash, entry] : entries_) entry.until = 0;
}

Core::Core(HubOptions given)
    : options(std::move(given)),
      signals(std::make_unique<Signals>()),
      guesses(options.guesses_per_minute, options.guesses_per_minute,
              options.all_guesses_per_minute, options.all_guesses_per_minute),
      registrations(options.registrations_per_minute, options.registrations_per_minute,
                    options.registrations_per_minute * 20, options.registrations_per_minute * 20),
      requests(options.requests_per_second * 60, options.requests_per_second * 4, 1e12, 1e12),
      strangers(options.strangers_per_second * 60, options.strangers_per_second * 4, 1e12, 1e12) {}

Core::~Core() = default;

Response reply(const Json& body, int status) {
  Response response;
  response.status = status;
  response.body = dump(body);
  return response;
}

Response nothing() {
  Response response;
  response.status = 204;
  return response;
}

Response respond(Core& core, const Work& work) {
  return run(core, work, false);
}

Response respond_reading(Core& core, const Work& work) {
  return run(core, work, true);
}

std::optional<std::string> text_field(const Json& body, const char* name, size_t limit) {
  if (!body.is_object()) return std::nullopt;
  const auto found = body.find(name);
  if (found == body.end() || !found->is_string()) return std::nullopt;
  auto text = found->get<std::string>();
  const bool clean =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c != 127; });
  if (text.empty() || text.size() > limit || !clean) return std::nullopt;
  return text;
}

Status add_event(Connection& connection, const std::string& scope, const std::string& kind,
                 const std::string& sender, const std::string& recipient, const Json& data) {
  TANDEM_ASSIGN(const Rows rows,
                connection.run("INSERT INTO scopes (scope, seq) VALUES ($1, 1) ON CONFLICT (scope) "
                               "DO UPDATE SET seq = scopes.seq + 1 RETURNING seq",
                               {scope}));
  const int64_t seq = number_of(rows.at(0), 0);
  const std::string text = dump(data);
  TANDEM_TRY(
      connection.run("INSERT INTO events (scope, seq, at, kind, sender, recipient, data) "
                     "VALUES ($1, $2, $3, $4, $5, $6, $7)",
                     {scope, seq, now_ms(), kind, sender, recipient, text}));
  TANDEM_TRY(connection.run("DELETE FROM events WHERE scope = $1 AND seq <= $2",
                            {scope, seq - kKeptEvents}));
  if (text.size() > kSmallEvent) {
    TANDEM_ASSIGN(const Rows large,
                  connection.run("SELECT seq, LENGTH(data) FROM events WHERE scope = $1 AND "
                                 "LENGTH(data) > $2 ORDER BY seq DESC",
                                 {scope, static_cast<int64_t>(kSmallEvent)}));
    int64_t bytes = 0;
    for (const Row& row : large) {
      bytes += number_of(row, 1);
      if (bytes <= kKeptBytes) continue;
      TANDEM_TRY(connection.run("DELETE FROM events WHERE scope = $1 AND seq <= $2",
                                {scope, number_of(row, 0)}));
      break;
    }
  }
  return connection.notify(scope);
}

Result<Response> read_events(Connection& connection, const std::string& scope, int64_t after,
                             const std::string& reader) {
  TANDEM_ASSIGN(const Rows last,
                connection.run("SELECT seq FROM scopes WHERE scope = $1", {scope}));
  const int64_t newest = last.empty() ? 0 : number_of(last[0], 0);
  TANDEM_ASSIGN(const Rows rows,
                connection.run("SELECT seq, at, kind, sender, recipient, data FROM events WHERE "
                               "scope = $1 AND seq > $2 AND (recipient = '' OR recipient = $3) "
                               "ORDER BY seq LIMIT $4",
                               {scope, after, reader, kEventsAtOnce}));
  if (rows.empty()) {
    if (after <= newest) {
      Response response = nothing();
      response.subjects = {scope};
      return response;
    }
    // The reader is ahead of the store: the room was made anew. It begins again.
    return reply({{"events", Json::array()}, {"next", newest}, {"missed", true}});
  }
  TANDEM_ASSIGN(const Rows oldest,
                connection.run("SELECT MIN(seq) FROM events WHERE scope = $1", {scope}));
  Json events = Json::array();
  size_t bytes = 0;
  for (const Row& row : rows) {
    const std::string data = text_of(row, 5);
    bytes += data.size();
    if (!events.empty() && bytes > kEventBytesAtOnce) break;
    events.push_back({{"number", number_of(row, 0)},
                      {"at", number_of(row, 1)},
                      {"kind", text_of(row, 2)},
                      {"sender", text_of(row, 3)},
                      {"to", text_of(row, 4)},
                      {"data", parse_json(data)}});
  }
  const size_t shown = events.size();
  const bool all = shown == rows.size() && static_cast<int64_t>(shown) < kEventsAtOnce;
  const int64_t next = all ? newest : number_of(rows[shown - 1], 0);
  return reply(
      {{"events", events}, {"next", next}, {"missed", after + 1 < number_of(oldest.at(0), 0)}});
}

Result<std::optional<Caller>> find_caller(Core& core, const std::string& authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  constexpr size_t kMaxToken = 64;
  if (!authorization.starts_with(kScheme)) return std::optional<Caller>();
  const std::string_view token = std::string_view(authorization).substr(kScheme.size());
  if (token.size() > kMaxToken) return std::optional<Caller>();
  // Looked up by its hash: what time the look-up takes says nothing of any token.
  const std::string hash = token_hash(token);
  if (auto known = core.callers.find(hash); known.has_value()) return known;
  const uint64_t generation = core.callers.generation();
  std::optional<Caller> caller;
  const Status looked = core.database->reading([&](Connection& connection) -> Status {
    TANDEM_ASSIGN(const Rows devices,
                  connection.run("SELECT id, organization, settings, settings_version, token_hash "
                                 "FROM devices WHERE token_hash = $1",
                                 {hash}));
    if (!devices.empty() && equal_secrets(text_of(devices[0], 4), hash)) {
      caller.emplace();
      caller->device = text_of(devices[0], 0);
      caller->organization = text_of(devices[0], 1);
      caller->settings = parse_json(text_of(devices[0], 2));
      caller->settings_version = number_of(devices[0], 3);
      return {};
    }
    TANDEM_ASSIGN(const Rows keys,
                  connection.run("SELECT m.id, m.organization, m.role, k.key_hash FROM api_keys k "
                                 "JOIN members m ON m.id = k.member WHERE k.key_hash = $1",
                                 {hash}));
    if (!keys.empty() && equal_secrets(text_of(keys[0], 3), hash)) {
      caller.emplace();
      caller->member = text_of(keys[0], 0);
      caller->organization = text_of(keys[0], 1);
      caller->role = text_of(keys[0], 2);
    }
    return {};
  });
  if (!looked.ok()) return looked.error();
  if (caller.has_value()) {
    core.callers.put(hash, *caller, generation);
  } else {
    core.callers.drop(hash);
  }
  return caller;
}

Sighting last_sighting(const Core& core, const std::string& device, int64_t stored_seen,
                       const std::string& stored_report) {
  const auto known = core.presence.find(device);
  if (known.has_value() && known->seen >= stored_seen) return *known;
  return {stored_seen, stored_report};
}

}  // namespace tandem::hub
