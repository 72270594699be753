// Devices and hosts of a room in this process, at a real hub, over real sockets.
#include <gtest/gtest.h>

#include <fstream>

#include "hub/support.h"
#include "room/agent.h"
#include "room/device_folder.h"
#include "room/host.h"
#include "room/machine.h"
#include "room/measured.h"
#include "room/reach.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::room {
namespace {

using hub_test::Folder;
using hub_test::must;
using hub_test::wait_until;

class RoomTest : public hub_test::HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    hub_ = start();
    hub::Home home = must(hub::Home::open(creator_.path()));
    hub::Client client = must(home.connect(hub_->address(), "creator"));
    link_.hub = client.hub();
    const Json room = must(client.create_room({{"model", "m"}, {"layers", 2}}, link_.key));
    link_.code = room["code"];
    must(home.remember_room(link_.hub, link_.code, {link_.key, ""}));
  }

  std::unique_ptr<Agent> agent(const Folder& folder, const std::string& name) {
    AgentOptions options;
    options.name = name;
    options.worker.listen = "127.0.0.1:0";
    return must(Agent::start(must(hub::Home::open(folder.path())), {link_, ""}, options));
  }
  std::unique_ptr<Host> host(const Folder& folder) {
    HostOptions options;
    options.name = "asks";
    return must(Host::enter(must(hub::Home::open(folder.path())), {link_, ""}, options));
  }
  std::unique_ptr<Host> host() { return host(creator_); }
  static Member member(Host& host, const std::string& name) {
    for (Member& one : must(host.members())) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << "no member " << name;
    return {};
  }

  Folder creator_;
  std::unique_ptr<hub::Hub> hub_;
  hub::RoomLink link_;
};

/// Greets a worker as a host; the refusal, or nothing.
std::string greeting(const std::string& where, const wire::Tls& tls) {
  const auto deadline = wire::Clock::now() + std::chrono::seconds(20);
  wire::Connection connection(
      must(wire::connect(must(wire::parse_address(where)), std::chrono::seconds(5))),
      tls.connecting({}));
  must(connection.secure_until(deadline));
  wire::Hello hello;
  hello.contract = ring::contract_version();
  must(connection.send_until(deadline, {.type = wire::Type::kHello}, hello.encode()));
  const auto answer = must(connection.receive_until(deadline, 4096));
  if (answer.type == wire::Type::kWelcome) return "";
  return must(wire::Refusal::decode(connection.payload())).reason;
}

TEST_P(RoomTest, ADeviceServesWhoseJobItHoldsAndNobodyElse) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  const auto first = host();
  const Member known = member(*first, "lent");
  EXPECT_EQ(why_not(known), "");
  EXPECT_EQ(must(reach(known, *first->tls(), loopback_mark())), device->address());
  EXPECT_NE(greeting(device->address(), *first->tls()).find("no job of yours"), std::string::npos);
  must(first->take_turn());
  EXPECT_TRUE(must(first->hire({known.device}, "stage")).empty());
  EXPECT_EQ(greeting(device->address(), *first->tls()), "");
  // A member with the key, and without a job.
  const Folder other;
  const auto guest = host(other);
  EXPECT_NE(greeting(device->address(), *guest->tls()).find("no job of yours"), std::string::npos);
  // Who has another room's key gets no greeting at all.
  const auto stranger =
      must(room_tls(must(hub::Home::open(other.path())).identity(), std::string(16, 'x')));
  const auto refused = reach(known, *stranger, loopback_mark());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("room's key"), std::string::npos)
      << refused.error().message;
  // Another device at its address is not taken for it.
  Member twisted = known;
  (*twisted.certificate)[0] ^= 1;
  EXPECT_FALSE(reach(twisted, *first->tls(), loopback_mark()).ok());
}

TEST_P(RoomTest, AnAddressThatStaysSilentHoldsUpNobody) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  const auto asking = host();
  Member known = member(*asking, "lent");
  // Connections to it are made, and nobody ever takes them.
  const auto silent = must(wire::Listener::open(must(wire::parse_address("127.0.0.1:0"))));
  known.addresses.insert(known.addresses.begin(), silent.address().text());
  EXPECT_EQ(must(reach(known, *asking->tls(), loopback_mark())), device->address());
  known.addresses.resize(1);
  const auto nowhere = reach(known, *asking->tls(), loopback_mark());
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find(silent.address().text()), std::string::npos)
      << nowhere.error().message;
}

