// A room for a chaos test, of real processes: a hub, workers that joined, a chat that asks; each
// behind a relay of ours, so that things can happen between any two of them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/devices.h"
#include "chaos/relay.h"

namespace tandem::chaos {

/// A process of the executable that ends with the thread that made it. Standard error goes to a
/// file.
class Child {
 public:
  /// `space`: network namespace to run in; empty: this one's.
  Child(std::vector<std::string> arguments, const std::string& home, const std::string& log,
        const std::string& space = "");
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  void write(const std::string& text) const;
  /// The next line of standard output; nothing at its end, or if it is not there in time.
  std::optional<std::string> line(std::chrono::milliseconds patience);

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string read_;
};

/// "https://HOST:PORT/…" at another "HOST:PORT".
std::string at(const std::string& url, const std::string& authority);

/// Members that start, end or signal processes are called on the Keeper's thread.
class RoomProcesses {
 public:
  /// `devices` workers that have joined. Ends the test program if that fails.
  RoomProcesses(size_t number, size_t devices, uint64_t seed);
  ~RoomProcesses();
  RoomProcesses(const RoomProcesses&) = delete;
  RoomProcesses& operator=(const RoomProcesses&) = delete;

  [[nodiscard]] size_t devices() const { return devices_.size(); }
  Relay& relay(size_t device) { return *devices_[device].relay; }
  Relay& hub_relay() { return *hub_relay_; }
  /// TANDEM_HOME of all its processes.
  [[nodiscard]] std::string home() const { return folder_ + "/home"; }
  [[nodiscard]] bool hub_runs() const { return hub_ != nullptr; }

  void start_hub();
  void end_hub() { hub_.reset(); }
  void signal_hub(int number) const;
  void start(size_t device);
  void kill(size_t device) { devices_[device].process.reset(); }
  void signal(size_t device, int number) const;
  /// Nothing passes between the two any more, and nobody is told.
  void part(size_t one, size_t other);
  /// The device's cable is out.
  void cut(size_t device);
  /// The process that asks from now on; of it the relays know that it is the host.
  std::unique_ptr<Child> chat(const std::vector<std::string>& flags);
  /// What was cut or stopped is as it was; who was ended is not.
  void heal();
  /// The end of what the processes wrote to standard error.
  [[nodiscard]] std::string logs() const;

 private:
  struct Device {
    std::string name;
    std::unique_ptr<Relay> relay;
    std::unique_ptr<Child> process;
  };
  void know(pid_t process);
  [[nodiscard]] std::string log(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  std::string hub_address_;  ///< where it listens: the same after each start
  std::unique_ptr<Relay> hub_relay_;
  std::unique_ptr<Child> hub_;
  std::vector<Device> devices_;
};

}  // namespace tandem::chaos
