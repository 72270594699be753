// Rooms over real TLS connections, on both stores.
#include <fstream>
#include <sstream>
#include <thread>

#include "hub/secret.h"
#include "hub/support.h"

namespace tandem::hub_test {
namespace {

using namespace hub;

class Rooms : public HubTest {};

std::vector<std::string> kinds_of(const Json& answer) {
  std::vector<std::string> kinds;
  for (const Json& event : answer["events"]) kinds.push_back(event["kind"].get<std::string>());
  return kinds;
}

/// Everything in a folder's files, for secrets that must not be there.
std::string all_bytes(const std::filesystem::path& folder) {
  std::ostringstream text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
  }
  return text.str();
}

TEST_P(Rooms, ALinkLetsInAndMembersSeeEachOther) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device worker(hub->address(), "worker");
  const Room room = make_room(host);
  const Joined joined =
      must(worker.client.join(room.link, worker.home.identity(), "worker", "", 0));
  ASSERT_TRUE(joined.in);
  const Json seen = must(host.client.room(room.code));
  ASSERT_EQ(seen["members"].size(), 2U);
  EXPECT_EQ(seen["host"], host.id());
  EXPECT_EQ(seen["members"][0]["role"], "host");
  EXPECT_EQ(seen["members"][1]["device"], worker.id());
  EXPECT_EQ(seen["members"][1]["name"], "worker");
  EXPECT_EQ(seen["members"][1]["public_key"], base64url(worker.home.identity().public_key()));
  EXPECT_EQ(seen["members"][1]["certificate"], worker.home.identity().fingerprint());
  EXPECT_EQ(joined.room["members"], seen["members"]);
  EXPECT_EQ(kinds_of(must(host.client.room_events(room.code, 0, 0))),
            (std::vector<std::string>{"created", "joined"}));
  EXPECT_EQ(must(worker.client.rooms())["rooms"][0]["code"], room.code);
}

TEST_P(Rooms, AWrongKeyIsRefusedAndAProofIsGoodOnce) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device guest(hub->address(), "guest");
  Room room = make_room(host);
  RoomLink wrong = room.link;
  wrong.key = random_bytes(16);
  EXPECT_FALSE(guest.client.join(wrong, guest.home.identity(), "worker", "", 0).ok());
  EXPECT_EQ(guest.client.status(), 403);
  EXPECT_FALSE(guest.client.room(room.code).ok()) << "not a member";
  EXPECT_EQ(guest.client.status(), 404);

  const Json challenge = must(guest.client.call("POST", "/v1/challenge", nullptr));
  const std::string nonce = challenge["nonce"].get<std::string>();
  const Identity prover = Identity::from_seed(admission_seed(room.link.key));
  const auto body = [&](const std::string& device) {
    return Json{
        {"role", "worker"},
        {"nonce", nonce},
        {"proof", base64url(prover.sign("tandem join " + room.code + " " + device + " " + nonce))}};
  };
  const std::string target = "/v1/rooms/" + room.code + "/join";
  EXPECT_FALSE(guest.client.call("POST", target, body(host.id())).ok()) << "another's proof";
  const Json again = must(guest.client.call("POST", "/v1/challenge", nullptr));
  Json good = body(guest.id());
  EXPECT_FALSE(guest.client.call("POST", target, good).ok()) << "the nonce was used up";
  EXPECT_EQ(guest.client.status(), 403);
  EXPECT_TRUE(guest.client.join(room.link, guest.home.identity(), "guest", "", 0).ok());
}

