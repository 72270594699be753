// Home: the device's identity and what it knows of hubs and rooms, on disk.
//
//   hubs.json = {"HOST:PORT": {"fingerprint": …, "token": …, "rooms": {CODE: {"key": …, "pass":
//   …}}}}
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hub/client.h"
#include "hub/secret.h"

namespace tandem::hub {
namespace {

constexpr uint64_t kMaxFile = 4 << 20;

bool this_machine(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string value_of(const Json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

const Json& entry_of(const Json& hubs, const HubAddress& hub) {
  static const Json none = Json::object();
  const auto found = hubs.find(hub.authority());
  return found == hubs.end() ? none : *found;
}

}  // namespace

std::filesystem::path Home::usual_folder() {
  for (const auto& [name, below] :
       {std::pair("TANDEM_HOME", ""), std::pair("XDG_DATA_HOME", "tandem"),
        std::pair("HOME", ".local/share/tandem")}) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    if (value == nullptr || *value == '\0') continue;
    const std::filesystem::path folder = value;
    return *below == '\0' ? folder : folder / below;
  }
  return ".tandem";
}

Result<Home> Home::open(const std::filesystem::path& folder) {
  TANDEM_ASSIGN(Identity identity, Identity::open(folder));
  return Home(folder, std::move(identity));
}

Result<Json> Home::read() const {
  const auto path = folder_ / "hubs.json";
  auto text = read_small_file(path, kMaxFile, true);
  if (!text.ok() && text.error().kind == ErrorKind::kNotFound) return Json(Json::object());
  if (!text.ok()) return text.error();
  Json hubs = Json::parse(*text, nullptr, false);
  if (!hubs.is_object()) return invalid(path.string() + ": expected a JSON object");
  return hubs;
}

Status Home::locked(const std::function<Status()>& work) const {
  const auto path = folder_ / "hubs.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Error{ErrorKind::kIo, path.string() + ": " + std::strerror(errno)};
  ::flock(fd, LOCK_EX);
  Status status = work();
  ::close(fd);
  return status;
}

Status Home::change(const std::function<void(Json&)>& edit) const {
  TANDEM_ASSIGN(Json hubs, read());
  edit(hubs);
  return write_private_file(folder_ / "hubs.json", hubs.dump(2) + "\n");
}

Result<std::vector<HubAddress>> Home::hubs() const {
  TANDEM_ASSIGN(const Json hubs, read());
  std::vector<HubAddress> list;
  for (const auto& [name, entry] : hubs.items()) {
    auto address = parse_hub(name);
    if (!address.ok()) continue;
    address->fingerprint = value_of(entry, "fingerprint");
    list.push_back(std::move(*address));
  }
  return list;
}

Result<Client> Home::connect(HubAddress hub, const std::string& name,
                             const std::string& organization_key) {
  std::optional<Client> client;
  // Under the lock: registering twice at a time would leave one of the two with a void token.
  const Status status = locked([&]() -> Status {
    TANDEM_ASSIGN(const Json hubs, read());
    const Json& entry = entry_of(hubs, hub);
    if (hub.fingerprint.empty()) hub.fingerprint = value_of(entry, "fingerprint");
    const bool first = hub.fingerprint.empty() && this_machine(hub.host);
    client.emplace(hub, first ? Trust::kAny : Trust::kNamed, value_of(entry, "token"));
    if (!value_of(entry, "token").empty() && organization_key.empty()) {
      const auto self = client->device("me");
      if (!self.ok() && client->status() != 401) return self.error();
      if (self.ok() && value_of(*self, "certificate") == identity_.fingerprint()) return {};
    }
    client->use_token("");
    TANDEM_ASSIGN(const std::string token,
                  client->register_device(identity_, name, "computer", organization_key));
    if (first) hub.fingerprint = client->fingerprint();
    client.emplace(hub, Trust::kNamed, token);
    return change([&](Json& all) {
      Json& one = all[hub.authority()];
      one["token"] = token;
      one["fingerprint"] = hub.fingerprint;
    });
  });
  if (!status.ok()) return status.error();
  return std::move(*client);
}

Status Home::remember_room(const HubAddress& hub, const std::string& code, const Room& room) {
  return locked([&] {
    return change([&](Json& all) {
      all[hub.authority()]["rooms"][code] = {{"key", base64url(room.key)}, {"pass", room.pass}};
    });
  });
}

Result<Home::Room> Home::room(const HubAddress& hub, const std::string& code) const {
  TANDEM_ASSIGN(const Json hubs, read());
  const Json& entry = entry_of(hubs, hub);
  Room room;
  if (!entry.contains("rooms") || !entry["rooms"].is_object() || !entry["rooms"].contains(code)) {
    return room;
  }
  const Json& known = entry["rooms"][code];
  room.key = from_base64url(value_of(known, "key")).value_or("");
  room.pass = value_of(known, "pass");
  return room;
}

}  // namespace tandem::hub
