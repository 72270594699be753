// The hub and the commands around it, as processes.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

using Json = nlohmann::json;

/// A `tandem hub` on a port that the system chose, and a folder for the user's side.
class HubProcess : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = temporary("hub-home");
    std::filesystem::remove_all(folder_);
    ::setenv("TANDEM_HOME", folder_.c_str(), 1);
    hub_ = std::make_unique<Process>(std::vector<std::string>{
        "hub", "--listen", "127.0.0.1:0", "--data", folder_ + "-data", "--no-mdns"});
    std::string line = hub_->read_until("\n");
    line.erase(line.find_last_not_of('\n') + 1);
    address_ = line.substr(line.rfind(' ') + 1);
    bare_ = address_.substr(0, address_.find("/#"));
  }
  void TearDown() override {
    hub_.reset();
    ::unsetenv("TANDEM_HOME");
    std::filesystem::remove_all(folder_);
    std::filesystem::remove_all(folder_ + "-data");
  }
  std::string folder_;
  std::unique_ptr<Process> hub_;
  std::string address_;  ///< with the fingerprint
  std::string bare_;
};

TEST_F(HubProcess, RoomsDevicesAndSettings) {
  const Json room = Json::parse(tandem_ok({"room", "create", "--hub", address_, "--context", "512",
                                           "--objective", "throughput", "--json"}));
  EXPECT_EQ(room["code"].get<std::string>().size(), 6U);
  EXPECT_TRUE(room["link"].get<std::string>().starts_with(bare_ + "/room/" +
                                                          room["code"].get<std::string>() + "#k="));
  EXPECT_EQ(room["hub"], address_);
  const std::string plain = tandem_ok({"room", "create", "--hub", address_});
  EXPECT_TRUE(plain.starts_with("code ")) << plain;
  const Json devices = Json::parse(tandem_ok({"devices", "--json"}));
  ASSERT_EQ(devices["devices"].size(), 1U);
  EXPECT_NE(tandem_ok({"devices"}).find("takes work"), std::string::npos);
  const Json settings = Json::parse(
      tandem_ok({"settings", "--memory", "8G", "--hours", "mon-fri 22:00-6:00,sat-sun 0:00-0:00",
                 "--time-zone", "Europe/Berlin", "--pause", "--json"}));
  EXPECT_EQ(settings["settings"]["memory"], uint64_t{8} << 30);
  EXPECT_EQ(settings["settings"]["hours"].size(), 2U);
  const Json after = Json::parse(tandem_ok({"settings", "--resume", "--json"}));
  EXPECT_EQ(after["settings"]["paused"], false);
  EXPECT_EQ(after["settings"]["memory"], uint64_t{8} << 30) << "what is not given stays";
  EXPECT_EQ(after["settings_version"], 3);
  struct stat status {};
  ASSERT_EQ(::stat((folder_ + "/hubs.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  hub_->signal(SIGTERM);
  const Output ended = hub_->finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST_F(HubProcess, AnOrganizationHasMembersKeysAndDevices) {
  const std::string ann = folder_ + "-ann.key";
  const std::string ben = folder_ + "-ben.key";
  const Json made = Json::parse(
      tandem_ok({"org", "create", "Our school", "--hub", address_, "--member", "Ann", "--json"}));
  std::ofstream(ann) << made["key"].get<std::string>() << "\n";
  const Json invited = Json::parse(
      tandem_ok({"org", "invite", "Ben", "--role", "admin", "--key", "@" + ann, "--json"}));
  std::ofstream(ben) << invited["key"].get<std::string>() << "\n";
  const Output twice = tandem({"org", "invite", "Eve", "--role", "owner", "--key", "@" + ben});
  EXPECT_EQ(twice.code, 1);
  EXPECT_NE(twice.err.find("that is for owners"), std::string::npos) << twice.err;
  const std::string members = tandem_ok({"org", "members", "--key", "@" + ben});
  EXPECT_NE(members.find("Our school"), std::string::npos) << members;
  EXPECT_NE(members.find("Ann"), std::string::npos);
  EXPECT_NE(members.find("Ben"), std::string::npos);
  const Json joined = Json::parse(tandem_ok({"org", "join", "--key", "@" + ben, "--json"}));
  EXPECT_EQ(joined["organization"], made["organization"]);
  EXPECT_EQ(Json::parse(tandem_ok({"org", "members", "--json"}))["devices"], 1)
      << "the device itself may ask now";
  const Json key = Json::parse(
      tandem_ok({"org", "keys", "--add", "laptop", "--key", "-", "--json"}, read_file(ann)));
  EXPECT_NE(tandem_ok({"org", "keys", "--key", "@" + ann}).find("laptop"), std::string::npos);
  tandem_ok({"org", "keys", "--remove", key["id"].get<std::string>(), "--key", "@" + ann});
  EXPECT_EQ(tandem_ok({"org", "keys", "--key", "@" + ann}).find("laptop"), std::string::npos);
  tandem_ok({"org", "remove", invited["member"].get<std::string>(), "--key", "@" + ann});
  const Output gone = tandem({"org", "members", "--key", "@" + ben});
  EXPECT_EQ(gone.code, 1);
  EXPECT_EQ(tandem({"org", "create", "--hub", address_}).code, 2);
  EXPECT_EQ(tandem({"org", "make", "x"}).code, 2);
  std::filesystem::remove(ann);
  std::filesystem::remove(ben);
}

TEST_F(HubProcess, ACertificateThatChangedIsRefused) {
  tandem_ok({"devices", "--hub", bare_});  // this machine's own hub is trusted at first
  tandem_ok({"devices", "--hub", bare_});
  std::string wrong = address_;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  const Output refused = tandem({"devices", "--hub", wrong});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("shows another certificate"), std::string::npos) << refused.err;
  const std::string port = bare_.substr(bare_.rfind(':') + 1);
  std::filesystem::remove_all(folder_ + "-data");
  hub_ = std::make_unique<Process>(std::vector<std::string>{
      "hub", "--listen", "127.0.0.1:" + port, "--data", folder_ + "-data", "--no-mdns"});
  hub_->read_until("\n");
  const Output changed = tandem({"devices", "--hub", bare_});
  EXPECT_EQ(changed.code, 1);
  EXPECT_NE(changed.err.find("shows another certificate"), std::string::npos) << changed.err;
}

TEST_F(HubProcess, MistakesAreNamed) {
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string says;
  };
  const std::vector<Case> cases{
      {{"room", "make"}, 1, "a room's code has six characters"},
      {{"room", "K7PM2X", "--context", "5"}, 2, "--context goes with 'create'"},
      {{"room", "create", "--allow", "x"}, 2, "need a room's link or code"},
      {{"room", "create", "--hub", "ftp://x"}, 1, "expected https://"},
      {{"room", "create", "--hub", address_, "-m", "no-such"}, 1, "no-such"},
      {{"room", "create", "--hub", address_, "--context", "99999999"}, 1, "--context is 99999999"},
      {{"devices", "--hub", "https://127.0.0.1:1"}, 1, "127.0.0.1:1"},
      {{"settings", "--hub", address_, "--time-zone", "Mars/Base"}, 1, "time_zone"},
      {{"settings", "--hub", address_, "--hours", "late"}, 1, "the hours are 'late'"},
      {{"settings", "--hub", address_, "--device", "ffff"}, 1, "no such device"},
      {{"settings", "--pause", "--resume"}, 2, "exclude each other"},
      {{"hub", "--store", "mysql://x", "--data", folder_ + "-x"}, 1, "postgresql://"},
      {{"hub", "--tls", "nonsense", "--data", folder_ + "-x"}, 1, "CERT,KEY"},
      {{"hub", "--listen", bare_.substr(8), "--data", folder_ + "-x"}, 1, "can't listen"},
  };
  for (const Case& one : cases) {
    const Output output = tandem(one.arguments);
    EXPECT_EQ(output.code, one.code) << one.says << output.err;
    EXPECT_NE(output.err.find(one.says), std::string::npos) << one.says << "\n" << output.err;
  }
  std::filesystem::remove_all(folder_ + "-x");
}

TEST_F(HubProcess, AKeyComesFromAFileOrStandardInput) {
  tandem_ok({"devices", "--hub", address_});
  const std::string key = folder_ + "/key";
  std::ofstream(key) << "AAAAAAAAAAAAAAAAAAAAAA\n";
  const Output from_file = tandem({"devices", "--key", "@" + key});
  EXPECT_NE(from_file.err.find("token is needed"), std::string::npos) << from_file.err;
  const Output from_input = tandem({"devices", "--key", "-"}, "AAAAAAAAAAAAAAAAAAAAAA\n");
  EXPECT_EQ(from_input.err, from_file.err);
  const Output missing = tandem({"devices", "--key", "@/no/such"});
  EXPECT_NE(missing.err.find("/no/such"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli_test
