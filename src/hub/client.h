// A hub's client: what devices, hosts and the command line say to it. docs/api.md has the requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/http_client.h"
#include "hub/identity.h"
#include "hub/link.h"

namespace tandem::hub {

using Json = nlohmann::json;

/// What joining led to.
struct Joined {        // NOLINT(bugprone-exception-escape): of the JSON library's own checks
  bool in = false;     ///< false: in the lobby; ask again with `wait`
  std::string pass;    ///< given once to a device that came through the lobby: keep it
  std::string sealed;  ///< what the host sent along when it allowed the device; or empty
  Json room;           ///< null while in the lobby
};

/// Blocking calls over one connection; one thread at a time (a thread that waits for events needs a
/// client of its own). Errors: kPeer (the hub can't be reached, or refuses: 401, 403), kNotFound
/// (404), kInvalid (400, 413, …), kCancelled (409: too late, or a stale lease), kMemory (429: too
/// often; see retry_after()), kIo (5xx). Messages are the hub's.
class Client {
 public:
  Client(HubAddress hub, Trust trust, std::string token)
      : http_(std::move(hub), trust), token_(std::move(token)) {}

  /// Makes the device known and takes its token from then on. `organization_key`: an API key, puts
  /// the device into that organization; or empty. Returns the token.
  Result<std::string> register_device(const Identity& identity, const std::string& name,
                                      const std::string& kind, const std::string& organization_key);
  /// Every 15 s. `report`: what the device says of itself, docs/api.md. Returns now, settings and
  /// settings_version.
  Result<Json> heartbeat(const Json& report);
  Result<Json> devices();
  /// `device`: an id, or "me".
  Result<Json> device(const std::string& device);
  Result<Json> change_settings(const std::string& device, const Json& settings);
  Status remove_device(const std::string& device);
  /// Events of this device after number `after`; waits up to `wait_s` seconds (60 at most) for one.
  /// An object with events (perhaps none), next and missed.
  Result<Json> device_events(int64_t after, int wait_s);

  /// A room with a new key, which is returned beside the room in `key`.
  Result<Json> create_room(const Json& spec, std::string& key);
  /// Joins by the link's key, else by `pass`, else asks in the lobby and waits up to `wait_s`.
  Result<Joined> join(const RoomLink& link, const Identity& identity, const std::string& role,
                      const std::string& pass, int wait_s);
  Result<Json> rooms();
  Result<Json> room(const std::string& code);
  Status close_room(const std::string& code);
  /// `device`: "me", or one that the host sends away.
  Status leave_room(const std::string& code, const std::string& device);
  Status answer_lobby(const std::string& code, const std::string& device, bool allow,
                      const std::string& sealed);
  /// Tells all members what a device does: {"layers": "0-5"}, {"why": "too small"}. Host only.
  Status place(const std::string& code, const std::string& device, const Json& placement);
  /// Asks for another host once the present one is silent; returns the host then.
  Result<std::string> choose_host(const std::string& code);
  /// It is this process's turn to be the room's host, for 45 s from each call. `token`: 0 at first,
  /// then what the first call gave. kCancelled: it is another one's turn.
  Result<int64_t> take_turn(const std::string& code, int64_t token);
  Status end_turn(const std::string& code, int64_t token);
  Result<Json> room_events(const std::string& code, int64_t after, int wait_s);
  /// `to`: the only member that may read it; or empty.
  Status publish(const std::string& code, const std::string& kind, const std::string& to,
                 const Json& data);

  /// Returns the job's id. `kind`: "probe" or "stage".
  Result<std::string> add_job(const std::string& code, const std::string& device,
                              const std::string& kind, const Json& data);
  /// The next job of this device, with its lease: job, kind, data, token, lease_until. Null if
  /// there is none; a device event "job_waits" says when to ask again.
  Result<Json> lease_job();
  Result<Json> job(const std::string& id);
  /// kCancelled: the lease is over; nothing that was done for it may be published.
  Status renew_job(const std::string& id, int64_t token);
  Status finish_job(const std::string& id, int64_t token, bool done, const Json& result);
  Status cancel_job(const std::string& id);

  Result<std::string> put_file(std::string bytes);
  Result<std::string> get_file(const std::string& id);

