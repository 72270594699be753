#include "chaos/room.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::chaos {
namespace {

using namespace std::chrono_literals;

constexpr auto kStarts = 60s;

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "room: %s\n", what.c_str());
  std::abort();
}

std::string last_word(const std::string& line) {
  return line.substr(line.rfind(' ') + 1);
}

std::string port_of(const std::string& address) {
  const size_t slash = std::min(address.find('/', address.find("//") + 2), address.size());
  const size_t colon = address.rfind(':', slash);
  return address.substr(colon + 1, slash - colon - 1);
}

}  // namespace

std::string at(const std::string& url, const std::string& authority) {
  const size_t begin = url.find("//") + 2;
  return url.substr(0, begin) + authority + url.substr(std::min(url.find('/', begin), url.size()));
}

Child::Child(std::vector<std::string> arguments, const std::string& home, const std::string& log,
             const std::string& space) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  const int err = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 || err < 0) {
    give_up("no pipes");
  }
  arguments.insert(arguments.begin(), TANDEM_BINARY_DIR "/tandem");
  if (!space.empty()) {
    arguments.insert(arguments.begin(), {"/sbin/ip", "netns", "exec", space});
  }
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> own{"TANDEM_HOME=" + home, "TANDEM_CACHE=off"};
  std::vector<char*> environment;
  for (std::string& one : own) environment.push_back(one.data());
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  environment.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err, 2);
    ::execve(argv[0], argv.data(), environment.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err);
  in_ = in[1];
  out_ = out[0];
}

Child::~Child() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::close(in_);
  ::close(out_);
}

void Child::signal(int number) const {
  ::kill(pid_, number);
}

void Child::write(const std::string& text) const {
  // Whoever is gone shows by its silence.
  [[maybe_unused]] const ssize_t written = ::write(in_, text.data(), text.size());
}

std::optional<std::string> Child::line(std::chrono::milliseconds patience) {
  const auto deadline = wire::Clock::now() + patience;
  for (;;) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    if (!wire::wait_for(out_, false, deadline)) return std::nullopt;
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(out_, buffer.data(), buffer.size());
    if (got <= 0) return std::nullopt;
    read_.append(buffer.data(), static_cast<size_t>(got));
  }
}

RoomProcesses::RoomProcesses(size_t number, size_t devices, uint64_t seed)
    : folder_(testing::TempDir() + "tandem-chaos-room-" + std::to_string(::getpid()) + "-" +
              std::to_string(number)),
      hub_address_("127.0.0.1:0") {
  ::signal(SIGPIPE, SIG_IGN);
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  hub_relay_ =
      std::make_unique<Relay>(wire::Address{"127.0.0.1", 0}, wire::Address{"127.0.0.1", 1}, seed);
  start_hub();
  std::ifstream known(log("hub.url"));
  std::string url;
  std::getline(known, url);
  Child create({"room", "create", "--hub", at(url, hub_relay_->address()), "--objective", "memory",
                "--context", "512", "--json"},
               folder_ + "/home", log("create.log"));
  const auto made = create.line(kStarts);
  const auto room = nlohmann::json::parse(made.value_or(""), nullptr, false);
  if (!room.is_object() || !room.contains("link")) give_up("no room: " + logs());
  std::ofstream(log("link")) << room["link"].get<std::string>() << "\n";
  for (size_t i = 0; i < devices; ++i) {
    devices_.push_back({"device-" + std::to_string(i),
                        std::make_unique<Relay>(wire::Address{"127.0.0.1", 0},
                                                wire::Address{"127.0.0.1", 1}, seed + 1 + i),
                        nullptr});
    start(i);
  }
}

RoomProcesses::~RoomProcesses() {
  heal();
  devices_.clear();
  hub_.reset();
  std::filesystem::remove_all(folder_);
}

void RoomProcesses::know(pid_t process) {
  hub_relay_->know(process);
  for (const Device& device : devices_) device.relay->know(process);
}

void RoomProcesses::start_hub() {
  if (hub_ != nullptr) return;
  hub_ = std::make_unique<Child>(std::vector<std::string>{"hub", "--listen", hub_address_, "--data",
                                                          folder_ + "/hub", "--no-mdns"},
                                 folder_ + "/home", log("hub.log"));
  const auto line = hub_->line(kStarts);
  if (!line) give_up("no hub: " + logs());
  const std::string url = last_word(*line);
  std::ofstream(log("hub.url")) << url << "\n";
  hub_address_ = "127.0.0.1:" + port_of(url);
  hub_relay_->target(*wire::parse_address(hub_address_));
}

void RoomProcesses::signal_hub(int number) const {
  if (hub_ != nullptr) hub_->signal(number);
}

void RoomProcesses::start(size_t device) {
  Device& one = devices_[device];
  if (one.process != nullptr) return;
  one.process = std::make_unique<Child>(
      std::vector<std::string>{"worker", "--join", "@" + log("link"), "--name", one.name,
                               "--listen", "127.0.0.1:0", "--address", one.relay->address(),
                               "--threads", "1", "--models", TANDEM_SOURCE_DIR "/models"},
      folder_ + "/home", log(one.name + ".log"));
  // With the hub away it can't join: then it is not there.
  const auto line = one.process->line(kStarts);
  if (!line) return one.process.reset();
  one.relay->target(*wire::parse_address(last_word(*line)));
  for (const Device& other : devices_) {
    if (other.process != nullptr) one.relay->know(other.process->pid());
  }
  know(one.process->pid());
}

void RoomProcesses::signal(size_t device, int number) const {
  if (devices_[device].process != nullptr) devices_[device].process->signal(number);
}

void RoomProcesses::part(size_t one, size_t other) {
  if (devices_[other].process != nullptr) relay(one).stall(devices_[other].process->pid());
  if (devices_[one].process != nullptr) relay(other).stall(devices_[one].process->pid());
}

void RoomProcesses::cut(size_t device) {
  relay(device).stall(Which::kAll);
  if (devices_[device].process == nullptr) return;
  const pid_t process = devices_[device].process->pid();
  hub_relay_->stall(process);
  for (const Device& other : devices_) other.relay->stall(process);
}

std::unique_ptr<Child> RoomProcesses::chat(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments{"chat",      "--room", "@" + log("link"), "--json", "-q",
                                     "--threads", "1",      "--memory",        "64M"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto process = std::make_unique<Child>(arguments, folder_ + "/home", log("chat.log"));
  hub_relay_->host(process->pid());
  for (const Device& device : devices_) device.relay->host(process->pid());
  return process;
}

void RoomProcesses::heal() {
  signal_hub(SIGCONT);
  hub_relay_->heal();
  for (size_t i = 0; i < devices_.size(); ++i) {
    signal(i, SIGCONT);
    relay(i).heal();
  }
}

std::string RoomProcesses::logs() const {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".log") continue;
    std::ifstream file(entry.path());
    std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.size() > 1500) text.erase(0, text.size() - 1500);
    all += "--- " + entry.path().filename().string() + "\n" + text;
  }
  return all;
}

}  // namespace tandem::chaos