TEST_P(RoomTest, WhoAnswersNowhereIsReachedThroughTheHubAndOnlyThatVeryDevice) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  const auto asking = host();
  Member known = member(*asking, "lent");
  const auto silent = must(wire::Listener::open(must(wire::parse_address("127.0.0.1:0"))));
  known.addresses = {silent.address().text()};
  EXPECT_FALSE(reach(known, *asking->tls(), loopback_mark()).ok());
  const std::string way = must(reach_by_relay(known, *asking->tls(), asking->relay()));
  EXPECT_EQ(way, relay_way(known.device));
  EXPECT_TRUE(is_relayed(way));
  // What a ring dials: here the address is one that takes nobody, and then there is none at all.
  EXPECT_TRUE(asking->dialler()(way, std::chrono::seconds(20)).ok());
  EXPECT_TRUE(asking->dialler()("127.0.0.1:1," + way, std::chrono::seconds(20)).ok());
  EXPECT_EQ(asking->dialler()("nonsense," + way, std::chrono::seconds(20)).error().kind,
            ErrorKind::kInvalid);
  EXPECT_EQ(asking->dialler()("", std::chrono::seconds(20)).error().kind, ErrorKind::kInvalid);
  EXPECT_FALSE(asking->dialler()(relay_way("nobody"), std::chrono::seconds(20)).ok());
  Member twisted = known;
  (*twisted.certificate)[0] ^= 1;
  EXPECT_FALSE(reach_by_relay(twisted, *asking->tls(), asking->relay()).ok());
  const auto stranger =
      must(room_tls(must(hub::Home::open(creator_.path())).identity(), std::string(16, 'x')));
  EXPECT_FALSE(reach_by_relay(known, *stranger, asking->relay()).ok());
}

TEST_P(RoomTest, AJobThatIsTakenBackIsNoGrantAnyMore) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  const auto tls = [&] {
    const auto asking = host();
    must(asking->take_turn());
    EXPECT_TRUE(must(asking->hire({member(*asking, "lent").device}, "stage")).empty());
    EXPECT_EQ(greeting(device->address(), *asking->tls()), "");
    return asking->tls();
  }();
  EXPECT_TRUE(wait_until([&] { return !greeting(device->address(), *tls).empty(); }));
}

TEST_P(RoomTest, OneHostAtATimeAndTheNextWhenItEnds) {
  auto first = host();
  must(first->take_turn());
  auto second = host();
  std::atomic<bool> taken{false};
  std::thread waits([&] {
    must(second->take_turn());
    taken = true;
  });
  EXPECT_TRUE(wait_until([&] { return !second->happenings().all().empty(); }));
  EXPECT_EQ(second->happenings().all().front().kind, "waiting");
  EXPECT_FALSE(taken);
  first.reset();
  waits.join();
  EXPECT_TRUE(taken);
}

TEST_P(RoomTest, ThePausedAreNotHired) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  hub::Home home = must(hub::Home::open(lent.path()));
  hub::Client client = must(home.connect(link_.hub, "lent"));
  must(client.change_settings("me", {{"paused", true}, {"memory", 5000000}}));
  const auto asking = host();
  EXPECT_TRUE(wait_until([&] {
    const Member seen = member(*asking, "lent");
    return !seen.why.empty() && seen.limit == 5000000;
  }));
  EXPECT_NE(why_not(member(*asking, "lent")).find("paused"), std::string::npos);
  must(client.change_settings("me", Json::object()));
  EXPECT_TRUE(wait_until([&] { return why_not(member(*asking, "lent")).empty(); }));
}

TEST_P(RoomTest, AnAgentOutlivesItsHub) {
  const Folder lent;
  const auto device = agent(lent, "lent");
  const std::string listen = "127.0.0.1:" + std::to_string(hub_->address().port);
  hub_.reset();
  hub_ = start([&](hub::HubOptions& options) { options.listen = listen; });
  const auto asking = host();
  EXPECT_TRUE(wait_until([&] {
    const auto members = asking->members();
    return members.ok() && why_not(member(*asking, "lent")).empty();
  }));
  must(asking->take_turn());
  EXPECT_TRUE(must(asking->hire({member(*asking, "lent").device}, "probe")).empty());
}

INSTANTIATE_TEST_SUITE_P(Sqlite, RoomTest, testing::Values(hub_test::Store::kSqlite));

