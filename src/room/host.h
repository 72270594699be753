// The process that asks a room's devices for an answer: enters the room, waits for its turn, gives
// out jobs, and tells the room what it does.
//
// Two threads of its own: one waits for what happens in the room, the other keeps the turn and
// carries what is told. Neither is on the way of an answer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "hub/client.h"
#include "room/entry.h"
#include "room/happenings.h"
#include "room/member.h"
#include "room/relay.h"

namespace tandem::room {

struct HostOptions {
  std::string name;                             ///< of this device, if the hub does not know it yet
  std::function<void(const std::string&)> say;  ///< a line for people; any thread. May be empty
  const std::atomic<bool>* cancel = nullptr;
};

/// Its members are for one thread, but those that say so.
class Host {
 public:
  /// Enters the room, as a guest if the device is not in it yet, and starts to watch it. Errors:
  /// those of Home::connect(), enter() and room_tls().
  static Result<std::unique_ptr<Host>> enter(hub::Home home, Way way, HostOptions options);
  /// Gives jobs and turn back.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] const std::string& code() const { return way_.link.code; }
  [[nodiscard]] const hub::Home& home() const { return home_; }
  [[nodiscard]] const std::shared_ptr<const wire::Tls>& tls() const { return tls_; }
  /// Ways to the room's devices, for the connections of a ring. It has to outlive them.
  [[nodiscard]] Relay& relay() { return *relay_; }
  [[nodiscard]] wire::Dialler dialler() {
    return [relay = relay_](const std::string& way, std::chrono::milliseconds timeout) {
      return relay->dial(way, timeout);
    };
  }
  /// What the room was made for: model, context, objective, …
  [[nodiscard]] const Json& spec() const { return spec_; }
  /// The room and its members now. Errors: kPeer, kNotFound (closed, or sent away).
  Result<Json> room();
  Result<std::vector<Member>> members();
  /// Of the members as they were last seen, those that hold jobs of this process.
  std::vector<Member> hired();

  /// Lets a device of the lobby in, with the room's key, or sends it away. Errors as room::allow().
  Status answer_lobby(const std::string& device, bool let_in);

  /// Waits until no other process is the room's host, and is it from then on. Errors: kCancelled,
  /// and the hub's.
  Status take_turn();
  /// Gives each of `devices` a job of that kind and waits until they are ready to serve this
  /// process, some seconds at most. Of those that are not, why. A device that holds such a job of
  /// this process already is ready. Errors: the hub's.
  Result<std::map<std::string, std::string>> hire(const std::vector<std::string>& devices,
                                                  const std::string& kind);

  /// Tells the room what a device holds or does, or why it holds nothing: what is known soonest
  /// twice a second. Any thread.
  void place(const std::string& device, const Json& placement);
  [[nodiscard]] Happenings& happenings() { return happenings_; }
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }
  [[nodiscard]] bool cancelled() const { return options_.cancel != nullptr && *options_.cancel; }

 private:
  Host(hub::Home home, Way way, HostOptions options);
  Result<hub::Client> connect(const std::atomic<bool>* stop);
  void watch(int64_t after);
  void watched(hub::Client& client, const Json& event);
  void asked(hub::Client& client, const std::string& device);
  void carry();
  void carry_placements(hub::Client& client);
  std::string label_of(const std::string& device);

  hub::Home home_;
  Way way_;
  HostOptions options_;
  std::optional<hub::Client> client_;
  std::vector<Member> last_members_;
  std::shared_ptr<const wire::Tls> tls_;
  std::shared_ptr<Relay> relay_;
  Json spec_;
  Happenings happenings_;
  std::atomic<bool> stopping_{false};

  struct Job {
    std::string device;
    std::string kind;
  };
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  int64_t turn_ = 0;        ///< token, or 0
  bool turn_over_ = false;  ///< somebody's turn has ended
  std::map<std::string, Job> jobs_;
  std::set<std::string> ready_;             ///< jobs that their devices are ready for
  std::map<std::string, Json> placements_;  ///< not told yet
  std::map<std::string, std::string> labels_;
  std::thread watcher_;
  std::thread carrier_;
};

}  // namespace tandem::room
