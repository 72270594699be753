// Metrics and event logs of worker, host and hub, as processes.
#include <gtest/gtest.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/process.h"
#include "wire/tcp.h"

namespace tandem::cli_test {
namespace {

using Json = nlohmann::json;

/// What a plain HTTP server answers, until it closes.
std::string ask(const std::string& address, const std::string& request) {
  const auto deadline = wire::Clock::now() + std::chrono::seconds(60);
  const auto parsed = wire::parse_address(address);
  EXPECT_TRUE(parsed.ok()) << address;
  const auto socket = wire::connect(*parsed, std::chrono::seconds(60));
  EXPECT_TRUE(socket.ok()) << socket.error().message;
  EXPECT_EQ(::send(socket->fd(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string text;
  std::array<char, 4096> buffer{};
  while (wire::wait_for(socket->fd(), false, deadline)) {
    const ssize_t count = ::recv(socket->fd(), buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  return text;
}

std::string get(const std::string& address, const std::string& path) {
  return ask(address, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

/// The address in "metrics at http://ADDRESS/metrics".
std::string metrics_address(const std::string& text) {
  const std::string mark = "metrics at http://";
  const auto begin = text.find(mark) + mark.size();
  return text.substr(begin, text.find("/metrics", begin) - begin);
}

double value_of(const std::string& text, const std::string& name) {
  const auto at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name << " in\n" << text;
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

/// The lines of an event log, each checked to be an object with time and kind.
std::vector<Json> events_of(const std::string& file) {
  std::vector<Json> events;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    events.push_back(Json::parse(line));
    EXPECT_EQ(events.back()["time"].get<std::string>().size(), 24U) << line;
    EXPECT_FALSE(events.back()["kind"].get<std::string>().empty()) << line;
  }
  return events;
}

const Json* find(const std::vector<Json>& events, const std::string& kind) {
  for (const Json& event : events) {
    if (event["kind"] == kind) return &event;
  }
  return nullptr;
}

TEST(Observe, AWorkersNumbersAndEventsTellWhatItDid) {
  const std::string log = temporary("worker-events");
  const std::string host_log = temporary("host-events");
  std::string address;
  {
    WorkerProcess worker({"--metrics", "0", "--log", log, "--memory", "1G"});
    const std::string metrics = metrics_address(worker.process().read_error_until("/metrics\n"));
    const std::string before = get(metrics, "/metrics");
    EXPECT_TRUE(before.starts_with("HTTP/1.1 200")) << before;
    EXPECT_EQ(value_of(before, "tandem_worker_layers"), 0);
    EXPECT_EQ(value_of(before, "tandem_worker_state{state=\"idle\"}"), 1);
    // What the program takes itself is kept back.
    EXPECT_LT(value_of(before, "tandem_worker_memory_limit_bytes"), 1073741824);
    EXPECT_GT(value_of(before, "tandem_worker_memory_limit_bytes"), 1073741824 - (100 << 20));
    EXPECT_NE(get(metrics, "/health").find("\r\n\r\nok\n"), std::string::npos);
    EXPECT_TRUE(get(metrics, "/other").starts_with("HTTP/1.1 404"));
    EXPECT_TRUE(ask(metrics, "POST /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
                    .starts_with("HTTP/1.1 405"));
    EXPECT_EQ(ask(metrics, std::string(20000, 'x')), "");
    address = worker.address();
    const std::string secret = "the heron keeps its password under the third stone";
    tandem_ok({"run", "--workers", address, "--max-tokens", "8", "--log", host_log, secret});
    const std::string after = get(metrics, "/metrics");
    EXPECT_GT(value_of(after, "tandem_worker_layers"), 0);
    EXPECT_GT(value_of(after, "tandem_worker_memory_used_bytes"), 1000000);
    EXPECT_GE(value_of(after, "tandem_worker_passes_total"), 8);
    EXPECT_GT(value_of(after, "tandem_worker_tokens_total"),
              value_of(after, "tandem_worker_passes_total"));
    EXPECT_EQ(value_of(after, "tandem_worker_pass_milliseconds_count"),
              value_of(after, "tandem_worker_passes_total"));
    EXPECT_EQ(value_of(after, "tandem_worker_pass_milliseconds_bucket{le=\"+Inf\"}"),
              value_of(after, "tandem_worker_passes_total"));
    EXPECT_GT(value_of(after, "tandem_worker_wire_bytes_in_total"), 10000);
    EXPECT_GT(value_of(after, "tandem_worker_wire_bytes_out_total"), 10000);
    EXPECT_EQ(value_of(after, "tandem_worker_hosts_total"), 1);
    EXPECT_EQ(value_of(after, "tandem_worker_refusals_total"), 0);
    worker.process().signal(SIGTERM);
    worker.process().finish();
  }
  const auto events = events_of(log);
  for (const char* kind :
       {"listening", "host_connected", "loading", "loaded", "host_left", "stopped"}) {
    EXPECT_NE(find(events, kind), nullptr) << kind << "\n" << read_file(log);
  }
  if (const Json* loaded = find(events, "loaded"); loaded != nullptr) {
    EXPECT_EQ((*loaded)["first_layer"], 0);
    EXPECT_GT((*loaded)["memory_used"].get<int64_t>(), 1000000);
  }
  const auto host_events = events_of(host_log);
  const Json* ready = find(host_events, "worker_ready");
  ASSERT_NE(ready, nullptr) << read_file(host_log);
  EXPECT_EQ((*ready)["peer"], address);
  const Json* answer = find(host_events, "answer");
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ((*answer)["tokens"], 8);
  for (const std::string& text : {read_file(log), read_file(host_log)}) {
    EXPECT_EQ(text.find("heron"), std::string::npos) << "a prompt is nobody's business";
    EXPECT_EQ(text.find("stone"), std::string::npos);
  }
  std::filesystem::remove(log);
  std::filesystem::remove(host_log);
}

TEST(Observe, AHostsNumbersTellOfItsRing) {
  const WorkerProcess worker;
  Process chat({"chat", "--workers", worker.address(), "--split", "2-4", "--metrics", "127.0.0.1:0",
                "--max-tokens", "20", "--json"});
  const std::string metrics = metrics_address(chat.read_error_until("/metrics\n"));
  chat.write("Tell me a story.\n");
  chat.read_until("\n");
  const std::string text = get(metrics, "/metrics");
  EXPECT_GE(value_of(text, "tandem_host_laps_total"), 20);
  EXPECT_EQ(value_of(text, "tandem_host_lap_milliseconds_count"),
            value_of(text, "tandem_host_laps_total"));
  EXPECT_EQ(value_of(text, "tandem_host_workers"), 1);
  EXPECT_EQ(value_of(text, "tandem_host_connections"), 3);
  EXPECT_EQ(value_of(text, "tandem_host_state{state=\"ready\"}"), 1);
  EXPECT_EQ(value_of(text, "tandem_host_state{state=\"computing\"}"), 0);
  EXPECT_EQ(value_of(text, "tandem_host_stage_layers{peer=\"" + worker.address() + "\"}"), 3);
  EXPECT_EQ(value_of(text, "tandem_host_stage_layers{peer=\"host 0-1\"}"), 2);
  EXPECT_GT(value_of(text, "tandem_host_hop_milliseconds{peer=\"" + worker.address() + "\"}"), 0);
  EXPECT_GT(value_of(text, "tandem_host_link_bytes_in{peer=\"" + worker.address() + "\"}"), 1000);
  chat.close_input();
  EXPECT_EQ(chat.finish().code, 0);
}

TEST(Observe, WrongAddressesAndFilesAreNamed) {
  const Output port = tandem({"worker", "--listen", "127.0.0.1:0", "--metrics", "nowhere"});
  EXPECT_EQ(port.code, 1);
  EXPECT_NE(port.err.find("expected HOST:PORT or PORT"), std::string::npos) << port.err;
  const Output file = tandem({"worker", "--listen", "127.0.0.1:0", "--log", "/none/such/file"});
  EXPECT_EQ(file.code, 1);
  EXPECT_NE(file.err.find("/none/such/file: No such file"), std::string::npos) << file.err;
}

TEST(Observe, AHubTellsWhatHappensInIt) {
  const std::string folder = temporary("observed-hub");
  std::filesystem::remove_all(folder);
  const std::string log = folder + "-events";
  {
    Process hub({"hub", "--listen", "127.0.0.1:0", "--data", folder, "--no-mdns", "--log", log});
    std::string line = hub.read_until("\n");
    line.erase(line.find_last_not_of('\n') + 1);
    const std::string address = line.substr(line.rfind(' ') + 1);
    ::setenv("TANDEM_HOME", (folder + "-home").c_str(), 1);
    tandem_ok({"room", "create", "--hub", address});
    ::unsetenv("TANDEM_HOME");
    hub.signal(SIGTERM);
    EXPECT_EQ(hub.finish().code, 0);
  }
  const auto events = events_of(log);
  for (const char* kind : {"listening", "device_registered", "room_created", "stopped"}) {
    EXPECT_NE(find(events, kind), nullptr) << kind << "\n" << read_file(log);
  }
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(folder + "-home");
  std::filesystem::remove(log);
}

}  // namespace
}  // namespace tandem::cli_test