TEST_P(Rooms, TheLobbyAsksTheHostAndAPassReturnsWithoutAsking) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device guest(hub->address(), "guest");
  Device other(hub->address(), "other");
  const Room room = make_room(host);
  RoomLink bare = room.link;
  bare.key.clear();
  EXPECT_FALSE(must(guest.client.join(bare, guest.home.identity(), "guest", "", 0)).in);
  EXPECT_FALSE(must(other.client.join(bare, other.home.identity(), "guest", "", 0)).in);
  const Json seen = must(host.client.room(room.code));
  ASSERT_EQ(seen["lobby"].size(), 2U);
  EXPECT_EQ(seen["members"].size(), 1U);

  Joined joined;
  Device late(hub->address(), "late");
  std::thread waiting(
      [&] { joined = must(guest.client.join(bare, guest.home.identity(), "guest", "", 50)); });
  std::thread arriving([&] {
    EXPECT_TRUE(must(late.client.join(bare, late.home.identity(), "guest", "", 50)).in)
        << "asks and waits in one call";
  });
  EXPECT_TRUE(
      wait_until([&] { return host.client.answer_lobby(room.code, late.id(), true, "").ok(); }));
  arriving.join();
  must(host.client.answer_lobby(room.code, guest.id(), true, "sealed words"));
  must(host.client.answer_lobby(room.code, other.id(), false, ""));
  waiting.join();
  ASSERT_TRUE(joined.in);
  EXPECT_EQ(joined.sealed, "sealed words");
  EXPECT_EQ(joined.pass.size(), 22U);
  EXPECT_FALSE(other.client.join(bare, other.home.identity(), "guest", "", 0).ok());
  EXPECT_EQ(other.client.status(), 403);
  EXPECT_FALSE(other.client.join(bare, other.home.identity(), "guest", joined.pass, 0).ok())
      << "a pass is one device's";

  EXPECT_TRUE(must(guest.client.join(bare, guest.home.identity(), "guest", joined.pass, 0)).in);
  must(host.client.leave_room(room.code, guest.id()));
  EXPECT_FALSE(guest.client.join(bare, guest.home.identity(), "guest", joined.pass, 0).ok())
      << "sent away: the pass is void";
  EXPECT_FALSE(guest.client.answer_lobby(room.code, guest.id(), true, "").ok());
}

TEST_P(Rooms, AtMostEightWait) {
  const auto hub = start();
  Device host(hub->address(), "host");
  const Room room = make_room(host);
  RoomLink bare = room.link;
  bare.key.clear();
  for (int i = 0; i < 9; ++i) {
    Device guest(hub->address(), "guest");
    const auto joined = guest.client.join(bare, guest.home.identity(), "guest", "", 0);
    EXPECT_EQ(joined.ok(), i < 8) << i;
    if (i == 8) {
      EXPECT_EQ(guest.client.status(), 429);
      EXPECT_GT(guest.client.retry_after(), 0);
    }
  }
}

TEST_P(Rooms, GuessingCodesIsLimited) {
  const auto hub = start([](HubOptions& options) { options.guesses_per_minute = 5; });
  Device host(hub->address(), "host");
  Room room = make_room(host);
  Device guest(hub->address(), "guest");
  RoomLink guess = room.link;
  guess.key.clear();
  guess.code = room.code == "ZZZZZZ" ? "YYYYYY" : "ZZZZZZ";
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(guest.client.join(guess, guest.home.identity(), "guest", "", 0).ok());
    EXPECT_EQ(guest.client.status(), 404);
  }
  EXPECT_FALSE(guest.client.join(guess, guest.home.identity(), "guest", "", 0).ok());
  EXPECT_EQ(guest.client.status(), 429);
  EXPECT_GT(guest.client.retry_after(), 0);
  EXPECT_FALSE(guest.client.join(room.link, guest.home.identity(), "guest", "", 0).ok())
      << "even the right one: else the limit would tell";
}

TEST_P(Rooms, EventsReachThoseWhoWaitAndOnlyThoseMeant) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device a(hub->address(), "a");
  Device b(hub->address(), "b");
  const Room room = make_room(host);
  must(a.client.join(room.link, a.home.identity(), "worker", "", 0));
  const Json joined = must(b.client.join(room.link, b.home.identity(), "worker", "", 0)).room;
  const int64_t after = joined["events"].get<int64_t>();
  Json heard;
  Client waiter = a.another();
  std::thread waiting([&] { heard = must(waiter.room_events(room.code, after, 50)); });
  must(b.client.publish(room.code, "hello", b.id(), {{"for", "itself"}}));
  must(b.client.publish(room.code, "hello", a.id(), {{"for", "a"}}));
  waiting.join();
  ASSERT_EQ(heard["events"].size(), 1U) << heard;
  EXPECT_EQ(heard["events"][0]["kind"], "message:hello");
  EXPECT_EQ(heard["events"][0]["sender"], b.id());
  EXPECT_EQ(heard["events"][0]["data"]["for"], "a");
  EXPECT_EQ(must(host.client.room_events(room.code, after, 0))["events"].size(), 0U);
  const Json nothing = must(a.client.room_events(room.code, heard["next"].get<int64_t>(), 1));
  EXPECT_EQ(nothing["events"].size(), 0U);
  EXPECT_FALSE(b.client.publish(room.code, "x", "", std::string(70000, 'x')).ok());
}

