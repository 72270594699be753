#include "hub/support.h"

#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "hub/secret.h"
#include "hub/server/database.h"

namespace tandem::hub_test {
namespace {

namespace fs = std::filesystem;

/// Runs a program to its end, quietly, as `user` if that is not 0; its exit code.
int run(const std::vector<std::string>& command, uid_t user, gid_t group, const fs::path& log) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ::dup2(out, 1);
    ::dup2(out, 2);
    if (user != 0 && (::setgid(group) != 0 || ::setuid(user) != 0)) ::_exit(126);
    if (::chdir("/") != 0) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

fs::path postgres_programs() {
  std::error_code error;
  fs::path newest;
  for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", error)) {
    if (fs::exists(entry.path() / "bin/initdb", error) && entry.path() > newest) {
      newest = entry.path();
    }
  }
  return newest.empty() ? newest : newest / "bin";
}

class Cluster {
 public:
  Cluster() {
    const fs::path programs = postgres_programs();
    if (programs.empty()) return;
    if (::geteuid() == 0) {  // PostgreSQL refuses to run as root
      const passwd* user = ::getpwnam("postgres");
      if (user == nullptr) user = ::getpwnam("nobody");
      if (user == nullptr) return;
      user_ = user->pw_uid;
      group_ = user->pw_gid;
    }
    std::string name = (fs::temp_directory_path() / "tandem-pg-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return;
    folder_ = name;
    if (user_ != 0 && ::chown(name.c_str(), user_, group_) != 0) return;
    control_ = (programs / "pg_ctl").string();
    const std::string data = (folder_ / "data").string();
    const fs::path log = folder_ / "log";
    { const std::ofstream made(log); }
    if (user_ != 0 && ::chown(log.c_str(), user_, group_) != 0) return;
    if (run({(programs / "initdb").string(), "-D", data, "-U", "tandem", "-A", "trust", "-E",
             "UTF8", "--no-locale", "--no-sync"},
            user_, group_, log) != 0) {
      return;
    }
    // A Unix socket in the folder itself: no port, nothing for others to reach.
    const std::string options =
        "-c listen_addresses='' -c fsync=off -c max_connections=60 "
        "-c shared_buffers=16MB -c unix_socket_directories=" +
        folder_.string();
    started_ = run({control_, "-D", data, "-w", "-t", "120", "-l", (folder_ / "log").string(), "-o",
                    options, "start"},
                   user_, group_, log) == 0;
    if (started_) url_ = "postgresql://tandem@/postgres?host=" + folder_.string();
  }
  ~Cluster() {
    if (started_) {
      run({control_, "-D", (folder_ / "data").string(), "-m", "immediate", "-w", "stop"}, user_,
          group_, folder_ / "log");
    }
    std::error_code error;
    if (!folder_.empty()) fs::remove_all(folder_, error);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  uid_t user_ = 0;
  gid_t group_ = 0;
  fs::path folder_;
  std::string control_;
  std::string url_;
  bool started_ = false;
};

}  // namespace

Folder::Folder() {
  std::string name = (fs::temp_directory_path() / "tandem-hub-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  path_ = name;
}

Folder::~Folder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

const std::string& postgres_url() {
  static const Cluster cluster;
  return cluster.url();
}

std::string fresh_database() {
  static std::atomic<int> counter{0};
  const std::string name = "t" + std::to_string(::getpid()) + "_" + std::to_string(counter++);
  const std::string& url = postgres_url();
  const Folder folder;
  const fs::path psql = postgres_programs() / "psql";
  EXPECT_EQ(
      run({psql.string(), url, "-q", "-c", "CREATE DATABASE " + name}, 0, 0, folder.path() / "log"),
      0);
  std::string own = url;
  own.replace(own.find("/postgres?"), 10, "/" + name + "?");
  return own;
}

Device::Device(const hub::HubAddress& hub, const std::string& name,
               const std::string& organization_key)
    : home(must(hub::Home::open(folder.path()))),
      client(must(home.connect(hub, name, organization_key))) {}

hub::Client Device::another() const {
  hub::Home mine = must(hub::Home::open(folder.path()));
  return must(mine.connect(client.hub(), "again"));
}

void HubTest::SetUp() {
  if (GetParam() == Store::kSqlite) return;
  if (postgres_url().empty()) GTEST_SKIP() << "PostgreSQL is not installed";
  store_ = fresh_database();
}

std::unique_ptr<hub::Hub> HubTest::start(const std::function<void(hub::HubOptions&)>& change) {
  hub::HubOptions options;
  options.listen = "127.0.0.1:0";
  options.data = folder_.path();
  options.store = store_;
  options.registrations_per_minute = 10000;
  options.guesses_per_minute = 10000;
  options.all_guesses_per_minute = 10000;
  options.requests_per_second = 10000;
  if (change) change(options);
  return must(hub::Hub::start(std::move(options)));
}

Room make_room(Device& host) {
  Room room;
  const hub::Json made =
      must(host.client.create_room({{"model", "storyteller"}, {"context", 4096}}, room.link.key));
  room.code = made["code"].get<std::string>();
  room.link.code = room.code;
  room.link.hub = host.client.hub();
  return room;
}

bool wait_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace tandem::hub_test
