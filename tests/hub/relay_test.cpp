// A ring whose devices can't dial each other: every connection is a stream through the hub's relay,
// sealed between the devices.
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "hub/relay_streams.h"
#include "hub/secret.h"
#include "hub/support.h"
#include "ring/harness.h"

namespace tandem::hub_test {
namespace {

using namespace hub;
constexpr const char* kScheme = "relay:";
constexpr const char* kKey = "000102030405060708090a0b0c0d0e0f";

std::shared_ptr<const wire::Tls> make_tls() {
  return must(wire::Tls::create(must(wire::Identity::create()), must(wire::parse_room_key(kKey))));
}

std::function<Client()> clients_of(const HubAddress& hub, const std::string& token) {
  return [hub, token] { return Client(hub, Trust::kNamed, token); };
}

/// Dials "relay:DEVICE", and nothing else.
wire::Dialler dialler_of(RelayStreams& streams) {
  return [&streams](const std::string& address,
                    std::chrono::milliseconds timeout) -> Result<wire::Socket> {
    if (!address.starts_with(kScheme)) return invalid(address + " can't be dialled");
    return streams.call(address.substr(6), timeout);
  };
}

/// A worker process: this program once more.
class WorkerProcess {
 public:
  WorkerProcess(Device& device, const std::string& code) {
    std::vector<std::string> values{"TANDEM_TEST_HUB=" + device.client.hub().text(),
                                    "TANDEM_TEST_HOME=" + device.folder.path().string(),
                                    "TANDEM_TEST_ROOM=" + code};
    for (char** one = environ; *one != nullptr; ++one) values.emplace_back(*one);
    std::vector<std::string> words{"hub_tests", "--gtest_filter=RelayedWorker.DISABLED_Serve",
                                   "--gtest_also_run_disabled_tests"};
    std::vector<char*> environment;
    std::vector<char*> arguments;
    for (std::string& value : values) environment.push_back(value.data());
    for (std::string& word : words) arguments.push_back(word.data());
    environment.push_back(nullptr);
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                            environment.data()),
              0);
  }
  ~WorkerProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = 0;
};

TEST(RelayedWorker, DISABLED_Serve) {
  const char* hub = std::getenv("TANDEM_TEST_HUB");
  if (hub == nullptr) GTEST_SKIP();
  const std::string code = std::getenv("TANDEM_TEST_ROOM");
  const Home home = must(Home::open(std::getenv("TANDEM_TEST_HOME")));
  Client client(must(parse_hub(hub)), Trust::kNamed, "");
  const std::string token = must(client.register_device(home.identity(), "worker", "computer", ""));
  RelayStreams streams(clients_of(client.hub(), token), code);
  ring::WorkerOptions options;
  options.load = toy::loader();
  options.tls = make_tls();
  options.dialler = dialler_of(streams);
  const auto worker = must(ring::Worker::start(std::move(options)));
  int64_t after = must(client.room(code))["events"].get<int64_t>();
  must(client.publish(code, "ready", "", nullptr));
  for (;;) {
    const Json events = must(client.room_events(code, after, 30));
    after = events["next"].get<int64_t>();
    for (const Json& event : events["events"]) {
      streams.answer(event, [&](wire::Socket socket) { worker->adopt(std::move(socket)); });
    }
  }
}

/// Waits until so many workers said that they listen to the room.
void wait_for_workers(Device& host, const std::string& code, size_t count) {
  ASSERT_TRUE(wait_until([&] {
    size_t ready = 0;
    const Json heard = must(host.client.room_events(code, 0, 0));
    for (const Json& event : heard["events"]) {
      ready += event["kind"] == "message:ready" ? 1 : 0;
    }
    return ready == count;
  }));
}

struct Relayed : testing::Test {
  Relayed() {
    HubOptions options;
    options.listen = "127.0.0.1:0";
    options.data = folder.path();
    options.registrations_per_minute = options.requests_per_second = 10000;
    hub = must(Hub::start(std::move(options)));
    host = std::make_unique<Device>(hub->address(), "host");
    worker = std::make_unique<Device>(hub->address(), "worker");
    room = make_room(*host);
    join(*worker);
    token = must(host->client.register_device(host->home.identity(), "host", "computer", ""));
    host->client.use_token(token);
    streams = std::make_unique<RelayStreams>(clients_of(hub->address(), token), room.code);
  }
  void join(Device& device) const {
    must(device.client.join(room.link, device.home.identity(), "worker", "", 0));
  }
  /// The worker's end of a stream that the host calls, both in this process.
  std::pair<wire::Socket, wire::Socket> pair(RelayStreams& there) {
    const int64_t after = must(host->client.room(room.code))["events"].get<int64_t>();
    wire::Socket far;
    std::atomic<bool> came{false};
    std::thread answering([&] {
      const Json events = must(worker->client.room_events(room.code, after, 50));
      for (const Json& event : events["events"]) {
        EXPECT_TRUE(there.answer(event, [&](wire::Socket socket) {
          far = std::move(socket);
          came = true;
        }));
      }
    });
    wire::Socket near = must(streams->call(worker->id(), std::chrono::seconds(60)));
    answering.join();
    EXPECT_TRUE(wait_until([&] { return came.load(); }));
    return {std::move(near), std::move(far)};
  }

