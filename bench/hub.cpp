// The hub under load: simulated devices over TLS connections that are kept, one heartbeat every
// 15 s each, and rooms whose members hear of each other's events. The hub is a process of its own.
//   hub_bench [DEVICES] [ROOMS] [SECONDS] [STORE]
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hub/http_client.h"
#include "hub/identity.h"
#include "hub/secret.h"
#include "hub/server/hub.h"

using namespace tandem;
using namespace tandem::hub;
namespace asio = boost::asio;
using asio::ip::tcp;
using Json = nlohmann::json;

namespace {

constexpr auto kBeat = std::chrono::seconds(15);
constexpr size_t kSetupAtOnce = 16;

/// One device's connection.
class Connection {
 public:
  Connection(asio::io_context& io, SSL_CTX* context) : socket_(io), ssl_(SSL_new(context)) {}
  ~Connection() { SSL_free(ssl_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  asio::awaitable<bool> open(tcp::endpoint hub) {
    const auto [error] = co_await socket_.async_connect(hub, asio::as_tuple(asio::use_awaitable));
    if (error) co_return false;
    socket_.set_option(tcp::no_delay(true));
    socket_.non_blocking(true);
    SSL_set_fd(ssl_, socket_.native_handle());
    for (;;) {
      const int result = SSL_connect(ssl_);
      if (result == 1) co_return true;
      const bool more = co_await ready(result);
      if (!more) co_return false;
    }
  }
  /// A request and its answer's body; null if it failed.
  asio::awaitable<Json> call(std::string method, std::string target, std::string body) {
    std::string text = method + " " + target + " HTTP/1.1\r\nHost: hub\r\n";
    if (!token.empty()) text += "Authorization: Bearer " + token + "\r\n";
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    for (std::string_view rest = text; !rest.empty();) {
      const int result = SSL_write(ssl_, rest.data(), static_cast<int>(rest.size()));
      if (result > 0) {
        rest.remove_prefix(static_cast<size_t>(result));
        continue;
      }
      const bool more = co_await ready(result);
      if (!more) co_return Json(nullptr);
    }
    std::string held;
    size_t end = std::string::npos;
    uint64_t length = 0;
    for (;;) {
      if (end == std::string::npos && (end = held.find("\r\n\r\n")) != std::string::npos) {
        end += 4;
        const auto header = parse_answer_header(std::string_view(held).substr(0, end));
        if (!header.ok() || header->status >= 400) {
          std::fprintf(stderr, "%s: %.200s\n", target.c_str(), held.c_str());
          co_return Json(nullptr);
        }
        const auto bytes = body_length(*header);
        length = bytes.ok() ? *bytes : 0;
      }
      if (end != std::string::npos && held.size() >= end + length) break;
      thread_local std::array<char, 16384> buffer;
      const int result = SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()));
      if (result > 0) {
        held.append(buffer.data(), static_cast<size_t>(result));
        continue;
      }
      const bool more = co_await ready(result);
      if (!more) co_return Json(nullptr);
    }
    if (length == 0) co_return Json::object();
    co_return Json::parse(std::string_view(held).substr(end), nullptr, false);
  }

  std::string token;

 private:
  asio::awaitable<bool> ready(int result) {
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) co_return false;
    const auto [failure] = co_await socket_.async_wait(
        error == SSL_ERROR_WANT_READ ? tcp::socket::wait_read : tcp::socket::wait_write,
        asio::as_tuple(asio::use_awaitable));
    co_return !failure;
  }
  tcp::socket socket_;
  SSL* ssl_;
};

struct Simulation {
  asio::io_context io;
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  tcp::endpoint hub;
  size_t devices = 0;
  size_t rooms = 0;
  std::chrono::steady_clock::time_point end;
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<std::string> codes;
  std::vector<std::string> keys;
  std::vector<double> beats_ms;
  std::vector<double> events_ms;
  size_t set_up = 0;
  size_t failed = 0;

  asio::awaitable<bool> prepare(size_t i);
  asio::awaitable<void> prepare_some(size_t first);
  asio::awaitable<void> beat(size_t i);
  asio::awaitable<void> listen(size_t room);
  asio::awaitable<void> publish(size_t room);
};

