// A hub, a room at it, and workers that join, all as processes of the real executable.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/process.h"

namespace tandem::cli_test {

using Json = nlohmann::json;

/// A `tandem worker --join`, once it has joined.
class Joined {
 public:
  explicit Joined(const std::string& link, std::vector<std::string> flags = {},
                  std::vector<std::string> environment = {})
      : process_(
            [&] {
              std::vector<std::string> arguments{"worker", "--join", link, "--threads", "1"};
              arguments.insert(arguments.end(), flags.begin(), flags.end());
              return arguments;
            }(),
            environment) {
    process_.read_error_until(" has joined");
  }
  Process& process() { return process_; }

 private:
  Process process_;
};

class RoomProcesses : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = temporary("room-home");
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    ::setenv("TANDEM_HOME", (folder_ + "/home").c_str(), 1);
    start_hub("127.0.0.1:0");
    make_room();
  }
  /// A room at the hub, which is the one that the test goes on with.
  void make_room(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> all{"room",   "create",    "--hub", address_, "--objective",
                                 "memory", "--context", "256",   "--json"};
    all.insert(all.end(), flags.begin(), flags.end());
    room_ = Json::parse(tandem_ok(all));
    link_ = room_["link"];
    code_ = room_["code"];
    std::ofstream(folder_ + "/link") << link_ << "\n";
    at_ = "@" + folder_ + "/link";
  }
  void TearDown() override {
    hub_.reset();
    ::unsetenv("TANDEM_HOME");
    std::filesystem::remove_all(folder_);
  }
  void start_hub(const std::string& listen) {
    hub_ = std::make_unique<Process>(std::vector<std::string>{"hub", "--listen", listen, "--data",
                                                              folder_ + "/hub", "--no-mdns"});
    std::string line = hub_->read_until("\n");
    line.erase(line.find_last_not_of('\n') + 1);
    address_ = line.substr(line.rfind(' ') + 1);
  }
  [[nodiscard]] std::string port() const {
    const std::string bare = address_.substr(0, address_.find("/#"));
    return bare.substr(bare.rfind(':') + 1);
  }
  /// Another device: a folder of its own.
  [[nodiscard]] std::string other_home(const std::string& name) const {
    return "TANDEM_HOME=" + folder_ + "/" + name;
  }
  [[nodiscard]] Json view() const { return Json::parse(tandem_ok({"room", code_, "--json"})); }
  /// Waits until what `tandem room --json` shows is right.
  void wait_for_view(const std::function<bool(const Json&)>& right) const {
    for (int i = 0; i < 600; ++i) {
      if (right(view())) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ADD_FAILURE() << "waited in vain; the room is " << view();
  }
  /// `tandem run` in this process alone, and over the room.
  static Json alone(const std::string& prompt, const std::string& tokens = "12") {
    return Json::parse(tandem_ok({"run", "--json", "--max-tokens", tokens, prompt}));
  }
  [[nodiscard]] Json over_room(const std::string& prompt,
                               std::vector<std::string> flags = {}) const {
    std::vector<std::string> all{"run", "--room", at_,        "--json", "--max-tokens",
                                 "12",  prompt,   "--memory", "64M"};
    all.insert(all.end(), flags.begin(), flags.end());
    const std::string out = tandem_ok(all);
    Json answer = Json::parse(out, nullptr, false);
    EXPECT_TRUE(answer.is_object()) << out;
    return answer;
  }
  static bool has_event(const Json& answer, const std::string& kind) {
    return event_of(answer, kind) != nullptr;
  }
  static const Json* event_of(const Json& answer, const std::string& kind,
                              const std::string& peer = "") {
    if (!answer.contains("events")) return nullptr;
    for (const Json& event : answer["events"]) {
      if (event["kind"] == kind && (peer.empty() || event.value("peer", "") == peer)) return &event;
    }
    return nullptr;
  }
  static std::string text_of(const Json& answer, const std::string& kind,
                             const std::string& peer = "") {
    const Json* event = event_of(answer, kind, peer);
    return event == nullptr ? "" : event->value("text", "");
  }
  static const Json* device(const Json& room, const std::string& name) {
    for (const Json& one : room["devices"]) {
      if (one["name"] == name) return &one;
    }
    return nullptr;
  }
  /// Name of the device that holds layers, or stands by.
  static std::string holder(const Json& room, const std::string& state) {
    for (const Json& one : room["devices"]) {
      if (one.contains("placement") && one["placement"].value("state", "") == state) {
        return one["name"];
      }
    }
    return "";
  }

  std::string folder_;
  std::unique_ptr<Process> hub_;
  std::string address_;
  Json room_;
  std::string link_;
  std::string code_;
  std::string at_;
};

}  // namespace tandem::cli_test