  Folder folder;
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Device> host;
  std::unique_ptr<Device> worker;
  Room room;
  std::string token;
  std::unique_ptr<RelayStreams> streams;
};

TEST_F(Relayed, ARingRunsThroughTheRelayAloneWithTheSameBits) {
  Device second(hub->address(), "second");
  join(second);
  const WorkerProcess one(*worker, room.code);
  WorkerProcess two(second, room.code);
  wait_for_workers(*host, room.code, 2);
  toy::Model model;
  const auto input = toy::input(model, 40);
  auto options =
      toy::options(model, {{kScheme + worker->id(), {0, 2}}, {kScheme + second.id(), {2, 5}}});
  options.dialler = dialler_of(*streams);
  options.tls = make_tls();
  auto ring = must(ring::Ring::open(std::move(options)));
  const auto result = must(ring->forward(input, 0, input.tokens()));
  EXPECT_TRUE(toy::same(result, toy::whole(model, input)));
  const auto stages = ring->stages();
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_FALSE(stages[0].relayed) << "worker to worker has a stream of its own";
  // To each worker its control connection, to the first a link in, from the second a link out.
  EXPECT_EQ(streams->open(), 4U);
  two.kill();
  const auto failed = ring->forward(input, 40, 1);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find(second.id()), std::string::npos) << failed.error().message;
}

TEST_F(Relayed, ADeviceThatDoesNotComeIsAnError) {
  const auto stream = streams->call(worker->id(), std::chrono::milliseconds(300));
  ASSERT_FALSE(stream.ok());
  const auto nobody = streams->call("nobody", std::chrono::seconds(60));
  ASSERT_FALSE(nobody.ok());
  EXPECT_NE(nobody.error().message.find("not in the room"), std::string::npos);
  EXPECT_FALSE(streams->answer({{"kind", "message:relay"}, {"to", ""}, {"sender", "x"}}, {}));
  EXPECT_FALSE(streams->answer({{"kind", "message:relay"}, {"to", "a"}, {"data", 5}}, {}));
}

std::unique_ptr<RelayStreams> streams_of(Device& device, const std::string& code) {
  const std::string token =
      must(device.client.register_device(device.home.identity(), "again", "computer", ""));
  return std::make_unique<RelayStreams>(clients_of(device.client.hub(), token), code);
}

TEST_F(Relayed, WhoDoesNotReadStopsTheSenderAndNothingIsLost) {
  const auto there = streams_of(*worker, room.code);
  const auto [near, far] = pair(*there);
  const std::string piece = random_bytes(1 << 16);
  std::string sent;
  // Full once nothing was taken for a second: 64 MiB are far beyond all buffers on the way.
  constexpr size_t kMost = size_t{64} << 20;
  while (sent.size() < kMost &&
         wire::wait_for(near.fd(), true, hub::Clock::now() + std::chrono::seconds(1))) {
    const ssize_t count = ::send(near.fd(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (count > 0) sent.append(piece, 0, static_cast<size_t>(count));
  }
  EXPECT_LT(sent.size(), kMost);
  ::shutdown(near.fd(), SHUT_WR);
  std::string heard;
  std::vector<char> buffer(1 << 16);
  while (wire::wait_for(far.fd(), false, hub::Clock::now() + std::chrono::seconds(60))) {
    const ssize_t count = ::recv(far.fd(), buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    heard.append(buffer.data(), static_cast<size_t>(count));
  }
  EXPECT_TRUE(heard == sent) << heard.size() << " of " << sent.size();
  // The other direction still goes.
  ASSERT_EQ(::send(far.fd(), "x", 1, MSG_NOSIGNAL), 1);
  ASSERT_TRUE(wire::wait_for(near.fd(), false, hub::Clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(::recv(near.fd(), buffer.data(), buffer.size(), 0), 1);
}

TEST_F(Relayed, AnEndIsHeardOfAtTheOtherEnd) {
  auto there = streams_of(*worker, room.code);
  char byte = 0;
  const auto ends = [&](const wire::Socket& socket) {
    return wire::wait_for(socket.fd(), false, hub::Clock::now() + std::chrono::seconds(60)) &&
           ::recv(socket.fd(), &byte, 1, 0) <= 0;
  };
  {
    auto [near, far] = pair(*there);
    near = wire::Socket();
    EXPECT_TRUE(ends(far));
  }
  EXPECT_TRUE(wait_until([&] { return streams->open() + there->open() == 0; }));
  auto [near, far] = pair(*there);
  there = nullptr;
  EXPECT_TRUE(ends(far));
  EXPECT_TRUE(ends(near));
}

}  // namespace
}  // namespace tandem::hub_test