TEST_P(Rooms, AReaderThatFellBehindIsTold) {
  const auto hub = start();
  Device host(hub->address(), "host");
  const Room room = make_room(host);
  for (int i = 0; i < 1010; ++i) must(host.client.publish(room.code, "x", "", i));
  Json events = must(host.client.room_events(room.code, 0, 0));
  EXPECT_TRUE(events["missed"].get<bool>());
  int64_t count = 0;
  int64_t after = 0;
  for (; !events["events"].empty(); events = must(host.client.room_events(room.code, after, 0))) {
    count += static_cast<int64_t>(events["events"].size());
    after = events["next"].get<int64_t>();
  }
  EXPECT_EQ(count, 1000);
  EXPECT_EQ(after, 1011);
}

TEST_P(Rooms, AnotherHostIsChosenByTheRule) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device small(hub->address(), "small");
  Device fast(hub->address(), "fast");
  Device large(hub->address(), "large");
  const Room room = make_room(host);
  for (Device* one : {&small, &fast, &large}) {
    must(one->client.join(room.link, one->home.identity(), "worker", "", 0));
  }
  const double gib = 1073741824;
  must(small.client.heartbeat({{"memory", 4 * gib}, {"memory_bandwidth", 9e10}}));
  must(fast.client.heartbeat({{"memory", 10 * gib}, {"memory_bandwidth", 6e10}}));
  must(large.client.heartbeat({{"memory", 16 * gib}, {"memory_bandwidth", 3e10}}));
  must(host.client.heartbeat(Json::object()));
  EXPECT_FALSE(large.client.choose_host(room.code).ok()) << "the host was just heard of";
  EXPECT_EQ(large.client.status(), 409);
  must(host.client.leave_room(room.code, "me"));
  const Json seen = must(small.client.room(room.code));
  EXPECT_EQ(seen["host"], fast.id()) << "twice as fast, more than half the memory";
  for (const Json& member : seen["members"]) {
    EXPECT_EQ(member["role"] == "host", member["device"] == fast.id());
  }
}

TEST_P(Rooms, HostsPlaceAndCloseAndOthersDoNot) {
  const auto hub = start();
  Device host(hub->address(), "host");
  Device worker(hub->address(), "worker");
  const Room room = make_room(host);
  must(worker.client.join(room.link, worker.home.identity(), "worker", "", 0));
  EXPECT_FALSE(worker.client.place(room.code, worker.id(), {{"layers", "0-3"}}).ok());
  EXPECT_EQ(worker.client.status(), 403);
  must(host.client.place(room.code, worker.id(), {{"layers", "0-3"}}));
  EXPECT_EQ(must(worker.client.room(room.code))["members"][1]["placement"]["layers"], "0-3");
  EXPECT_FALSE(worker.client.close_room(room.code).ok());
  const int64_t after = must(worker.client.room(room.code))["events"].get<int64_t>();
  std::thread waiting([&] { EXPECT_FALSE(worker.client.room_events(room.code, after, 50).ok()); });
  must(host.client.close_room(room.code));
  waiting.join();
  EXPECT_EQ(worker.client.status(), 404);
  EXPECT_FALSE(worker.client.room(room.code).ok());
}