  Result<Json> models();
  /// Bytes [offset, offset + length) of a model's file; `etag` is checked if it is not empty and
  /// set otherwise. kCancelled: the file is another one by now.
  Result<std::string> model_range(const std::string& model, const std::string& file,
                                  uint64_t offset, uint64_t length, std::string& etag);
  /// SHA-256 of each 4 MiB of a file; waits until the hub has hashed it, up to `wait_s`.
  Result<std::vector<std::string>> model_chunks(const std::string& model, const std::string& file,
                                                int wait_s);

  /// A stream of bytes to another member, once that one asks for the same within 30 s. The bytes
  /// pass the hub: seal them. `early` has what came already.
  Result<Channel> relay(const std::string& code, const std::string& peer,
                        const std::string& channel, std::string& early,
                        std::chrono::milliseconds timeout = std::chrono::seconds(45));

  /// Any request with JSON; null for an empty answer.
  Result<Json> call(const std::string& method, const std::string& target, const Json& body,
                    int wait_s = 0);
  /// Once `stop` is set, calls end with kCancelled. It must outlive the client.
  void stop_on(const std::atomic<bool>* stop) {
    stop_ = stop;
    http_.stop_on(stop);
  }
  /// How long an answer may take, connecting included, beyond what the hub is asked to wait for; at
  /// first 30 s.
  void be_patient_for(std::chrono::milliseconds patience) { patience_ = patience; }
  void use_token(std::string token) { token_ = std::move(token); }
  [[nodiscard]] const std::string& token() const { return token_; }
  [[nodiscard]] const HubAddress& hub() const { return http_.hub(); }
  [[nodiscard]] const std::string& fingerprint() const { return http_.fingerprint(); }
  /// Of the last answer; 0 if there was none.
  [[nodiscard]] int status() const { return status_; }
  /// Seconds that the last answer asked to wait; 0 if it did not.
  [[nodiscard]] int retry_after() const { return retry_after_; }

 private:
  Result<HttpAnswer> send(HttpRequest request);
  Status order(const std::string& method, const std::string& target, const Json& body);

  HttpClient http_;
  std::string token_;
  std::chrono::milliseconds patience_{30000};
  int status_ = 0;
  int retry_after_ = 0;
  const std::atomic<bool>* stop_ = nullptr;
};

/// What this machine's user knows: the device's identity, its hubs and their tokens, its rooms'
/// keys and passes, in files that others can't read. Any thread and any number of processes. A
/// folder is a device: several workers on one machine need a folder each.
class Home {
 public:
  /// $TANDEM_HOME, or tandem in $XDG_DATA_HOME, or ~/.local/share/tandem.
  static std::filesystem::path usual_folder();
  /// Makes the folder and the identity at first. Errors: kIo, kInvalid.
  static Result<Home> open(const std::filesystem::path& folder);

  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// A client with this device's token: registers the device at a hub that does not know it. A hub
  /// on this machine itself (127.0.0.1, ::1, localhost) that is given without fingerprint is
  /// trusted at first, and has to show the same certificate from then on.
  Result<Client> connect(HubAddress hub, const std::string& name,
                         const std::string& organization_key = "");
  /// Hubs known, "HOST:PORT" each.
  [[nodiscard]] Result<std::vector<HubAddress>> hubs() const;

  struct Room {
    std::string key;   ///< 16 bytes, or empty
    std::string pass;  ///< or empty
  };
  [[nodiscard]] Status remember_room(const HubAddress& hub, const std::string& code,
                                     const Room& room);
  [[nodiscard]] Result<Room> room(const HubAddress& hub, const std::string& code) const;

 private:
  Home(std::filesystem::path folder, Identity identity)
      : folder_(std::move(folder)), identity_(std::move(identity)) {}
  [[nodiscard]] Result<Json> read() const;
  /// Runs `work` while no other process does.
  [[nodiscard]] Status locked(const std::function<Status()>& work) const;
  /// Reads, changes and writes the file of hubs; within locked().
  [[nodiscard]] Status change(const std::function<void(Json&)>& edit) const;

  std::filesystem::path folder_;
  Identity identity_;
};

}  // namespace tandem::hub
