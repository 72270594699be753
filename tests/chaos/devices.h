// What a chaos test is made of: worker processes behind relays, in network namespaces of their own
// where that is possible, and a thread that does things to them at given times.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chaos/relay.h"
#include "ring/local.h"

namespace tandem::chaos {

/// Network namespaces with a way to this one each, as if they were separate machines.
class Namespaces {
 public:
  /// Makes `count`. Null if this process may not, or the system can't.
  static std::unique_ptr<Namespaces> make(size_t count);
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  [[nodiscard]] std::string name(size_t index) const;
  /// Of the device, and of this process as the device sees it.
  [[nodiscard]] std::string device(size_t index) const;
  [[nodiscard]] std::string host(size_t index) const;
  /// Takes the cable out, and puts it back.
  void connect(size_t index, bool connected) const;

 private:
  explicit Namespaces(size_t count) : count_(count) {}
  [[nodiscard]] std::string cable(size_t index) const;
  size_t count_;
};

/// Runs what it is given at its time, on one thread, which also is the parent of the processes
/// (they end with it).
class Keeper {
 public:
  Keeper() : thread_([this] { loop(); }) {}
  /// Drops what is not due yet.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void after(std::chrono::milliseconds time, std::function<void()> action);
  /// Runs `action` on the thread and waits for it.
  void now(const std::function<void()>& action);
  /// Waits until nothing is left to do.
  void drain();

 private:
  void loop();
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::multimap<wire::Clock::time_point, std::function<void()>> actions_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

/// A worker process and the relay before it. Its members are called on the Keeper's thread, except
/// for relay() and address().
class Device {
 public:
  /// `key`: file of the room's key; empty: no TLS.
  Device(size_t index, const Namespaces* namespaces, uint64_t seed, std::string key = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// What others reach it by.
  [[nodiscard]] std::string address() const { return relay_->address(); }
  Relay& relay() { return *relay_; }
  [[nodiscard]] bool alive() const { return process_ != nullptr; }

  void start();
  void kill();
  void freeze(bool frozen);
  void cut(bool cut);

 private:
  const size_t index_;
  const Namespaces* namespaces_;
  const std::string key_;
  wire::Address where_;
  std::unique_ptr<ring::LocalWorkers> process_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace tandem::chaos
