// What the hub's handlers share: the store, who waits, who was heard of, who is asking.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hub/server/database.h"
#include "hub/server/http.h"
#include "hub/server/hub.h"
#include "hub/server/limits.h"
#include "hub/server/model_server.h"
#include "hub/server/presence.h"
#include "hub/server/server.h"

namespace tandem::hub {

using Json = nlohmann::json;

/// ms since 1970.
int64_t now_ms();
/// `value` as JSON text; bytes that are no UTF-8 are replaced.
std::string dump(const Json& value);
/// A text as JSON; null if it is none.
Json parse_json(std::string_view text);

/// Who asks, by the bearer token of the request.
struct Caller {              // NOLINT(bugprone-exception-escape): of the JSON library's own checks
  std::string device;        ///< id, or empty
  std::string member;        ///< id of an organization's member (API key), or empty
  std::string role;          ///< of the member: owner, admin, member
  std::string organization;  ///< of either, or empty
  // Of a device, for heartbeats:
  Json settings;
  int64_t settings_version = 0;

  [[nodiscard]] bool manages() const { return role == "owner" || role == "admin"; }
};

/// Callers of tokens that were looked up less than ten minutes ago. A change at any hub makes all
/// of them forget what is known of whom it concerns. Thread-safe.
class CallerCache {
 public:
  [[nodiscard]] std::optional<Caller> find(const std::string& token_hash) const;
  /// Whether the token was good when it was last looked up, however long ago: it may be looked up
  /// again while strangers of the same address have used up what these may ask.
  [[nodiscard]] bool was_good(const std::string& token_hash) const;
  /// Keeps what was looked up since `generation`, unless somebody was forgotten meanwhile: the
  /// store may have been read before that change.
  void put(const std::string& token_hash, const Caller& caller, uint64_t generation);
  /// The store knows no such token any more.
  void drop(const std::string& token_hash);
  /// Changes with each forget() and clear().
  [[nodiscard]] uint64_t generation() const;
  /// Has a device's or member's tokens looked up again.
  void forget(const std::string& id);
  /// The same of all.
  void clear();

 private:
  struct Entry {  // NOLINT(bugprone-exception-escape): as above
    Caller caller;
    int64_t until = 0;
  };
  mutable std::mutex mutex_;  ///< guards what follows
  std::unordered_map<std::string, Entry> entries_;
  uint64_t generation_ = 0;
};

struct Core {
  explicit Core(HubOptions given);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  HubOptions options;
  int64_t started = now_ms();
  std::unique_ptr<Database> database;
  std::unique_ptr<Signals> signals;
  Presence presence;
  CallerCache callers;
  Limiter guesses;
  Limiter registrations;
  Limiter requests;
  Limiter strangers;
  std::unique_ptr<ModelServer> models;  ///< null: serves none
  const ServerFigures* figures = nullptr;
  std::string machine;  ///< its own name, for the check of the header field Host

  void log(const std::string& line) const {
    if (options.log) options.log(line);
    options.events.write("error", "", {{"reason", line}});
  }
  /// Of something that was done for `device`, if the response says so.
  void tell(const Response& response, std::string_view kind, std::string_view device,
            std::string_view room = {}) const {
    if (response.status >= 400 || !options.events) return;
    if (room.empty()) return options.events.write(kind, device);
    options.events.write(kind, device, {{"room", room}});
  }
};

/// One request on its way through a handler.
struct Call {
  Core& core;
  const Request& request;
  Json body;  ///< null if there is none, or if it is not JSON
  Caller caller;
};

/// 200 (or `status`) with a JSON body.
Response reply(const Json& body, int status = 200);
/// 204.
Response nothing();

using Work = std::function<Result<Response>(Connection&)>;
/// Runs `work` in a transaction that is kept if the response is no refusal. An error of the store
/// is logged and becomes 503.
Response respond(Core& core, const Work& work);
/// The same for work that only reads.
Response respond_reading(Core& core, const Work& work);

/// A string of the body, of 1 to `limit` bytes without control characters; nothing if it is not
/// there or not so.
std::optional<std::string> text_field(const Json& body, const char* name, size_t limit);

/// Tables that are not there are made. Errors: kIo.
Status make_tables(Database& database);

/// Adds an event to a scope ("room:CODE", "device:ID") and tells those who wait for it.
/// `recipient`: the only device that may read it, or empty. The last 1,000 of a scope are kept.
Status add_event(Connection& connection, const std::string& scope, const std::string& kind,
                 const std::string& sender, const std::string& recipient, const Json& data);
/// Events of a scope after number `after` that `reader` may see, at most 100: {"events": […],
/// "next": N, "missed": true if some are gone}. 204 if there are none.
Result<Response> read_events(Connection& connection, const std::string& scope, int64_t after,
                             const std::string& reader);

/// The sender of a token, or nothing. Error: kIo.
Result<std::optional<Caller>> find_caller(Core& core, const std::string& authorization);
/// What was last heard of a device: from memory, or what the store has.
Sighting last_sighting(const Core& core, const std::string& device, int64_t stored_seen,
                       const std::string& stored_report);

// Handlers, one file for each topic.
Response challenge(Call& call);
Response register_device(Call& call);
Response heartbeat(Call& call);
Response list_devices(Call& call);
Response show_device(Call& call);
Response change_settings(Call& call);
Response remove_device(Call& call);
Response device_events(Call& call);

Response create_room(Call& call);
Response list_rooms(Call& call);
Response show_room(Call& call);
Response close_room(Call& call);
Response leave_room(Call& call);
Response place_member(Call& call);
Response choose_host(Call& call);
Response take_turn(Call& call);
Response end_turn(Call& call);
Response room_events(Call& call);
Response publish(Call& call);
Response join_room(Call& call);
Response answer_lobby(Call& call);
Response relay_pair(Call& call);

Response add_job(Call& call);
Response lease_job(Call& call);
Response show_job(Call& call);
Response renew_job(Call& call);
Response finish_job(Call& call);
Response cancel_job(Call& call);

Response put_file(Call& call);
Response get_file(Call& call);
Response remove_file(Call& call);

Response create_organization(Call& call);
Response show_organization(Call& call);
Response add_member(Call& call);
Response remove_member(Call& call);
Response add_key(Call& call);
Response remove_key(Call& call);

Response list_models(Call& call);
Response model_file(Call& call);

Response status_page(Call& call);
Response health(Call& call);
Response metrics(Call& call);

/// What runs beside requests: expires leases, files, challenges and old rooms, writes sightings.
/// Errors are the store's.
Status flush_presence(Core& core);
Status expire_jobs(Core& core);
Status remove_old(Core& core);

}  // namespace tandem::hub