TEST_P(Rooms, SettingsTravelWithTheHeartbeat) {
  const auto hub = start();
  Device device(hub->address(), "lent");
  EXPECT_EQ(must(device.client.heartbeat(Json::object()))["settings"]["memory"], 0);
  int64_t events = must(device.client.device_events(0, 0))["next"].get<int64_t>();
  must(device.client.change_settings("me", {{"memory", 12345}, {"paused", true}}));
  const Json answer = must(device.client.heartbeat({{"battery", 50}}));
  EXPECT_EQ(answer["settings"]["memory"], 12345);
  EXPECT_EQ(answer["settings_version"], 2);
  EXPECT_EQ(kinds_of(must(device.client.device_events(events, 0))),
            std::vector<std::string>{"settings"});
  const Json shown = must(device.client.devices())["devices"][0];
  EXPECT_EQ(shown["why"], "paused by its owner");
  EXPECT_EQ(shown["report"]["battery"], 50);
  Device stranger(hub->address(), "stranger");
  EXPECT_FALSE(stranger.client.change_settings(device.id(), Json::object()).ok());
  EXPECT_EQ(stranger.client.status(), 404);
  EXPECT_FALSE(device.client.change_settings("me", {{"memory", "much"}}).ok());
  EXPECT_EQ(device.client.status(), 400);
}

TEST_P(Rooms, OrganizationsShareDevicesByRole) {
  const auto hub = start();
  Client anyone(hub->address(), Trust::kNamed, "");
  const Json made =
      must(anyone.call("POST", "/v1/organizations", {{"name", "school"}, {"member", "Ann"}}));
  Client owner(hub->address(), Trust::kNamed, made["key"].get<std::string>());
  const Json member = must(owner.call("POST", "/v1/organization/members", {{"name", "Ben"}}));
  Client ben(hub->address(), Trust::kNamed, member["key"].get<std::string>());
  Device device(hub->address(), "desk 1", made["key"].get<std::string>());
  Device stranger(hub->address(), "other");
  EXPECT_EQ(must(ben.devices())["devices"].size(), 1U);
  EXPECT_EQ(must(stranger.client.devices())["devices"].size(), 1U);
  EXPECT_FALSE(ben.change_settings(device.id(), {{"paused", true}}).ok());
  EXPECT_EQ(ben.status(), 403);
  must(owner.change_settings(device.id(), {{"paused", true}}));
  EXPECT_TRUE(must(device.client.heartbeat(Json::object()))["settings"]["paused"].get<bool>());
  EXPECT_FALSE(
      ben.call("POST", "/v1/organization/members", {{"name", "Eve"}, {"role", "owner"}}).ok());
  EXPECT_FALSE(
      owner.call("DELETE", "/v1/organization/members/" + made["member"].get<std::string>(), nullptr)
          .ok())
      << "the last owner stays";
  const Json key = must(owner.call("POST", "/v1/organization/keys", {{"name", "second"}}));
  Client second(hub->address(), Trust::kNamed, key["key"].get<std::string>());
  EXPECT_EQ(must(second.call("GET", "/v1/organization", nullptr))["members"].size(), 2U);
  must(owner.call("DELETE", "/v1/organization/keys/" + key["id"].get<std::string>(), nullptr));
  EXPECT_FALSE(second.devices().ok());
  EXPECT_EQ(second.status(), 401);
  must(owner.call("DELETE", "/v1/organization/members/" + member["member"].get<std::string>(),
                  nullptr));
  EXPECT_FALSE(ben.devices().ok());
  EXPECT_EQ(ben.status(), 401);
}

TEST_P(Rooms, ARestartLosesNothingAndNoSecretIsWritten) {
  Room room;
  Folder home;
  std::string token;
  std::string pass;
  {
    const auto hub = start();
    Device host(hub->address(), "host");
    Device guest(hub->address(), "guest");
    room = make_room(host);
    RoomLink bare = room.link;
    bare.key.clear();
    must(guest.client.join(bare, guest.home.identity(), "guest", "", 0));
    must(host.client.answer_lobby(room.code, guest.id(), true, ""));
    pass = must(guest.client.join(bare, guest.home.identity(), "guest", "", 0)).pass;
    token = must(guest.client.register_device(guest.home.identity(), "guest", "computer", ""));
    must(guest.client.heartbeat({{"memory", 77}}));
  }
  const auto hub = start();
  Client guest(hub->address(), Trust::kNamed, token);
  const Json seen = must(guest.room(room.code));
  EXPECT_EQ(seen["members"].size(), 2U);
  EXPECT_EQ(seen["members"][1]["report"]["memory"], 77) << "written when the hub ended";
  const std::string bytes = all_bytes(folder_.path());
  for (const std::string& secret :
       {token, pass, base64url(room.link.key), room.link.key, admission_seed(room.link.key)}) {
    ASSERT_FALSE(secret.empty());
    EXPECT_EQ(bytes.find(secret), std::string::npos);
  }
}

