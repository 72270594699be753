#include "hub/server/hub.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <thread>

#include "base/hash.h"
#include "hub/identity.h"
#include "hub/mdns.h"
#include "hub/server/core.h"
#include "hub/server/signals.h"

namespace tandem::hub {
namespace {

enum class Who : uint8_t {
  kAnyone,
  kDevice,  ///< a device's token
  kMember,  ///< an organization's API key
  kEither,
  kOptional,  ///< anyone, and the caller counts if there is one
  kIfValid,   ///< anyone, but a token has to be good if there is one
};

struct Route {  // NOLINT(clang-analyzer-optin.performance.Padding): read as a table
  const char* method;
  const char* path;  ///< "*" stands for any segment
  Who who;
  Response (*handler)(Call&);
  bool quick = false;
};

constexpr Route kRoutes[] = {
    {"POST", "v1/heartbeat", Who::kDevice, heartbeat, true},
    {"POST", "v1/challenge", Who::kOptional, challenge},
    {"POST", "v1/devices", Who::kIfValid, register_device},
    {"GET", "v1/devices", Who::kEither, list_devices},
    {"GET", "v1/devices/me/events", Who::kDevice, device_events},
    {"GET", "v1/devices/*", Who::kEither, show_device},
    {"PUT", "v1/devices/*/settings", Who::kEither, change_settings},
    {"DELETE", "v1/devices/*", Who::kEither, remove_device},
    {"POST", "v1/rooms", Who::kDevice, create_room},
    {"GET", "v1/rooms", Who::kDevice, list_rooms},
    {"GET", "v1/rooms/*", Who::kDevice, show_room},
    {"DELETE", "v1/rooms/*", Who::kDevice, close_room},
    {"POST", "v1/rooms/*/join", Who::kDevice, join_room},
    {"POST", "v1/rooms/*/host", Who::kDevice, choose_host},
    {"POST", "v1/rooms/*/turn", Who::kDevice, take_turn},
    {"DELETE", "v1/rooms/*/turn/*", Who::kDevice, end_turn},
    {"GET", "v1/rooms/*/events", Who::kDevice, room_events},
    {"POST", "v1/rooms/*/events", Who::kDevice, publish},
    {"POST", "v1/rooms/*/lobby/*", Who::kDevice, answer_lobby},
    {"PUT", "v1/rooms/*/members/*", Who::kDevice, place_member},
    {"DELETE", "v1/rooms/*/members/*", Who::kDevice, leave_room},
    {"POST", "v1/rooms/*/jobs", Who::kDevice, add_job},
    {"POST", "v1/jobs/lease", Who::kDevice, lease_job},
    {"GET", "v1/jobs/*", Who::kDevice, show_job},
    {"DELETE", "v1/jobs/*", Who::kDevice, cancel_job},
    {"POST", "v1/jobs/*/renew", Who::kDevice, renew_job},
    {"POST", "v1/jobs/*/finish", Who::kDevice, finish_job},
    {"POST", "v1/files", Who::kEither, put_file},
    {"GET", "v1/files/*", Who::kEither, get_file},
    {"DELETE", "v1/files/*", Who::kEither, remove_file},
    {"POST", "v1/organizations", Who::kAnyone, create_organization},
    {"GET", "v1/organization", Who::kEither, show_organization},
    {"POST", "v1/organization/members", Who::kMember, add_member},
    {"DELETE", "v1/organization/members/*", Who::kMember, remove_member},
    {"POST", "v1/organization/keys", Who::kMember, add_key},
    {"DELETE", "v1/organization/keys/*", Who::kMember, remove_key},
    {"GET", "v1/models", Who::kEither, list_models},
    {"GET", "v1/models/*/*", Who::kEither, model_file},
    {"GET", "", Who::kAnyone, status_page},
    {"GET", "health", Who::kAnyone, health},
    {"GET", "metrics", Who::kAnyone, metrics},
};

bool matches(const char* pattern, const std::vector<std::string>& path) {
  std::string_view rest = pattern;
  for (const std::string& segment : path) {
    if (rest.empty()) return false;
    const auto end = std::min(rest.find('/'), rest.size());
    const std::string_view expected = rest.substr(0, end);
    if (expected != "*" && expected != segment) return false;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return rest.empty();
}

const Route* find_route(const Request& request, bool& other_method) {
  other_method = false;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, request.path)) continue;
    if (request.method == route.method) return &route;
    other_method = true;
  }
  return nullptr;
}