/// Registers a device; the first one of each room makes it, the next ones join.
asio::awaitable<bool> Simulation::prepare(size_t i) {
  auto& connection = *connections[i];
  const bool open = co_await connection.open(hub);
  if (!open) co_return false;
  const Identity identity = Identity::make();
  Json challenge = co_await connection.call("POST", "/v1/challenge", "{}");
  if (!challenge.is_object()) co_return false;
  const std::string nonce = challenge["nonce"].get<std::string>();
  const std::string certificate = identity.fingerprint();
  const std::string body =
      Json{{"name", "device " + std::to_string(i)},
           {"kind", "computer"},
           {"public_key", base64url(identity.public_key())},
           {"certificate", certificate},
           {"nonce", nonce},
           {"signature", base64url(identity.sign("tandem device " + nonce + " " + certificate))}}
          .dump();
  Json made = co_await connection.call("POST", "/v1/devices", body);
  if (!made.is_object()) co_return false;
  connection.token = made["token"].get<std::string>();
  const size_t room = i % rooms;
  if (i < rooms) {
    keys[room] = random_bytes(16);
    const Identity verifier = Identity::from_seed(admission_seed(keys[room]));
    const std::string spec =
        Json{{"verifier", base64url(verifier.public_key())}, {"spec", {{"model", "m"}}}}.dump();
    Json created = co_await connection.call("POST", "/v1/rooms", spec);
    if (!created.is_object()) co_return false;
    codes[room] = created["code"].get<std::string>();
  } else if (i < rooms * 5) {  // rooms of five; the other devices stand by
    Json again = co_await connection.call("POST", "/v1/challenge", "{}");
    if (!again.is_object()) co_return false;
    const std::string second = again["nonce"].get<std::string>();
    const Identity prover = Identity::from_seed(admission_seed(keys[room]));
    const std::string join = Json{
        {"role", "worker"},
        {"nonce", second},
        {"proof", base64url(prover.sign(
                      "tandem join " + codes[room] + " " + identity.device_id() + " " +
                      second))}}.dump();
    Json joined = co_await connection.call("POST", "/v1/rooms/" + codes[room] + "/join", join);
    if (!joined.is_object()) co_return false;
  }
  co_return true;
}

asio::awaitable<void> Simulation::prepare_some(size_t first) {
  for (size_t i = first; i < devices; i += kSetupAtOnce) {
    // Rooms are made before anybody joins them.
    while (i >= rooms && set_up < rooms) {
      asio::steady_timer timer(io, std::chrono::milliseconds(10));
      co_await timer.async_wait(asio::use_awaitable);
    }
    const bool ok = co_await prepare(i);
    ++set_up;
    if (!ok) ++failed;
  }
}

asio::awaitable<void> Simulation::beat(size_t i) {
  asio::steady_timer timer(io);
  // Devices come at random; here they are spread evenly over the 15 s.
  timer.expires_after(std::chrono::microseconds(kBeat) * i / devices);
  const std::string report =
      Json{{"memory", 8589934592}, {"free_memory", 4294967296}, {"battery", 80}, {"n", i}}.dump();
  for (;;) {
    co_await timer.async_wait(asio::use_awaitable);
    const auto begin = std::chrono::steady_clock::now();
    if (begin >= end) co_return;
    Json answer = co_await connections[i]->call("POST", "/v1/heartbeat", report);
    if (!answer.is_object()) {
      ++failed;
      co_return;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    beats_ms.push_back(took.count());
    timer.expires_at(begin + kBeat);
  }
}

/// The host of a room waits for events on a connection of its own.
asio::awaitable<void> Simulation::listen(size_t room) {
  Connection connection(io, context);
  const bool open = co_await connection.open(hub);
  if (!open) co_return;
  connection.token = connections[room]->token;
  int64_t after = 0;
  while (std::chrono::steady_clock::now() < end) {
    Json answer = co_await connection.call(
        "GET", "/v1/rooms/" + codes[room] + "/events?wait=10&after=" + std::to_string(after), "");
    if (!answer.is_object()) co_return;
    if (!answer.contains("events")) continue;
    after = answer["next"].get<int64_t>();
    const double now = std::chrono::duration<double, std::milli>(
                           std::chrono::steady_clock::now().time_since_epoch())
                           .count();
    for (const Json& event : answer["events"]) {
      if (event["kind"] == "message:time") events_ms.push_back(now - event["data"].get<double>());
    }
  }
}

asio::awaitable<void> Simulation::publish(size_t room) {
  Connection connection(io, context);
  const bool open = co_await connection.open(hub);
  if (!open) co_return;
  connection.token = connections[room]->token;
  asio::steady_timer timer(io);
  timer.expires_after(std::chrono::milliseconds(5000 * room / rooms));
  for (;;) {
    co_await timer.async_wait(asio::use_awaitable);
    if (std::chrono::steady_clock::now() >= end) co_return;
    const double now = std::chrono::duration<double, std::milli>(
                           std::chrono::steady_clock::now().time_since_epoch())
                           .count();
    const std::string body = Json{{"kind", "time"}, {"data", now}}.dump();
    Json answer = co_await connection.call("POST", "/v1/rooms/" + codes[room] + "/events", body);
    if (!answer.is_object()) {
      ++failed;
      co_return;
    }
    timer.expires_after(std::chrono::seconds(5));
  }
}

void raise_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

double megabytes(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field))
      return std::strtod(line.c_str() + field.size() + 1, nullptr) / 1024;
  }
  return 0;
}

