// The checks of `tandem doctor` that talk to others.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/doctor_checks.h"
#include "hub/client.h"
#include "hub/mdns.h"
#include "ring/host_peer.h"
#include "wire/tcp.h"

namespace tandem::cli {
namespace {

using State = Check::State;
using Json = nlohmann::json;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// What helps with an error of reaching somebody.
std::string advice_for(const std::string& message) {
  const auto has = [&](const char* text) { return message.find(text) != std::string::npos; };
  if (has("another certificate")) {
    return "ask its owner whether it changed: if so take the new address or link, if not somebody "
           "stands in between";
  }
  if (has("nobody vouches")) return "give its whole address, with #f=FINGERPRINT";
  if (has("refused") && has("connect")) {
    return "nothing listens there: is it started, with --listen on an address that others reach?";
  }
  if (has("timed out") || has("in time")) return "a firewall, another network, or a wrong address";
  if (has("no such address") || has("unknown")) return "check the name";
  if (has("version")) return "run the same version of Tandem on all devices";
  if (has("without TLS") || has("room's key") || has("proof")) {
    return "all devices need the same key: --key FILE with the same 32 digits";
  }
  return "see docs/operations.md";
}

/// The hub's address with the fingerprint that is known of it, without changing anything.
hub::HubAddress with_known_fingerprint(hub::HubAddress address,
                                       const std::filesystem::path& folder) {
  std::error_code error;
  if (!address.fingerprint.empty() || !std::filesystem::exists(folder / "hubs.json", error)) {
    return address;
  }
  const auto home = hub::Home::open(folder);
  if (!home.ok()) return address;
  const auto hubs = home->hubs();
  if (!hubs.ok()) return address;
  for (const hub::HubAddress& known : *hubs) {
    if (known.authority() == address.authority()) address.fingerprint = known.fingerprint;
  }
  return address;
}

}  // namespace

Check check_listen(const std::string& listen, bool asked) {
  const std::string name = "port " + listen;
  const auto address = wire::parse_address(listen);
  if (!address.ok()) return {name, State::kProblem, address.error().message, ""};
  const auto listener = wire::Listener::open(*address);
  if (listener.ok()) return {name, State::kOk, "free to listen at", ""};
  return {name, asked ? State::kProblem : State::kWarning, listener.error().message,
          "if that is a worker already running, fine; else give --listen another port"};
}

std::vector<Check> check_worker(const ring::RingWorker& worker,
                                const std::shared_ptr<const wire::Tls>& tls) {
  const std::string name = "worker " + worker.address;
  ring::Peer peer(worker);
  ring::PeerModel model;
  model.tls = tls;
  model.progress = [](const ring::LoadEvent&) {};
  const auto start = wire::Clock::now();
  const Status reached = peer.connect(model);
  const std::chrono::duration<double, std::milli> took = wire::Clock::now() - start;
  if (!reached.ok()) {
    return {{name, State::kProblem, reached.error().message, advice_for(reached.error().message)}};
  }
  (void)peer.control->send({.type = wire::Type::kBye}).ok();
  const wire::Welcome& welcome = peer.welcome;
  std::vector<Check> checks{{name, State::kOk,
                             "answers in " + number(took.count(), 1) + " ms, " +
                                 std::to_string(welcome.threads) + " threads, " +
                                 bytes_text(welcome.memory_free) + " free, " + welcome.software +
                                 (peer.code.empty() ? "" : ", code " + peer.code),
                             ""}};
  if (tls == nullptr && !worker.address.starts_with("127.") &&
      !worker.address.starts_with("localhost")) {
    checks.push_back({name + " encryption", State::kWarning, "none",
                      "give all devices a --key: hidden states can be turned back into text"});
  }
  if (welcome.software != ring::software_version()) {
    checks.push_back({name + " version", State::kWarning,
                      welcome.software + " there, " + ring::software_version() + " here",
                      "protocol and arithmetic agree, so it works; update when you can"});
  }
  return checks;
}

std::vector<Check> check_hub(const std::string& address, const std::filesystem::path& home) {
  auto parsed = hub::parse_hub(address);
  if (!parsed.ok()) return {{"hub", State::kProblem, parsed.error().message, ""}};
  const hub::HubAddress hub = with_known_fingerprint(*parsed, home);
  const std::string name = "hub " + hub.authority();
  const bool here = hub.host == "127.0.0.1" || hub.host == "::1" || hub.host == "localhost";
  const bool first = here && hub.fingerprint.empty();
  hub::Client client(hub, first ? hub::Trust::kAny : hub::Trust::kNamed, "");
  const int64_t before = now_ms();
  const auto health = client.call("GET", "/health", nullptr);
  const int64_t after = now_ms();
  if (!health.ok()) {
    return {{name, State::kProblem, health.error().message, advice_for(health.error().message)}};
  }
  std::vector<Check> checks{{name, State::kOk,
                             "answers in " + std::to_string(after - before) + " ms, certificate " +
                                 client.fingerprint().substr(0, 16) + "…",
                             ""}};
  const Json& answer = *health;
  const auto number_of = [&](const char* key) -> std::optional<int64_t> {
    if (!answer.contains(key) || !answer[key].is_number_integer()) return std::nullopt;
    return answer[key].get<int64_t>();
  };
  const auto api = number_of("api");
  if (api.value_or(0) != hub::kHubApi) {
    checks.push_back({"hub version", State::kProblem,
                      "it speaks version " + std::to_string(api.value_or(0)) + ", this is " +
                          std::to_string(hub::kHubApi),
                      "update the older one"});
  }
  if (const auto its = number_of("now")) {
    const int64_t off = *its - (before + after) / 2;
    const std::string text = number(static_cast<double>(off) / 1000, 1) + " s";
    constexpr int64_t kNear = 5000;
    constexpr int64_t kFar = 60000;
    if (std::abs(off) > kNear) {
      checks.push_back({"hub's clock", std::abs(off) > kFar ? State::kProblem : State::kWarning,
                        "the hub's is " + text + " ahead of this one",
                        "set the clocks (NTP): lent hours and times of events go by them"});
    } else {
      checks.push_back({"hub's clock", State::kOk, text + " off the hub's", ""});
    }
  }
  return checks;
}

Check check_mdns() {
  const auto hubs = hub::find_hubs(std::chrono::milliseconds(1500));
  if (!hubs.ok()) {
    return {"local network", State::kWarning, hubs.error().message,
            "hubs are not found by themselves; give --hub"};
  }
  if (hubs->empty()) {
    return {"local network", State::kWarning, "no hub answers to multicast",
            "if one runs here, multicast (UDP 5353) is blocked or its --no-mdns is given; --hub "
            "works all the same"};
  }
  std::string found;
  for (const hub::HubAddress& one : *hubs) found += (found.empty() ? "" : ", ") + one.authority();
  return {"local network", State::kOk, "hubs heard: " + found, ""};
}

}  // namespace tandem::cli
