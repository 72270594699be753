// What a device of a room gives to others: to whom, what, and how much at once.
#include "room/sharing.h"

#include <gtest/gtest.h>

#include <fstream>

#include "fetch/stage_source.h"
#include "hub/support.h"
#include "ring/range_client.h"
#include "room/agent.h"
#include "room/host.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::room {
namespace {

using hub_test::Folder;
using hub_test::must;

class SharingTest : public hub_test::HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    hub_ = start();
    make_room(Json::object());
    manifest_.config = sha256("{}");
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 3 + i / 256);
    manifest_.tensors.push_back({{"t", weights::DType::kF32, {bytes_.size() / 4}}, sha256(bytes_)});
    model_ = weights::model_hash(manifest_);
  }
  void make_room(const Json& spec) {
    hub::Home home = must(hub::Home::open(creator_.path()));
    hub::Client client = must(home.connect(hub_->address(), "creator"));
    link_.hub = client.hub();
    link_.code = must(client.create_room(spec, link_.key))["code"];
    must(home.remember_room(link_.hub, link_.code, {link_.key, ""}));
  }
  std::unique_ptr<Agent> agent(const Folder& folder, const std::string& settings = "") {
    AgentOptions options;
    options.settings = settings;
    options.name = "gives";
    options.worker.listen = "127.0.0.1:0";
    options.sharing.store = folder.path() / "models";
    options.sharing.limit = uint64_t{1} << 30;
    return must(Agent::start(must(hub::Home::open(folder.path())), {link_, ""}, options));
  }
  /// Puts the model into a device's store, as if it had been fetched for that room.
  void fill(const Folder& folder, const std::string& code) {
    fetch::StageSourceOptions options;
    options.model.name = "m";
    options.shelf = std::make_shared<fetch::Shelf>(fetch::Store(folder.path() / "models"));
    options.mark = room_mark(link_.hub, code);
    options.limit = uint64_t{1} << 30;
    options.manifest = &manifest_;
    options.config_json = "{}";
    options.tensors = {"t"};
    options.sources.push_back(fetch::source_of_tensors(
        fetch::SourceKind::kHost, "host",
        [this](const std::string&, uint64_t offset, std::span<std::byte> out) {
          std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
          return Status();
        }));
    must(fetch::open_stage_source(std::move(options)));
  }
  Result<std::unique_ptr<ring::RangeClient>> dial(const Agent& agent,
                                                  std::shared_ptr<const wire::Tls> tls,
                                                  const Folder& giver) {
    ring::RangeClientOptions options;
    options.address = agent.address();
    options.tls = std::move(tls);
    options.pin =
        must(room_tls(must(hub::Home::open(giver.path())).identity(), link_.key))->fingerprint();
    return ring::RangeClient::dial(options);
  }
  /// A member that lends nothing.
  std::shared_ptr<const wire::Tls> guest(const Folder& folder) {
    HostOptions options;
    options.name = "asks";
    const auto host = must(Host::enter(must(hub::Home::open(folder.path())), {link_, ""}, options));
    return host->tls();
  }

  Folder creator_;
  std::unique_ptr<hub::Hub> hub_;
  hub::RoomLink link_;
  weights::Manifest manifest_;
  Digest model_{};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(6'000'000);
};

TEST_P(SharingTest, MembersGetWhatIsThereAndNothingElse) {
  const Folder giver;
  fill(giver, link_.code);
  const auto device = agent(giver);
  const Folder taker;
  // It comes after the giver has looked at the room.
  const auto client = must(dial(*device, guest(taker), giver));
  std::vector<std::byte> out(5'000'000);
  must(client->read(model_, "t", 900'000, out));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes_.begin() + 900'000));
  // Each of these is refused, and the connection goes on.
  out.resize(1000);
  EXPECT_EQ(client->read(model_, "u", 0, out).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(client->read(Digest{}, "t", 0, out).error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(client->read(model_, "../../t", 0, out).ok());
  EXPECT_FALSE(client->read(model_, "t", bytes_.size() - 999, out).ok());
  EXPECT_FALSE(client->read(model_, "t", uint64_t{1} << 60, out).ok());
  must(client->read(model_, "t", bytes_.size() - 1000, out));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes_.end() - 1000));
  // Nonsense ends it.
  EXPECT_FALSE(client->read(model_, "t", uint64_t{1} << 61, out).ok());
}

TEST_P(SharingTest, WhoIsNotInTheRoomGetsNothing) {
  const Folder giver;
  fill(giver, link_.code);
  const auto device = agent(giver);
  // Who has the key and is no member, and who has another key.
  const Folder stranger;
  const hub::Home home = must(hub::Home::open(stranger.path()));
  const hub::Identity& identity = home.identity();
  const auto outside = dial(*device, must(room_tls(identity, link_.key)), giver);
  ASSERT_FALSE(outside.ok());
  EXPECT_NE(outside.error().message.find("devices of the room only"), std::string::npos)
      << outside.error().message;
  const auto other = dial(*device, must(room_tls(identity, std::string(16, 'x'))), giver);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("room's key"), std::string::npos) << other.error().message;
}

