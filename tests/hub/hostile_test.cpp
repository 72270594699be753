// What a hub does about clients that break its rules, over real connections.
#include <thread>

#include "hub/secret.h"
#include "hub/server/core.h"
#include "hub/support.h"
#include "wire/tcp.h"

namespace tandem::hub_test {
namespace {

using namespace hub;

class Hostile : public HubTest {};

hub::Clock::time_point soon() {
  return hub::Clock::now() + std::chrono::seconds(120);
}

Channel open_raw(const HubAddress& hub) {
  return must(Channel::open(hub, Trust::kNamed, soon()));
}

/// Everything that comes until the hub closes the connection.
std::string read_all(Channel& channel) {
  std::string text;
  std::vector<char> buffer(65536);
  for (;;) {
    const auto count = channel.read(buffer, soon());
    if (!count.ok() || *count == 0) return text;
    text.append(buffer.data(), *count);
  }
}

/// What the hub answers to raw bytes: the status, 0 if it closes without one.
int status_of(const HubAddress& hub, const std::string& bytes) {
  Channel channel = open_raw(hub);
  must(channel.write(bytes, soon()));
  std::string text;
  std::vector<char> buffer(65536);
  while (text.size() < 12) {
    const auto count = channel.read(buffer, soon());
    if (!count.ok() || *count == 0) return 0;
    text.append(buffer.data(), *count);
  }
  return std::atoi(text.c_str() + 9);
}

std::string token_of(Device& device) {
  return must(device.client.register_device(device.home.identity(), "again", "computer", ""));
}

TEST_P(Hostile, RequestsThatOthersMightCountOtherwiseAreRefused) {
  const auto hub = start();
  const HubAddress at = hub->address();
  const std::string begin = "POST /v1/challenge HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(status_of(at, begin + "Content-Length: 0\r\n\r\n"), 200);
  EXPECT_EQ(status_of(at, begin + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 411);
  EXPECT_GE(status_of(at, begin + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
            400);
  EXPECT_GE(status_of(at, begin + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n"),
            400);
  EXPECT_EQ(status_of(at, begin + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), 400);
  EXPECT_EQ(status_of(at, begin + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(at, begin + "Content-Length: 18446744073709551616\r\n\r\n"), 400);
  EXPECT_EQ(status_of(at, begin + "Content-Length: 18446744073709551615\r\n\r\n"), 413);
  EXPECT_EQ(status_of(at, begin + "Content-Length: 0\r\nTransfer-Encoding : chunked\r\n\r\n"), 400);
  for (const char* path : {"/v1/rooms/%0a", "/v1/rooms/%00", "/v1/devices/%ff", "/v1/a%c0%80",
                           "/v1/a%ed%a0%80", "/v1/devices/me?x=%7f"}) {
    EXPECT_EQ(status_of(at, std::string("GET ") + path + " HTTP/1.1\r\nHost: h\r\n\r\n"), 400)
        << path;
  }
}

TEST_P(Hostile, ALongBodyIsReadOnlyFromThoseWhoAreKnown) {
  const auto hub = start();
  Device device(hub->address(), "a");
  const std::string token = token_of(device);
  const std::string begin = "POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Length: 4194304\r\n";
  EXPECT_EQ(status_of(hub->address(), begin + "\r\n"), 401) << "and not a byte of it was awaited";
  EXPECT_EQ(status_of(hub->address(), begin + "Authorization: Bearer " + make_token() + "\r\n\r\n"),
            401);
  EXPECT_EQ(status_of(hub->address(), begin + "Expect: 100-continue\r\n\r\n"), 401);
  EXPECT_EQ(status_of(hub->address(), begin + "Authorization: Bearer " + token +
                                          "\r\nExpect: 100-continue\r\n\r\n"),
            100);
}

TEST_P(Hostile, LongBodiesTogetherHaveALimit) {
  const auto hub = start([](HubOptions& options) { options.body_memory = 6 << 20; });
  Device device(hub->address(), "a");
  const std::string token = token_of(device);
  Client client(hub->address(), Trust::kNamed, token);
  {
    Channel slow = open_raw(hub->address());
    must(slow.write("POST /v1/files HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + token +
                        "\r\nContent-Length: 4194304\r\nExpect: 100-continue\r\n\r\n",
                    soon()));
    std::vector<char> buffer(1000);
    must(slow.read(buffer, soon()));  // it may send now: its bytes are counted
    EXPECT_FALSE(client.put_file(std::string(4 << 20, 'x')).ok());
    EXPECT_EQ(client.status(), 503);
    EXPECT_GT(client.retry_after(), 0);
    EXPECT_TRUE(client.heartbeat(Json::object()).ok()) << "short bodies go on";
  }
  EXPECT_TRUE(wait_until([&] { return client.put_file(std::string(4 << 20, 'x')).ok(); }))
      << "the memory comes back";
}

TEST_P(Hostile, WhoHasNoTokenIsLimitedAndOthersOfTheAddressAreNot) {
  const auto hub = start([](HubOptions& options) { options.strangers_per_second = 2; });
  Device device(hub->address(), "a");
  must(device.client.heartbeat(Json::object()));
  Client stranger(hub->address(), Trust::kNamed, make_token());
  int status = 0;
  for (int i = 0; i < 100 && status != 429; ++i) {
    (void)stranger.call("GET", "/v1/devices", nullptr).ok();
    status = stranger.status();
  }
  EXPECT_EQ(status, 429);
  Client nobody(hub->address(), Trust::kNamed, "");
  EXPECT_FALSE(nobody.call("POST", "/v1/challenge", nullptr).ok());
  EXPECT_EQ(nobody.status(), 429);
  // Twice: the hub has forgotten what it knew of a device whose settings change.
  for (int i = 0; i < 2; ++i) {
    const auto beat = device.client.heartbeat(Json::object());
    EXPECT_TRUE(beat.ok()) << device.client.status() << (beat.ok() ? "" : beat.error().message);
    must(device.client.change_settings(device.id(), {{"paused", true}}));
  }
}

TEST_P(Hostile, AFloodOfRegistrationsKeepsNobodyFromJoining) {
  const auto hub = start([](HubOptions& options) { options.registrations_per_minute = 3; });
  Device host(hub->address(), "host");
  Device worker(hub->address(), "worker");
  const Room room = make_room(host);
  Client nobody(hub->address(), Trust::kNamed, "");
  while (nobody.call("POST", "/v1/challenge", nullptr).ok()) {
  }
  EXPECT_EQ(nobody.status(), 429);
  EXPECT_TRUE(must(worker.client.join(room.link, worker.home.identity(), "worker", "", 0)).in);
}

TEST_P(Hostile, AnUnknownOrganizationsKeyRegistersNothing) {
  const auto hub = start();
  Folder folder;
  const Home home = must(Home::open(folder.path()));
  Client client(hub->address(), Trust::kNamed, "");
  EXPECT_FALSE(client.register_device(home.identity(), "a", "computer", make_token()).ok());
  EXPECT_EQ(client.status(), 401);
}

TEST_P(Hostile, LargeEventsPushOutOlderOnesAndComeInPortions) {
  const auto hub = start();
  Device host(hub->address(), "host");
  const Room room = make_room(host);
  constexpr int kSent = 150;
  const std::string large(60000, 'x');
  for (int i = 0; i < kSent; ++i) must(host.client.publish(room.code, "x", "", large));
  Json events = must(host.client.room_events(room.code, 0, 0));
  EXPECT_TRUE(events["missed"].get<bool>());
  int count = 0;
  int64_t last = 0;
  while (!events["events"].empty()) {
    EXPECT_LT(events.dump().size(), size_t{2} << 20);
    for (const Json& event : events["events"]) {
      EXPECT_GT(event["number"].get<int64_t>(), last);
      last = event["number"].get<int64_t>();
      ++count;
    }
    EXPECT_EQ(events["next"], last);
    events = must(host.client.room_events(room.code, last, 0));
    EXPECT_FALSE(events["missed"].get<bool>());
  }
  EXPECT_EQ(last, kSent + 1);
  EXPECT_LT(count, 142) << "8 MiB of them are kept";
  EXPECT_GT(count, 130);
}

TEST_P(Hostile, ADevicesFilesAndJobsOverAreLimited) {
  const auto hub = start();
  Device a(hub->address(), "a");
  Device b(hub->address(), "b");
  const std::string bytes(4 << 20, 'x');
  std::string id;
  for (int i = 0; i < 8; ++i) id = must(a.client.put_file(bytes));
  EXPECT_FALSE(a.client.put_file("more").ok()) << "32 MiB are full";
  EXPECT_EQ(a.client.status(), 413);
  EXPECT_TRUE(b.client.put_file("of another one").ok());
  EXPECT_TRUE(b.client.get_file(id).ok());
  EXPECT_FALSE(b.client.call("DELETE", "/v1/files/" + id, nullptr).ok());
  EXPECT_EQ(b.client.status(), 404);

  const Room room = make_room(a);
  must(b.client.join(room.link, b.home.identity(), "worker", "", 0));
  std::vector<std::string> jobs;
  for (int i = 0; i < 270; ++i) {
    jobs.push_back(must(a.client.add_job(room.code, b.id(), "probe", Json::object())));
    must(a.client.cancel_job(jobs.back()));
  }
  EXPECT_TRUE(a.client.job(jobs.back()).ok());
  EXPECT_FALSE(a.client.job(jobs.front()).ok());
  EXPECT_EQ(a.client.status(), 404);
}

TEST_P(Hostile, ADeviceHasOnlySoManyStreamsThatWait) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device worker(hub->address(), "worker");
  const Room room = make_room(host);
  must(worker.client.join(room.link, worker.home.identity(), "worker", "", 0));
  const std::string token = token_of(host);
  std::vector<Channel> waiting;
  const auto ask = [&](int i) {
    Channel channel = open_raw(hub->address());
    must(channel.write("GET /v1/rooms/" + room.code + "/relay?peer=" + worker.id() +
                           "&channel=" + std::to_string(i) +
                           " HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: "
                           "tandem-relay\r\nAuthorization: Bearer " +
                           token + "\r\n\r\n",
                       soon()));
    return channel;
  };
  for (int i = 0; i < 64; ++i) waiting.push_back(ask(i));
  // Which of them the hub sees last is its threads' choice: one is refused in the end.
  std::string refused;
  for (int i = 64; i < 80 && refused.empty(); ++i) {
    waiting.push_back(ask(i));
    const auto answered = [&] {
      for (Channel& channel : waiting) {
        if (wire::wait_for(channel.fd(), false, hub::Clock::now())) {
          refused = read_all(channel);
          return true;
        }
      }
      return false;
    };
    for (int k = 0; k < 100 && !answered(); ++k) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 429")) << refused;
}

TEST_P(Hostile, AHeaderThatNeverEndsIsNotAwaitedForever) {
  if (GetParam() != Store::kSqlite) GTEST_SKIP() << "nothing of it is the store's";
  const auto hub = start();
  Channel silent = open_raw(hub->address());
  Channel slow = open_raw(hub->address());
  must(slow.write("GET / HTTP/1.1\r\nX: ", soon()));
  EXPECT_EQ(read_all(slow), "");
  EXPECT_EQ(read_all(silent), "");
}

TEST(CallerCache, ForgetsWhatWasLookedUpBeforeAChange) {
  CallerCache cache;
  Caller caller;
  caller.device = "d";
  const uint64_t before = cache.generation();
  cache.put("hash", caller, before);
  EXPECT_TRUE(cache.find("hash").has_value());
  cache.forget("d");
  EXPECT_FALSE(cache.find("hash").has_value());
  cache.put("hash", caller, before);
  EXPECT_FALSE(cache.find("hash").has_value()) << "read from the store before the change";
  cache.put("hash", caller, cache.generation());
  EXPECT_TRUE(cache.find("hash").has_value());
  cache.clear();
  EXPECT_FALSE(cache.find("hash").has_value());
  EXPECT_TRUE(cache.was_good("hash"));
  cache.drop("hash");
  EXPECT_FALSE(cache.was_good("hash"));
}

TEST(Limiter, AddressesCountByTheirNetwork) {
  EXPECT_EQ(network_of("192.168.1.5"), "192.168.1.5");
  EXPECT_EQ(network_of("::ffff:192.168.1.5"), "192.168.1.5");
  EXPECT_EQ(network_of("2001:db8:1:2:3:4:5:6"), network_of("2001:db8:1:2::"));
  EXPECT_NE(network_of("2001:db8:1:2::1"), network_of("2001:db8:1:3::1"));
  EXPECT_EQ(network_of("fe80::1%eth0"), network_of("fe80::2"));
}

INSTANTIATE_TEST_SUITE_P(Sqlite, Hostile, testing::Values(Store::kSqlite));
INSTANTIATE_TEST_SUITE_P(Postgres, Hostile, testing::Values(Store::kPostgres));

}  // namespace
}  // namespace tandem::hub_test
