// Jobs, files, models, the relay, and several hubs on one store.
#include <fstream>
#include <thread>

#include "base/hash.h"
#include "hub/mdns.h"
#include "hub/secret.h"
#include "hub/support.h"

namespace tandem::hub_test {
namespace {

using namespace hub;

class Jobs : public HubTest {};

/// A room with a host and a worker in it.
struct Pair {
  explicit Pair(const HubAddress& hub)
      : host(hub, "host"), worker(hub, "worker"), room(make_room(host)) {
    must(worker.client.join(room.link, worker.home.identity(), "worker", "", 0));
  }
  Device host;
  Device worker;
  Room room;
};

TEST_P(Jobs, AreLeasedRenewedAndFinished) {
  const auto hub = start();
  Pair pair(hub->address());
  EXPECT_TRUE(must(pair.worker.client.lease_job()).is_null());
  const std::string id =
      must(pair.host.client.add_job(pair.room.code, pair.worker.id(), "probe", {{"layers", 2}}));
  EXPECT_FALSE(
      pair.worker.client.add_job(pair.room.code, pair.host.id(), "probe", Json::object()).ok())
      << "workers give no orders";
  const Json waits = must(pair.worker.client.device_events(0, 20));
  EXPECT_EQ(waits["events"].back()["kind"], "job_waits");
  EXPECT_TRUE(must(pair.host.client.lease_job()).is_null()) << "addressed to another device";
  const Json job = must(pair.worker.client.lease_job());
  EXPECT_EQ(job["job"], id);
  EXPECT_EQ(job["data"]["layers"], 2);
  EXPECT_TRUE(must(pair.worker.client.lease_job()).is_null()) << "leased already";
  const int64_t token = job["token"].get<int64_t>();
  must(pair.worker.client.renew_job(id, token));
  EXPECT_FALSE(pair.host.client.finish_job(id, token, true, 1).ok()) << "not its job";
  EXPECT_FALSE(pair.worker.client.finish_job(id, token - 1, true, 1).ok());
  EXPECT_EQ(pair.worker.client.status(), 409);
  must(pair.worker.client.finish_job(id, token, true, {{"ms", 1.5}}));
  EXPECT_FALSE(pair.worker.client.finish_job(id, token, true, 2).ok()) << "finished";
  const Json done = must(pair.host.client.job(id));
  EXPECT_EQ(done["state"], "done");
  EXPECT_EQ(done["result"]["ms"], 1.5);
}

TEST_P(Jobs, ExpiredLeasesAreTriedThreeTimesAndStaleHoldersCanDoNothing) {
  const auto hub = start([](HubOptions& options) { options.lease_ms = 300; });
  Pair pair(hub->address());
  const std::string id =
      must(pair.host.client.add_job(pair.room.code, pair.worker.id(), "stage", 0));
  int64_t last = 0;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Json job;
    ASSERT_TRUE(wait_until([&] {
      job = must(pair.worker.client.lease_job());
      return !job.is_null();
    }));
    EXPECT_EQ(job["attempts"], attempt);
    const int64_t token = job["token"].get<int64_t>();
    EXPECT_GT(token, last);
    if (attempt > 1) {
      EXPECT_FALSE(pair.worker.client.finish_job(id, last, true, "stale").ok());
      EXPECT_FALSE(pair.worker.client.renew_job(id, last).ok());
      EXPECT_EQ(pair.worker.client.status(), 409);
    }
    last = token;
  }
  EXPECT_TRUE(wait_until([&] { return must(pair.host.client.job(id))["state"] == "failed"; }));
  EXPECT_FALSE(pair.worker.client.finish_job(id, last, true, "late").ok());
  EXPECT_TRUE(must(pair.host.client.job(id))["result"].contains("error"));
  bool told = false;
  const Json heard = must(pair.host.client.device_events(0, 0));
  for (const Json& event : heard["events"]) {
    told = told || (event["kind"] == "job" && event["data"]["state"] == "failed");
  }
  EXPECT_TRUE(told);
}

TEST_P(Jobs, OwnersDecideWhichTheirDeviceTakes) {
  const auto hub = start();
  Pair pair(hub->address());
  must(pair.worker.client.change_settings("me", {{"kinds", {"probe"}}}));
  must(pair.host.client.add_job(pair.room.code, pair.worker.id(), "stage", 1));
  const std::string probe =
      must(pair.host.client.add_job(pair.room.code, pair.worker.id(), "probe", 2));
  EXPECT_EQ(must(pair.worker.client.lease_job())["job"], probe);
  EXPECT_TRUE(must(pair.worker.client.lease_job()).is_null());
  must(pair.worker.client.change_settings("me", Json::object()));
  EXPECT_EQ(must(pair.worker.client.lease_job())["data"], 1);
}

TEST_P(Jobs, ACancelledJobIsNotHandedOutAndItsHolderHearsOfIt) {
  const auto hub = start();
  Pair pair(hub->address());
  const std::string id =
      must(pair.host.client.add_job(pair.room.code, pair.worker.id(), "stage", 1));
  const int64_t token = must(pair.worker.client.lease_job())["token"].get<int64_t>();
  EXPECT_FALSE(pair.worker.client.cancel_job(id).ok());
  must(pair.host.client.cancel_job(id));
  EXPECT_FALSE(pair.worker.client.renew_job(id, token).ok());
  EXPECT_EQ(pair.worker.client.status(), 409);
  EXPECT_TRUE(must(pair.worker.client.lease_job()).is_null());
  EXPECT_EQ(must(pair.worker.client.device_events(0, 0))["events"].back()["kind"], "job_cancelled");
}

TEST_P(Jobs, FilesHaveALimitAndStayWithTheirOrganization) {
  const auto hub = start();
  Device device(hub->address(), "a");
  std::string bytes = random_bytes(size_t{4} << 20);
  bytes[7] = '\0';
  const std::string id = must(device.client.put_file(bytes));
  EXPECT_EQ(must(device.client.get_file(id)), bytes);
  EXPECT_FALSE(device.client.put_file(bytes + "x").ok());
  EXPECT_EQ(device.client.status(), 413);
  Client anyone(hub->address(), Trust::kNamed, "");
  const Json made =
      must(anyone.call("POST", "/v1/organizations", {{"name", "s"}, {"member", "A"}}));
  Client member(hub->address(), Trust::kNamed, made["key"].get<std::string>());
  EXPECT_FALSE(member.get_file(id).ok());
  EXPECT_EQ(member.status(), 404);
  for (int i = 0; i < 64; ++i) must(member.put_file(bytes));
  EXPECT_FALSE(member.put_file("one more").ok()) << "256 MiB are full";
  EXPECT_EQ(member.status(), 413);
  EXPECT_TRUE(device.client.put_file("another organization's").ok());
}

TEST_P(Jobs, ModelsAreServedByRangeAndNothingElseIs) {
  Folder models;
  std::filesystem::create_directories(models.path() / "small");
  const std::string content = random_bytes((size_t{9} << 20) + 5);
  std::ofstream(models.path() / "small" / "model.safetensors", std::ios::binary) << content;
  std::ofstream(models.path() / "secret.txt") << "not a model's";
  std::ofstream(models.path() / "one.gguf") << "file\n";
  const auto hub = start([&](HubOptions& options) { options.models = models.path(); });
  Device device(hub->address(), "a");
  const Json list = must(device.client.models());
  EXPECT_EQ(list["models"]["small"]["model.safetensors"], content.size());
  EXPECT_EQ(list["models"]["one.gguf"]["one.gguf"], 5);
  EXPECT_EQ(list["models"].size(), 2U);
  std::string one_etag;
  EXPECT_EQ(must(device.client.model_range("one.gguf", "one.gguf", 1, 3, one_etag)), "ile");
  std::string etag;
  const std::string part =
      must(device.client.model_range("small", "model.safetensors", 5000000, 3000000, etag));
  EXPECT_TRUE(part == content.substr(5000000, 3000000));
  EXPECT_FALSE(etag.empty());
  EXPECT_FALSE(
      device.client.model_range("small", "model.safetensors", content.size(), 1, etag).ok());
  EXPECT_EQ(device.client.status(), 416);
  const auto chunks = must(device.client.model_chunks("small", "model.safetensors", 60));
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[2], hex(sha256(std::string_view(content).substr(size_t{8} << 20))));
  std::string none;
  for (const auto& [model, file] :
       std::vector<std::pair<const char*, const char*>>{{"..", "secret.txt"},
                                                        {".", "secret.txt"},
                                                        {"small", "../secret.txt"},
                                                        {"small/..", "secret.txt"},
                                                        {"small", "none"},
                                                        {"secret.txt", "secret.txt"},
                                                        {"small", "one.gguf"},
                                                        {"", "secret.txt"}}) {
    EXPECT_FALSE(device.client.model_range(model, file, 0, 1, none).ok()) << model << file;
    EXPECT_EQ(device.client.status(), 404);
  }
  std::ofstream(models.path() / "small" / "model.safetensors", std::ios::binary) << content << "x";
  EXPECT_FALSE(device.client.model_range("small", "model.safetensors", 0, 10, etag).ok())
      << "another file by now";
  Client nobody(hub->address(), Trust::kNamed, "");
  EXPECT_FALSE(nobody.models().ok());
}