TEST(DeviceFolder, SeveralWorkersAreSeveralDevices) {
  const Folder home;
  auto first = must(DeviceFolder::take(home.path(), "", "box"));
  const auto second = must(DeviceFolder::take(home.path(), "", "box"));
  EXPECT_EQ(first.name(), "box");
  EXPECT_EQ(second.name(), "box-2");
  EXPECT_NE(first.path(), second.path());
  const auto named = must(DeviceFolder::take(home.path(), "attic", "box"));
  EXPECT_EQ(named.path(), DeviceFolder::of(home.path(), "attic", "box"));
  EXPECT_FALSE(DeviceFolder::take(home.path(), "attic", "box").ok());
  for (const std::string& bad :
       {std::string("a/b"), std::string(".."), std::string("two words"), std::string(65, 'a')}) {
    EXPECT_FALSE(DeviceFolder::take(home.path(), bad, "box").ok()) << bad;
  }
  { const DeviceFolder gone = std::move(first); }
  EXPECT_EQ(must(DeviceFolder::take(home.path(), "", "box")).name(), "box");
}

TEST(Members, WhatIsMalformedCountsAsNotSaid) {
  const Json room = Json::parse(R"({"now": 1000000, "members": [
    {"device": "aa", "name": "x\u001b[2J", "seen": 999000, "certificate": "zz",
     "report": {"addresses": ["1.2.3.4:5", 7, ""], "memory": -5, "threads": 1e300,
                "contract": "one", "why": 3}, "settings": {"paused": "maybe"}},
    {"device": "bb", "name": "same", "seen": 0, "report": {"addresses": ["1.1.1.1:1"]}},
    {"device": "cc", "name": "same", "seen": 1000000, "report": {"addresses": ["1.1.1.1:1"]}},
    {"device": "dd", "name": "host", "report": []}, 17, null, "text"]})");
  const auto members = members_of(room);
  ASSERT_EQ(members.size(), 7U);
  EXPECT_EQ(members[0].name, "x?[2J");
  EXPECT_EQ(members[0].memory, 0U);
  EXPECT_FALSE(members[0].certificate.has_value());
  EXPECT_NE(why_not(members[0]).find("contract version 0"), std::string::npos);
  EXPECT_EQ(members[1].label, "same bb");
  EXPECT_NE(why_not(members[1]).find("not heard of for 1000 s"), std::string::npos);
  EXPECT_NE(members[3].label, "host") << "that is what messages call the host's own layers";
  EXPECT_TRUE(members_of(Json("nonsense")).empty());
}

TEST(Ways, ToOthersLeaveOutTheLoopbackAndWhatDoesNotFit) {
  Member member;
  member.addresses = {"10.0.0.2:4000", "127.0.0.1:4000", "[::1]:4000", "[2001:db8::1]:4000"};
  EXPECT_EQ(way_for_others(member), "10.0.0.2:4000,[2001:db8::1]:4000");
  EXPECT_FALSE(is_relayed(way_for_others(member)));
  member.addresses.insert(member.addresses.begin(), std::string(300, 'a'));
  member.addresses.insert(member.addresses.begin(), std::string(301, 'b'));
  EXPECT_EQ(way_for_others(member), std::string(300, 'a'));
  member.addresses = {"127.0.0.1:4000"};
  EXPECT_EQ(way_for_others(member), "");
}

TEST(Ways, AreReadAsTheyAreWritten) {
  const std::string device(32, 'a');
  const auto way = must(parse_way("10.0.0.2:4000,[2001:db8::1]:1,relay:" + device));
  ASSERT_EQ(way.addresses.size(), 2U);
  EXPECT_EQ(way.addresses[1].text(), "[2001:db8::1]:1");
  EXPECT_EQ(way.device, device);
  for (const std::string& wrong : std::vector<std::string>{
           std::string(), std::string(","), std::string("host"), std::string("relay:"),
           "relay:" + device + "0", "relay:../" + device.substr(3),
           "relay:" + device + ",relay:" + std::string(32, 'b'), "a:1,," + device}) {
    EXPECT_EQ(parse_way(wrong).error().kind, ErrorKind::kInvalid) << wrong;
  }
  std::string many = "a:1";
  for (int i = 0; i < 50; ++i) many += ",a:1";
  EXPECT_EQ(must(parse_way(many)).addresses.size(), 16U);
}

