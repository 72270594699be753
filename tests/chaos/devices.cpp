#include "chaos/devices.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace tandem::chaos {
namespace {

using namespace std::chrono_literals;

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

/// Addresses of different test programs at the same time must differ: 10.x.y.0/24 by process.
std::string network(size_t index) {
  const auto process = static_cast<unsigned>(::getpid());
  return "10." + std::to_string(64 + process % 128) + "." +
         std::to_string((process / 128 % 16) * 16 + index % 16) + ".";
}

}  // namespace

std::string Namespaces::name(size_t index) const {
  return "tandem-" + std::to_string(::getpid()) + "-" + std::to_string(index);
}
std::string Namespaces::cable(size_t index) const {
  return "td" + std::to_string(::getpid()) + "x" + std::to_string(index);
}
std::string Namespaces::host(size_t index) const {
  return network(index) + "1";
}
std::string Namespaces::device(size_t index) const {
  return network(index) + "2";
}

std::unique_ptr<Namespaces> Namespaces::make(size_t count) {
  if (::geteuid() != 0 || count > 16) return nullptr;
  std::unique_ptr<Namespaces> made(new Namespaces(count));
  for (size_t i = 0; i < count; ++i) {
    const std::string space = made->name(i);
    const std::string cable = made->cable(i);
    const std::string inside = "ip -n " + space + " ";
    std::string pair = "ip link add " + cable;
    pair += " type veth peer name eth0 netns " + space;
    const bool ok = run("ip netns add " + space) && run(pair) &&
                    run("ip addr add " + made->host(i) + "/24 dev " + cable) &&
                    run("ip link set " + cable + " up") &&
                    run(inside + "addr add " + made->device(i) + "/24 dev eth0") &&
                    run(inside + "link set eth0 up") && run(inside + "link set lo up") &&
                    run(inside + "route add default via " + made->host(i));
    if (!ok) return nullptr;
  }
  return made;
}

Namespaces::~Namespaces() {
  for (size_t i = 0; i < count_; ++i) {
    run("ip link del " + cable(i));
    run("ip netns del " + name(i));
  }
}

void Namespaces::connect(size_t index, bool connected) const {
  run("ip link set " + cable(index) + (connected ? " up" : " down"));
}

Keeper::~Keeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Keeper::after(std::chrono::milliseconds time, std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    actions_.emplace(wire::Clock::now() + time, std::move(action));
  }
  changed_.notify_all();
}

void Keeper::now(const std::function<void()>& action) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  after(0ms, [&] {
    action();
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

void Keeper::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return actions_.empty() && !busy_; });
}

void Keeper::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (actions_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto due = actions_.begin()->first;
    if (due > wire::Clock::now()) {
      changed_.wait_until(lock, due);
      continue;
    }
    const auto action = std::move(actions_.begin()->second);
    actions_.erase(actions_.begin());
    busy_ = true;
    lock.unlock();
    action();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Device::Device(size_t index, const Namespaces* namespaces, uint64_t seed, std::string key)
    : index_(index), namespaces_(namespaces), key_(std::move(key)) {
  where_ = {namespaces == nullptr ? "127.0.0.1" : namespaces->device(index), 0};
  start();
  const std::string here = namespaces == nullptr ? "127.0.0.1" : namespaces->host(index);
  relay_ = std::make_unique<Relay>(wire::Address{here, 0}, where_, seed);
}

Device::~Device() {
  if (process_ != nullptr) freeze(false);
}

void Device::start() {
  if (alive()) return;
  const std::string program = TANDEM_BINARY_DIR "/tandem";
  const std::string models = TANDEM_SOURCE_DIR "/models";
  std::vector<std::string> arguments{"worker",    "--listen", where_.text(), "--models", models,
                                     "--threads", "1"};
  if (!key_.empty()) arguments.insert(arguments.end(), {"--key", key_});
  auto started = [&] {
    if (namespaces_ == nullptr) return ring::LocalWorkers::start(1, program, arguments);
    arguments.insert(arguments.begin(), {"netns", "exec", namespaces_->name(index_), program});
    return ring::LocalWorkers::start(1, "/sbin/ip", arguments);
  }();
  ASSERT_TRUE(started.ok()) << started.error().message;
  process_ = std::move(*started);
  where_ = *wire::parse_address(process_->addresses()[0]);
}

void Device::kill() {
  if (!alive()) return;
  ::kill(process_->processes()[0], SIGKILL);
  process_.reset();
}

void Device::freeze(bool frozen) {
  if (alive()) ::kill(process_->processes()[0], frozen ? SIGSTOP : SIGCONT);
}

void Device::cut(bool cut) {
  if (namespaces_ != nullptr) {
    namespaces_->connect(index_, !cut);
  } else if (cut) {
    relay_->stall(Which::kAll);
  } else {
    relay_->heal();
  }
}

}  // namespace tandem::chaos