TEST_P(SharingTest, WhoIsSentAwayGetsNoMore) {
  const Folder giver;
  fill(giver, link_.code);
  const auto device = agent(giver);
  const Folder taker;
  const auto tls = guest(taker);
  const auto client = must(dial(*device, tls, giver));
  std::vector<std::byte> out(10);
  must(client->read(model_, "t", 0, out));
  const std::string id = must(hub::Home::open(taker.path())).identity().device_id();
  hub::Home home = must(hub::Home::open(creator_.path()));
  must(must(home.connect(hub_->address(), "creator")).leave_room(link_.code, id));
  Status last;
  EXPECT_TRUE(hub_test::wait_until([&] {
    last = client->read(model_, "t", 0, out);
    return !last.ok();
  }));
  EXPECT_NE(last.error().message.find("devices of the room only"), std::string::npos)
      << last.error().message;
  EXPECT_FALSE(dial(*device, tls, giver).ok());
}

TEST_P(SharingTest, APausedDeviceGivesNothing) {
  const Folder giver;
  fill(giver, link_.code);
  const std::string settings = giver.path() / "settings.toml";
  std::ofstream(settings) << "paused = true\n";
  const auto device = agent(giver, settings);
  const Folder taker;
  const auto tls = guest(taker);
  const auto refused = dial(*device, tls, giver);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("gives no weights"), std::string::npos)
      << refused.error().message;
  std::ofstream(settings) << "paused = false\n";
  std::unique_ptr<ring::RangeClient> client;
  EXPECT_TRUE(hub_test::wait_until([&] {
    auto dialled = dial(*device, tls, giver);
    if (dialled.ok()) client = std::move(*dialled);
    return client != nullptr;
  }));
  std::vector<std::byte> out(10);
  must(client->read(model_, "t", 0, out));
}

TEST_P(SharingTest, AnotherRoomsModelsStayWhereTheyAre) {
  const Folder giver;
  fill(giver, "OTHER1");
  const auto device = agent(giver);
  const Folder taker;
  const auto client = must(dial(*device, guest(taker), giver));
  std::vector<std::byte> out(10);
  EXPECT_EQ(client->read(model_, "t", 0, out).error().kind, ErrorKind::kNotFound);
}

TEST_P(SharingTest, ARoomMayForbidIt) {
  make_room({{"sources", {"cache", "host"}}});
  const Folder giver;
  fill(giver, link_.code);
  const auto device = agent(giver);
  const Folder taker;
  const auto refused = dial(*device, guest(taker), giver);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("shares no weights"), std::string::npos)
      << refused.error().message;
}

TEST_P(SharingTest, ConnectionsAreLimited) {
  const Folder giver;
  fill(giver, link_.code);
  auto device = agent(giver);
  const Folder taker;
  const auto tls = guest(taker);
  std::vector<std::unique_ptr<ring::RangeClient>> clients;
  for (size_t i = 0; i < ring::RangeServer::kMostOfOne; ++i) {
    clients.push_back(must(dial(*device, tls, giver)));
  }
  const auto one_more = dial(*device, tls, giver);
  ASSERT_FALSE(one_more.ok());
  EXPECT_NE(one_more.error().message.find("already"), std::string::npos)
      << one_more.error().message;
  // Another frame than a request ends its connection, and makes room.
  std::vector<std::byte> out(10);
  EXPECT_FALSE(clients.back()->read(model_, "t", uint64_t{1} << 61, out).ok());
  clients.pop_back();
  EXPECT_TRUE(hub_test::wait_until([&] { return dial(*device, tls, giver).ok(); }));
  // It stops with connections open.
  device->stop();
}

TEST(RoomSources, AreReadFromASpec) {
  using fetch::SourceKind;
  EXPECT_EQ(room_sources(Json::object()), usual_sources());
  EXPECT_EQ(room_sources({{"sources", {"cache", "peer"}}}),
            (std::set<SourceKind>{SourceKind::kCache, SourceKind::kPeer}));
  // What is not understood allows nothing.
  EXPECT_TRUE(room_sources({{"sources", {"friends", 3}}}).empty());
  EXPECT_TRUE(room_sources({{"sources", "cache,peer,host"}}).empty());
}

TEST(RoomHeld, IsReadAsFarAsItMakesSense) {
  const std::string hash(64, 'a');
  const auto layers = [&](const std::string& text) {
    const auto held = held_of({{"cached", {{{"model", hash}, {"layers", text}}}}});
    return held.empty() ? size_t{0} : held[0].layers.size();
  };
  EXPECT_EQ(layers("0-3,8-8,10-11"), 3U);
  for (const char* wrong :
       {"", "3-1", "0-3,2-5", "4-5,0-1", "0-4096", "-1-3", "a", "0-99999999999"}) {
    EXPECT_EQ(layers(wrong), 0U) << wrong;
  }
  EXPECT_TRUE(held_of({{"cached", {{{"model", "aa"}, {"layers", "0-3"}}}}}).empty());
  EXPECT_TRUE(held_of({{"cached", 3}}).empty());
  EXPECT_TRUE(held_of(Json(3)).empty());
  Json many = Json::array();
  for (int i = 0; i < 100; ++i) many.push_back({{"model", hash}, {"layers", "0-3"}});
  EXPECT_EQ(held_of({{"cached", many}}).size(), 16U);
}

INSTANTIATE_TEST_SUITE_P(Sqlite, SharingTest, testing::Values(hub_test::Store::kSqlite));

}  // namespace
}  // namespace tandem::room