TEST_P(Jobs, TheRelayCarriesBytesBothWays) {
  const auto hub = start();
  Pair pair(hub->address());
  const std::string up = random_bytes(3000000);
  const std::string down = random_bytes(2000000);
  const auto deadline = hub::Clock::now() + std::chrono::seconds(120);
  const auto read_all = [&](Channel& channel, std::string bytes) {
    std::vector<char> buffer(65536);
    for (;;) {
      const size_t count = must(channel.read(buffer, deadline));
      if (count == 0) return bytes;
      bytes.append(buffer.data(), count);
    }
  };
  std::string heard_there;
  std::thread other([&] {
    std::string early;
    Channel channel =
        must(pair.worker.client.relay(pair.room.code, pair.host.id(), "lane 1", early));
    must(channel.write(down, deadline));
    channel.finish();
    heard_there = read_all(channel, early);
  });
  std::string early;
  Channel channel = must(pair.host.client.relay(pair.room.code, pair.worker.id(), "lane 1", early));
  const std::string heard_here = read_all(channel, early);
  must(channel.write(up, deadline));
  channel.finish();
  other.join();
  EXPECT_TRUE(heard_here == down);
  EXPECT_TRUE(heard_there == up);
  Device stranger(hub->address(), "stranger");
  EXPECT_FALSE(stranger.client.relay(pair.room.code, pair.host.id(), "lane 1", early).ok());
  EXPECT_EQ(stranger.client.status(), 404);
}