double cpu_seconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15 && file >> word; ++i) {
    if (i >= 14) ticks += std::strtod(word.c_str(), nullptr);
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void show(const char* what, std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values.empty()
               ? 0.0
               : values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
  };
  std::printf("%s: %zu, p50 %.2f ms, p99 %.2f ms, most %.2f ms\n", what, values.size(), at(0.5),
              at(0.99), at(1));
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): out of memory ends it
int main(int argc, char** argv) {
  const auto argument = [&](int i, size_t otherwise) {
    return argc > i ? static_cast<size_t>(std::strtoull(argv[i], nullptr, 10)) : otherwise;
  };
  const size_t devices = std::max<size_t>(argument(1, 10000), 1);
  const size_t rooms = std::clamp<size_t>(argument(2, 200), 1, devices);
  const auto seconds = std::chrono::seconds(argument(3, 45));
  raise_descriptors();
  std::string folder = (std::filesystem::temp_directory_path() / "hub-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  std::array<int, 2> ports{};
  if (::pipe(ports.data()) != 0) return 1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    HubOptions options;
    options.listen = "127.0.0.1:0";
    options.data = folder;
    if (argc > 4) options.store = argv[4];
    options.connections = options.connections_per_address = devices + 3 * rooms + 16;
    options.registrations_per_minute = options.guesses_per_minute = 1e9;
    options.strangers_per_second = 1e9;
    options.all_guesses_per_minute = 1e9;
    options.log = [](const std::string& line) { std::fprintf(stderr, "hub: %s\n", line.c_str()); };
    auto hub = Hub::start(std::move(options));
    if (!hub.ok()) std::fprintf(stderr, "%s\n", hub.error().message.c_str());
    const uint16_t port = hub.ok() ? (*hub)->address().port : 0;
    if (::write(ports[1], &port, sizeof(port)) != sizeof(port)) return 1;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    int number = 0;
    ::sigwait(&set, &number);
    ::_exit(0);
  }
  ::signal(SIGPIPE, SIG_IGN);
  uint16_t port = 0;
  if (::read(ports[0], &port, sizeof(port)) != sizeof(port) || port == 0) return 1;

  Simulation simulation;
  simulation.hub = {asio::ip::address_v4::loopback(), port};
  simulation.devices = devices;
  simulation.rooms = rooms;
  simulation.codes.resize(rooms);
  simulation.keys.resize(rooms);
  SSL_CTX_set_mode(simulation.context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                           SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  for (size_t i = 0; i < devices; ++i) {
    simulation.connections.push_back(
        std::make_unique<Connection>(simulation.io, simulation.context));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kSetupAtOnce; ++i) {
    asio::co_spawn(simulation.io, simulation.prepare_some(i), asio::detached);
  }
  simulation.io.run();
  simulation.io.restart();
  std::printf("%zu devices, %zu rooms: set up in %.1f s, %zu failed; the hub has %.0f MB\n",
              devices, rooms,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
              simulation.failed, megabytes(pid, "VmRSS:"));
  const double cpu = cpu_seconds(pid);
  simulation.end = std::chrono::steady_clock::now() + seconds;
  for (size_t i = 0; i < devices; ++i) {
    asio::co_spawn(simulation.io, simulation.beat(i), asio::detached);
  }
  for (size_t room = 0; room < rooms; ++room) {
    asio::co_spawn(simulation.io, simulation.listen(room), asio::detached);
    asio::co_spawn(simulation.io, simulation.publish(room), asio::detached);
  }
  simulation.io.run();
  show("heartbeats", simulation.beats_ms);
  show("events, from one member to another", simulation.events_ms);
  std::printf("failed %zu; the hub: %.0f MB, at most %.0f MB, %.1f %% of one core\n",
              simulation.failed, megabytes(pid, "VmRSS:"), megabytes(pid, "VmHWM:"),
              100 * (cpu_seconds(pid) - cpu) / static_cast<double>(seconds.count()));
  ::kill(pid, SIGTERM);
  ::waitpid(pid, nullptr, 0);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return simulation.failed == 0 ? 0 : 1;
}
