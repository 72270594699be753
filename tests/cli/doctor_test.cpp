// tandem doctor against healthy and unhealthy surroundings.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/process.h"
#include "ring/worker.h"
#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::cli_test {
namespace {

using Json = nlohmann::json;

/// A folder for the user's side, and one for /proc and /sys.
class Doctor : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = temporary("doctor");
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/home");
    ::chmod((folder_ + "/home").c_str(), 0700);
    ::setenv("TANDEM_HOME", (folder_ + "/home").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TANDEM_HOME");
    std::filesystem::remove_all(folder_);
  }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_ + "/root" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  /// Runs it and checks that its exit code is what its problems say.
  Json run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "doctor");
    arguments.insert(arguments.end(), {"--json", "--root", folder_ + "/root"});
    const Output output = tandem(arguments);
    Json result = Json::parse(output.out, nullptr, false);
    EXPECT_TRUE(result.is_object()) << output.out << output.err;
    EXPECT_EQ(output.code, result["problems"] == 0 ? 0 : 1) << output.out;
    return result;
  }
  /// The check whose name begins so.
  static Json check(const Json& result, const std::string& name) {
    for (const Json& one : result["checks"]) {
      if (one["name"].get<std::string>().starts_with(name)) return one;
    }
    ADD_FAILURE() << "no check " << name << " in " << result.dump(1);
    return Json::object();
  }
  static void expect(const Json& result, const std::string& name, const std::string& state,
                     const std::string& found) {
    const Json one = check(result, name);
    EXPECT_EQ(one["state"], state) << one;
    EXPECT_NE(one["found"].get<std::string>().find(found), std::string::npos) << one;
    EXPECT_EQ(one["advice"].get<std::string>().empty(), state == "ok") << one;
  }
  std::string folder_;
};

TEST_F(Doctor, FindsNothingWhereAllIsWell) {
  const WorkerProcess worker;
  Process hub({"hub", "--listen", "127.0.0.1:0", "--data", folder_ + "/hub", "--no-mdns"});
  std::string line = hub.read_until("\n");
  line.erase(line.find_last_not_of('\n') + 1);
  const std::string address = line.substr(line.rfind(' ') + 1);
  const Json result = run({"--workers", worker.address(), "--hub", address, "--threads", "2",
                           "--listen", "127.0.0.1:0", "--cache", folder_ + "/cache"});
  EXPECT_EQ(result["problems"], 0) << result.dump(1);
  expect(result, "worker ", "ok", "answers in");
  expect(result, "hub ", "ok", "answers in");
  expect(result, "hub's clock", "ok", "off the hub's");
  expect(result, "instruction sets", "ok", "scalar");
  expect(result, "home folder", "ok", "this user's alone");
  expect(result, "port ", "ok", "free");
  expect(result, "memory", "ok", "the model needs");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/home/identity.pem")) << "changes nothing";
  // In words, the same.
  const std::string text = tandem_ok({"doctor", "--workers", worker.address()});
  EXPECT_NE(text.find("ok       worker "), std::string::npos) << text;
}

TEST_F(Doctor, NamesWhatAContainerHoldsBack) {
  put("/proc/self/cgroup", "0::/lent");
  put("/sys/fs/cgroup/lent/cpu.max", "150000 100000");
  put("/sys/fs/cgroup/lent/memory.max", "1048576");
  put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "1200000");
  put("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3600000");
  const Json result = run({"--threads", "4"});
  expect(result, "cores", "warning", "allows 1.5 cores");
  EXPECT_NE(check(result, "cores")["advice"].get<std::string>().find("--threads 1"),
            std::string::npos);
  expect(result, "memory", "problem", "the control group allows 1.0 MB");
  expect(result, "huge pages", "warning", "off");
  expect(result, "clock rate", "warning", "1.2 GHz of 3.6 GHz");
  // The older kind of control groups says the same in other files.
  std::filesystem::remove_all(folder_ + "/root");
  put("/proc/self/cgroup", "4:memory:/a/b\n3:cpu,cpuacct:/a/b");
  put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000");
  put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152");
  const Json older = run({"--threads", "3"});
  expect(older, "cores", "warning", "allows 2.0 cores");
  expect(older, "memory", "problem", "the control group allows 2.1 MB");
}

TEST_F(Doctor, NamesPortsKeysAndFoldersThatDoNotServe) {
  const std::string key = folder_ + "/key";
  std::ofstream(key) << "000102030405060708090a0b0c0d0e0f\n";
  WorkerProcess plain;
  const Json result =
      run({"--listen", plain.address(), "--workers", plain.address() + ",127.0.0.1:1", "--key", key,
           "--cache", "/dev/null/cache"});
  expect(result, "port " + plain.address(), "problem", "in use");
  expect(result, "worker " + plain.address(), "problem", "");
  expect(result, "worker 127.0.0.1:1", "problem", "can't connect");
  expect(result, "cache", "problem", "/dev/null is no folder");
  WorkerProcess sealed({"--key", key});
  expect(run({"--workers", sealed.address(), "--key", key}), "worker ", "ok", "code ");
  expect(run({"--workers", sealed.address()}), "worker ", "problem", "prove the room's key");
  ::chmod((folder_ + "/home").c_str(), 0755);
  expect(run({}), "home folder", "problem", "others can read it");
}

TEST_F(Doctor, NamesAnotherHubsCertificateAndAHubThatIsNotThere) {
  Process hub({"hub", "--listen", "127.0.0.1:0", "--data", folder_ + "/hub", "--no-mdns"});
  std::string line = hub.read_until("\n");
  line.erase(line.find_last_not_of('\n') + 1);
  std::string address = line.substr(line.rfind(' ') + 1);
  address.back() = address.back() == '0' ? '1' : '0';
  const Json wrong = run({"--hub", address});
  expect(wrong, "hub ", "problem", "another certificate");
  EXPECT_NE(check(wrong, "hub ")["advice"].get<std::string>().find("in between"),
            std::string::npos);
  expect(run({"--hub", "https://127.0.0.1:1"}), "hub ", "problem", "can't connect");
}

TEST_F(Doctor, NamesVersionsThatDiffer) {
  auto listener = wire::Listener::open({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  std::thread worker([&] {
    const auto deadline = wire::Clock::now() + std::chrono::seconds(60);
    if (!wire::wait_for(listener->fd(), false, deadline)) return;
    auto client = listener->accept();
    if (!client.ok() || !client->has_value()) return;
    wire::Connection connection(std::move(**client));
    EXPECT_TRUE(connection.receive_until(deadline, 4096).ok());
    wire::Welcome welcome;
    welcome.protocol = wire::kProtocolVersion - 1;
    welcome.contract = ring::contract_version();
    welcome.software = "tandem 0.0";
    EXPECT_TRUE(
        connection.send_until(deadline, {.type = wire::Type::kWelcome}, welcome.encode()).ok());
    (void)wire::wait_for(connection.fd(), false, deadline);
  });
  const Json result = run({"--workers", listener->address().text()});
  worker.join();
  expect(result, "worker ", "problem", "protocol version");
  EXPECT_NE(check(result, "worker ")["advice"].get<std::string>().find("same version"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::cli_test