Result<Certificate> open_certificate(const HubOptions& options) {
  constexpr uint64_t kMost = 1 << 20;
  Certificate certificate;
  if (options.tls == "self") {
    const auto key_path = options.data / "hub-key.pem";
    const auto certificate_path = options.data / "hub-certificate.pem";
    auto key = read_small_file(key_path, kMost, true);
    if (!key.ok() && key.error().kind != ErrorKind::kNotFound) return key.error();
    if (!key.ok()) {
      certificate = make_hub_certificate();
      TANDEM_TRY(write_private_file(certificate_path, certificate.certificate_pem));
      TANDEM_TRY(write_private_file(key_path, certificate.key_pem));
      return certificate;
    }
    certificate.key_pem = std::move(*key);
    TANDEM_ASSIGN(certificate.certificate_pem, read_small_file(certificate_path, kMost, false));
    return certificate;
  }
  const auto comma = options.tls.find(',');
  if (comma == std::string::npos) {
    return invalid("--tls is '" + options.tls + "'; expected 'self' or CERT,KEY: two PEM files");
  }
  TANDEM_ASSIGN(certificate.certificate_pem,
                read_small_file(options.tls.substr(0, comma), kMost, false));
  TANDEM_ASSIGN(certificate.key_pem, read_small_file(options.tls.substr(comma + 1), kMost, true));
  return certificate;
}

std::string machine_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// The first IPv4 address of an interface that is up and no loopback; else 127.0.0.1.
std::string reachable_address() {
  std::string found = "127.0.0.1";
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) {
      found = text.data();
      break;
    }
  }
  ::freeifaddrs(list);
  return found;
}

}  // namespace

struct Hub::State final : App {
  explicit State(HubOptions given) : core(std::move(given)) {}
  ~State() override {
    server.reset();
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (keeper.joinable()) keeper.join();
    if (core.database != nullptr) (void)flush_presence(core).ok();
    core.database.reset();  // its listener uses what follows
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] bool is_quick(const Request& request) const override {
    bool other = false;
    const Route* route = find_route(request, other);
    // A token that is not in the cache needs the store.
    return route != nullptr && route->quick && request.body.size() <= 4096 &&
           core.callers.find(hash_of(request)).has_value();
  }
  [[nodiscard]] uint64_t body_limit(const Request& request) const override {
    const bool file = request.method == "POST" && request.path.size() == 2 &&
                      request.path[0] == "v1" && request.path[1] == "files";
    return file ? kMaxFileBytes : kMaxBodyBytes;
  }
  Response handle(const Request& request) override {
    bool other_method = false;
    const Route* route = find_route(request, other_method);
    if (route == nullptr) {
      return other_method ? refusal(405, "invalid", "that method does nothing here")
                          : refusal(404, "not_found", "there is nothing of that path");
    }
    return run(request, route->who, route->handler);
  }
  bool knows(const Request& request) override {
    if (core.callers.find(hash_of(request)).has_value()) return true;
    if (request.authorization.empty()) return false;
    if (!core.callers.was_good(hash_of(request)) && core.strangers.take(request.address) > 0) {
      return false;
    }
    const auto caller = find_caller(core, request.authorization);
    return caller.ok() && caller->has_value();
  }
  Response relay(const Request& request) override {
    bool other_method = false;
    const bool named = request.method == "GET" && request.path.size() == 4 &&
                       matches("v1/rooms/*/relay", request.path);
    if (!named)
      return find_route(request, other_method) == nullptr
                 ? refusal(404, "not_found", "there is nothing of that path")
                 : refusal(400, "invalid", "only a room's relay is upgraded");
    return run(request, Who::kDevice, relay_pair);
  }

  Response run(const Request& request, Who who, Response (*handler)(Call&));
  void keep();
  void announce();
  void heard(const std::string& subject);
  static std::string hash_of(const Request& request);

  Core core;
  std::unique_ptr<Server> server;
  std::unique_ptr<MdnsResponder> responder;
  std::string fingerprint;  ///< if the certificate is the hub's own
  std::mutex mutex;         ///< guards stop
  std::condition_variable wake;
  bool stop = false;
  std::thread keeper;
};

std::string Hub::State::hash_of(const Request& request) {
  constexpr size_t kScheme = 7;  // "Bearer "
  if (request.authorization.size() < kScheme) return "";
  return hex(sha256(std::string_view(request.authorization).substr(kScheme)));
}