TEST(Measured, ADeviceThatIsReachedAnotherWayIsNoStranger) {
  const Folder folder;
  const MeasuredModel model{{}, 8, 16, 1, "best"};
  Member one;
  one.device = std::string(32, 'a');
  one.label = "one";
  one.threads = 2;
  one.isa = "avx2";
  ring::RoomProbe probe;
  for (const char* id : {"host", "one"}) {
    ring::DeviceProbe device;
    device.id = id;
    device.layers = {0, 1};
    device.alone = {{1, 5, {7000, 6000, 8000}}};
    probe.devices.push_back(device);
  }
  probe.links = {{0, 1, {1000, 900, 1100}, {50000, 40000, 60000}}};
  const std::vector<std::string> direct{"10.0.0.2:4000"};
  const std::vector<std::string> relayed{relay_way(one.device)};
  auto measured = Measured::load(folder.path(), model);
  measured.put({one}, direct, probe, measured.missing({one}, direct));
  measured = Measured::load(folder.path(), model);
  ASSERT_TRUE(measured.find({one}, direct).has_value());
  EXPECT_TRUE(measured.missing({one}, direct).none());
  // Before a start the way is measured; in the middle of an answer what it computes is known.
  EXPECT_TRUE(measured.missing({one}, relayed).links.contains({0, 1}));
  EXPECT_FALSE(measured.find({one}, relayed).has_value());
  const auto anyway = measured.find({one}, relayed, true);
  ASSERT_TRUE(anyway.has_value());
  EXPECT_EQ(anyway->devices[1].alone[0].nanoseconds.median, 7000U);
  EXPECT_EQ(anyway->links.size(), 1U);
  // Once the way through the hub was measured, it counts for who is reached so, and only then.
  EXPECT_EQ(measured.unknown_relayed({one}, relayed, {}).size(), 1U);
  EXPECT_TRUE(measured.unknown_relayed({one}, direct, {}).empty());
  probe.links = {{0, 1, {90000, 80000, 100000}, {4000, 3000, 5000}}};
  measured.put_relayed({one}, probe);
  measured = Measured::load(folder.path(), model);
  EXPECT_TRUE(measured.unknown_relayed({one}, relayed, {}).empty());
  EXPECT_EQ(measured.find({one}, relayed, true)->links[0].rtt_ns.median, 90000U);
  EXPECT_EQ(measured.find({one}, direct, true)->links[0].rtt_ns.median, 1000U);
  EXPECT_EQ(measured.find({one}, direct)->links[0].rtt_ns.median, 1000U);
  // Another processor, or as many threads as it has never had, are another matter.
  one.threads = 3;
  EXPECT_FALSE(measured.find({one}, direct, true).has_value());
}

TEST(Measured, DevicesThatReachEachOtherByTheRelayHaveALinkOfTheirOwn) {
  const Folder folder;
  const MeasuredModel model{{}, 8, 16, 1, "best"};
  std::vector<Member> members(2);
  members[0].device = std::string(32, 'b');
  members[1].device = std::string(32, 'a');
  ring::RoomProbe probe;
  for (int i = 0; i < 3; ++i) {
    ring::DeviceProbe device;
    device.layers = {0, 1};
    device.alone = {{1, 5, {7000, 6000, 8000}}};
    probe.devices.push_back(device);
  }
  const wire::Spread speed{50000, 40000, 60000};
  probe.links = {
      {0, 1, {1000, 1, 1}, speed}, {0, 2, {2000, 1, 1}, speed}, {1, 2, {3000, 1, 1}, speed}};
  const std::vector<std::string> direct{"10.0.0.2:4000", "10.0.0.3:4000"};
  auto measured = Measured::load(folder.path(), model);
  measured.put(members, direct, probe, measured.missing(members, direct));
  const Pairs relayed{pair_of(members[0].device, members[1].device)};
  const std::set<std::pair<uint32_t, uint32_t>> between{{1, 2}};
  EXPECT_EQ(measured.unknown_relayed(members, direct, relayed), between);
  probe.links = {{1, 2, {60000, 1, 1}, speed}};
  measured.put_relayed(members, probe);
  EXPECT_TRUE(measured.unknown_relayed(members, direct, relayed).empty());
  const auto rtt = [&](const Pairs& pairs, size_t link) {
    return measured.find(members, direct, true, pairs)->links[link].rtt_ns.median;
  };
  EXPECT_EQ(rtt(relayed, 0), 1000U);
  EXPECT_EQ(rtt(relayed, 1), 2000U);
  EXPECT_EQ(rtt(relayed, 2), 60000U);
  EXPECT_EQ(rtt({}, 2), 3000U);
}

TEST(Ways, CodesAndLinks) {
  const Folder folder;
  hub::Home home = must(hub::Home::open(folder.path()));
  EXPECT_EQ(find_way(home, "K7PM2X").error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(find_way(home, "hello").error().kind, ErrorKind::kInvalid);
  const hub::HubAddress hub{"127.0.0.1", 7443, std::string(64, 'a')};
  must(home.remember_room(hub, "K7PM2X", {std::string(16, 'k'), "pass"}));
  const Way way = must(find_way(home, "k7pm2x"));
  EXPECT_EQ(way.link.key, std::string(16, 'k'));
  EXPECT_EQ(way.pass, "pass");
  EXPECT_EQ(must(find_way(home, "https://127.0.0.1:7443/room/K7PM2X")).link.key, way.link.key);
}

}  // namespace
}  // namespace tandem::room