TEST_P(Rooms, UnknownTokensPathsAndMethodsAreRefused) {
  const auto hub = start();
  Client nobody(hub->address(), Trust::kNamed, make_token());
  const std::vector<std::tuple<const char*, const char*, int>> cases{
      {"GET", "/v1/devices", 401},      {"POST", "/v1/heartbeat", 401},
      {"GET", "/v1/rooms/ABCDEF", 401}, {"GET", "/v1/nothing", 404},
      {"PATCH", "/v1/devices", 405},    {"GET", "/v1/devices/a/b/c", 404},
      {"GET", "/../etc/passwd", 404},   {"POST", "/v1/organization/members", 401},
  };
  for (const auto& [method, target, status] : cases) {
    EXPECT_FALSE(nobody.call(method, target, Json::object()).ok()) << target;
    EXPECT_EQ(nobody.status(), status) << method << " " << target;
  }
}

TEST_P(Rooms, ATurnIsOneProcessesAtATime) {
  const auto running = start();
  Device creator(running->address(), "creator");
  const Room room = make_room(creator);
  Device other(running->address(), "other");
  must(other.client.join(room.link, other.home.identity(), "guest", "", 0));
  const int64_t first = must(creator.client.take_turn(room.code, 0));
  EXPECT_EQ(must(creator.client.room(room.code))["turn"]["device"], creator.id());
  // Another process, also one of the same device, has to wait.
  EXPECT_FALSE(other.client.take_turn(room.code, 0).ok());
  EXPECT_EQ(other.client.status(), 409);
  hub::Client same = creator.another();
  EXPECT_FALSE(same.take_turn(room.code, 0).ok());
  EXPECT_EQ(must(creator.client.take_turn(room.code, first)), first);
  EXPECT_FALSE(other.client.end_turn(room.code, first).ok()) << "not its turn";
  EXPECT_FALSE(creator.client.end_turn(room.code, first + 1).ok());
  must(creator.client.end_turn(room.code, first));
  EXPECT_FALSE(must(creator.client.room(room.code)).contains("turn"));
  // Who has the turn is the room's host, and gives out jobs.
  EXPECT_FALSE(other.client.add_job(room.code, creator.id(), "stage", {}).ok());
  const int64_t second = must(other.client.take_turn(room.code, 0));
  EXPECT_GT(second, first);
  EXPECT_EQ(must(other.client.room(room.code))["host"], other.id());
  must(other.client.add_job(room.code, creator.id(), "stage", hub::Json::object()));
  // A turn that nobody renews is over, and its token is worth nothing once another had it.
  must(other.client.call("POST", "/v1/rooms/" + room.code + "/turn",
                         {{"token", second}, {"lease_ms", 1000}}));
  int64_t third = 0;
  EXPECT_TRUE(hub_test::wait_until([&] {
    const auto taken = creator.client.take_turn(room.code, 0);
    third = taken.ok() ? *taken : 0;
    return taken.ok();
  }));
  EXPECT_GT(third, second);
  EXPECT_FALSE(other.client.take_turn(room.code, second).ok());
  EXPECT_EQ(other.client.status(), 409);
  EXPECT_FALSE(other.client.end_turn(room.code, second).ok());
  // Strangers hear of no room.
  Device stranger(running->address(), "stranger");
  EXPECT_FALSE(stranger.client.take_turn(room.code, 0).ok());
  EXPECT_EQ(stranger.client.status(), 404);
}

INSTANTIATE_TEST_SUITE_P(Sqlite, Rooms, testing::Values(Store::kSqlite));
INSTANTIATE_TEST_SUITE_P(Postgres, Rooms, testing::Values(Store::kPostgres));

}  // namespace
}  // namespace tandem::hub_test