Response Hub::State::run(const Request& request, Who who, Response (*handler)(Call&)) {
  Call call{core, request, nullptr, {}};
  // Who is known costs the store nothing; all others of an address share what it may ask.
  const bool known = who != Who::kAnyone && core.callers.was_good(hash_of(request));
  if (!known) {
    const int64_t wait = core.strangers.wait(request.address);
    if (wait > 0) return too_many("too many requests without a token from this address", wait);
  }
  if (who != Who::kAnyone && !request.authorization.empty()) {
    const auto caller = find_caller(core, request.authorization);
    if (!caller.ok()) {
      core.log(caller.error().message);
      return refusal(503, "io", "the hub's store does not answer; try again");
    }
    if (caller->has_value()) call.caller = **caller;
  }
  const bool device = !call.caller.device.empty();
  const bool member = !call.caller.member.empty();
  if (!device && !member) core.strangers.count(request.address);
  if (who == Who::kIfValid && !device && !member && !request.authorization.empty()) {
    return refusal(401, "unauthorized", "the organization's key is not known here");
  }
  if ((who == Who::kDevice && !device) || (who == Who::kMember && !member) ||
      (who == Who::kEither && !device && !member)) {
    Response response = refusal(401, "unauthorized",
                                who == Who::kMember ? "an organization's key is needed"
                                                    : "a device's token is needed; register first");
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (device || member) {
    const int64_t wait = core.requests.take(device ? call.caller.device : call.caller.member);
    if (wait > 0) return too_many("too many requests of one device", wait);
  }
  if (!request.body.empty()) call.body = parse_json(request.body);
  Response response = handler(call);
  if (response.status == 429) {
    core.options.events.write("limited", device ? call.caller.device : request.address,
                              {{"path", request.path.size() > 1 ? request.path[1] : ""}});
  } else if (response.status == 403) {
    core.options.events.write("forbidden", device ? call.caller.device : request.address,
                              {{"path", request.path.size() > 1 ? request.path[1] : ""}});
  }
  return response;
}

void Hub::State::heard(const std::string& subject) {
  if (subject.empty()) core.callers.clear();
  for (const std::string_view kind : {"device:", "member:"}) {
    if (subject.starts_with(kind)) core.callers.forget(subject.substr(kind.size()));
  }
  core.signals->notify(subject);
}

void Hub::State::keep() {
  using std::chrono::milliseconds;
  constexpr int64_t kStepMs = 500;
  constexpr int64_t kOldMs = 60000;
  int64_t last_flush = now_ms();
  int64_t last_removal = 0;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, milliseconds(kStepMs), [&] { return stop; })) {
    lock.unlock();
    const int64_t now = now_ms();
    const auto report = [&](const Status& status) {
      if (!status.ok()) core.log(status.error().message);
    };
    report(expire_jobs(core));
    if (now - last_flush >= core.options.flush_ms) {
      last_flush = now;
      report(flush_presence(core));
      core.presence.forget_older(now - kOldMs);
    }
    if (now - last_removal >= kOldMs) {
      last_removal = now;
      report(remove_old(core));
    }
    lock.lock();
  }
}

void Hub::State::announce() {
  const std::string listening = server->host();
  const bool all = listening == "0.0.0.0" || listening == "::";
  const std::string address = all ? reachable_address() : listening;
  in_addr bytes{};
  if (::inet_pton(AF_INET, address.c_str(), &bytes) != 1) return;  // IPv6 only: not announced
  MdnsHub hub;
  for (const char c : core.machine.substr(0, core.machine.find('.'))) {
    hub.instance += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  }
  if (hub.instance.empty()) hub.instance = "tandem-hub";
  hub.address.assign(reinterpret_cast<const char*>(&bytes.s_addr), 4);
  hub.port = server->port();
  hub.fingerprint = fingerprint;
  auto started = MdnsResponder::start(std::move(hub), all ? "" : address);
  if (!started.ok()) {
    return core.log(started.error().message + "; the hub can't be found on the local network");
  }
  responder = std::move(*started);
}

Hub::Hub(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hub::~Hub() = default;

Result<std::unique_ptr<Hub>> Hub::start(HubOptions options) {
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets without MSG_NOSIGNAL
  TANDEM_TRY(make_private_folder(options.data));
  TANDEM_ASSIGN(Certificate certificate, open_certificate(options));
  auto state = std::make_unique<State>(std::move(options));
  Core& core = state->core;
  const HubOptions& given = core.options;
  core.machine = machine_name();
  if (given.store.empty()) {
    TANDEM_ASSIGN(core.database, open_sqlite((given.data / "hub.sqlite").string()));
  } else if (given.store.starts_with("postgresql://") || given.store.starts_with("postgres://")) {
    TANDEM_ASSIGN(core.database, open_postgres(given.store));
  } else {
    return invalid("--store has to begin with postgresql://");
  }
  TANDEM_TRY(make_tables(*core.database));
  if (!given.models.empty()) {
    TANDEM_ASSIGN(core.models, ModelServer::open(given.models));
  }
  State& running = *state;
  core.database->listen([&running](const std::string& subject) { running.heard(subject); });
  ServerOptions server;
  server.listen = given.listen;
  server.certificate_pem = certificate.certificate_pem;
  server.key_pem = certificate.key_pem;
  server.body_memory = given.body_memory;
  server.connections = given.connections;
  server.connections_per_address = given.connections_per_address;
  TANDEM_ASSIGN(state->server, Server::start(server, *state, *core.signals));
  core.figures = &state->server->figures();
  if (given.tls == "self") {
    TANDEM_ASSIGN(state->fingerprint, certificate_fingerprint(certificate.certificate_pem));
  }
  if (given.mdns) running.announce();
  state->keeper = std::thread([&running] { running.keep(); });
  return std::unique_ptr<Hub>(new Hub(std::move(state)));
}

HubAddress Hub::address() const {
  HubAddress address;
  address.host = state_->server->host();
  if (address.host == "0.0.0.0" || address.host == "::") address.host = reachable_address();
  address.port = state_->server->port();
  address.fingerprint = state_->fingerprint;
  return address;
}

const char* Hub::store_name() const {
  return state_->core.database->name();
}

}  // namespace tandem::hub