TEST_P(Jobs, TwoHubsOnOneStoreAreOne) {
  if (GetParam() == Store::kSqlite) GTEST_SKIP() << "SQLite serves one process";
  Folder second_folder;
  const auto first = start();
  const auto second = start([&](HubOptions& options) { options.data = second_folder.path(); });
  Pair pair(first->address());
  Client there(second->address(), Trust::kNamed,
               must(pair.worker.client.register_device(pair.worker.home.identity(), "worker",
                                                       "computer", "")));
  const int64_t after = must(there.room(pair.room.code))["events"].get<int64_t>();
  Json heard;
  std::thread waiting([&] { heard = must(there.room_events(pair.room.code, after, 50)); });
  must(pair.host.client.publish(pair.room.code, "across", "", 1));
  waiting.join();
  ASSERT_EQ(heard["events"].size(), 1U);
  EXPECT_EQ(heard["events"][0]["kind"], "message:across");
  // A change of settings at one is known at the other, whatever that remembers of the token.
  must(there.heartbeat(Json::object()));
  must(pair.worker.client.change_settings("me", {{"memory", 99}}));
  EXPECT_TRUE(wait_until(
      [&] { return must(there.heartbeat(Json::object()))["settings"]["memory"] == 99; }));
}

TEST_P(Jobs, AHubIsFoundOnItsNetwork) {
  const auto hub = start([](HubOptions& options) { options.mdns = true; });
  EXPECT_TRUE(wait_until([&] {
    for (const HubAddress& one : must(find_hubs(std::chrono::milliseconds(600)))) {
      if (one.text() == hub->address().text()) return true;
    }
    return false;
  }));
}

INSTANTIATE_TEST_SUITE_P(Sqlite, Jobs, testing::Values(Store::kSqlite));
INSTANTIATE_TEST_SUITE_P(Postgres, Jobs, testing::Values(Store::kPostgres));

}  // namespace
}  // namespace tandem::hub_test
