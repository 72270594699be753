// Answers over rooms to which things happen, with every part a process of its own: hub, devices
// that joined, the one that asks. Each answer is the undisturbed one to the bit, or ends with a
// clear reason.
//
//   chaos_tests --gtest_filter='RoomChaos.*' --room-faults 200 --seed 7 --rooms 3
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "chaos/options.h"
#include "chaos/room.h"

namespace tandem::chaos {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using Clock = wire::Clock;

constexpr auto kPatience = 90s;
constexpr std::array kPrompts{"Tell me a story about a fox.",
                              "Tell me a story about a king and his three sons.",
                              "Please tell me about a brave little boat and a storm."};

std::vector<std::string> answering() {
  return {"--max-tokens", "300"};
}

/// What one process answers to each prompt, undisturbed.
const std::vector<Json>& expected() {
  static const std::vector<Json> answers = [] {
    std::vector<std::string> arguments{"chat", "--json", "-q", "--context", "512"};
    for (const std::string& flag : answering()) arguments.push_back(flag);
    const std::string home = testing::TempDir() + "tandem-chaos-" + std::to_string(::getpid());
    Child alone(arguments, home, home + ".log");
    std::vector<Json> all;
    for (const char* prompt : kPrompts) {
      alone.write(std::string("/new\n") + prompt + "\n");
      all.push_back(Json::parse(alone.line(kPatience).value_or(""), nullptr, false));
    }
    std::error_code error;
    std::filesystem::remove_all(home, error);
    std::filesystem::remove(home + ".log", error);
    return all;
  }();
  return answers;
}

enum class Fault : uint8_t {
  kKill,
  kRestart,
  kPause,
  kFreeze,
  kPart,
  kUnreachable,
  kCutDevice,
  kCutLink,
  kReset,
  kCorrupt,
  kDelay,
  kHubRestart,
  kHubStop,
  kHubReset,
  kHubAway,
  kKillHost,
};
/// The quick ones first: those are what CI runs.
constexpr std::array kFaults{
    Fault::kKill,    Fault::kPart,     Fault::kHubRestart, Fault::kCorrupt,
    Fault::kCutLink, Fault::kReset,    Fault::kRestart,    Fault::kPause,
    Fault::kDelay,   Fault::kHubReset, Fault::kFreeze,     Fault::kUnreachable,
    Fault::kHubStop, Fault::kHubAway,  Fault::kCutDevice,  Fault::kKillHost};
const char* name(Fault fault) {
  constexpr std::array kNames{"kill",          "restart",     "stop 2 s", "stop 20 s",
                              "partition",     "unreachable", "cut",      "cut link",
                              "reset",         "corrupt",     "delay",    "hub restart",
                              "hub stop 10 s", "hub reset",   "hub away", "kill host"};
  return kNames[static_cast<size_t>(fault)];
}

struct Tally {
  std::mutex mutex;
  std::map<std::string, uint32_t> outcomes;
  std::map<std::string, double> longest;  ///< answer of a kind of fault, seconds
  uint32_t answers = 0;
  uint32_t reasons = 0;
  uint32_t relayed = 0;
};

class Room {
 public:
  Room(size_t number, uint64_t seed) : number_(number), random_(seed) {
    keeper_.now([&] { room_ = std::make_unique<RoomProcesses>(number, 2 + pick(3), seed); });
  }
  ~Room() {
    keeper_.now([&] {
      chat_.reset();
      room_.reset();
    });
  }

  void answer(Fault fault, Tally& tally) {
    heal();
    if (chat_ == nullptr || pick(4) == 0) open();
    const size_t which = pick(kPrompts.size());
    const auto at =
        std::chrono::milliseconds(pick(1 + static_cast<size_t>(usual_.count() * 2 / 3)));
    const auto start = Clock::now();
    if (fault != Fault::kKillHost || chat_ == nullptr) {
      later(at, [&, fault] { strike(fault); });
    }
    ask(which);
    if (fault == Fault::kKillHost) {
      std::this_thread::sleep_for(at);
      open();  // ends the one that asked in the middle of its answer
      ask(which);
    }
    const auto line = chat_->line(kPatience);
    const auto took = Clock::now() - start;
    const Json found = Json::parse(line.value_or(""), nullptr, false);
    report(fault, found, took, tally);
    EXPECT_TRUE(line.has_value()) << name(fault) << ": nothing within 90 s, or it crashed\n"
                                  << room_->logs();
    if (found.is_object() && !found.contains("error")) {
      EXPECT_EQ(found["text"], expected()[which]["text"]) << name(fault);
      EXPECT_EQ(found["logits_sha256"], expected()[which]["logits_sha256"]) << name(fault);
      return;
    }
    if (line.has_value()) {
      ASSERT_TRUE(found.is_object()) << *line;
      const std::string kind = found["error"].value("kind", "");
      EXPECT_TRUE(kind == "peer" || kind == "memory" || kind == "not_found") << *line;
      EXPECT_GT(found["error"].value("message", "").size(), 10U) << *line;
    }
    keeper_.now([&] { chat_.reset(); });
  }

 private:
  /// What is still to be done when the room goes is not done.
  void later(std::chrono::milliseconds time, std::function<void()> action) {
    keeper_.after(time, [this, action = std::move(action)] {
      if (room_ != nullptr) action();
    });
  }
  uint32_t pick(size_t below) { return static_cast<uint32_t>(random_() % below); }
  void ask(size_t which) { chat_->write(std::string("/new\n") + kPrompts[which] + "\n"); }

  /// Another process that asks, over ways with other delays.
  void open() {
    keeper_.now([&] { chat_.reset(); });
    keeper_.drain();  // a hub that is away comes back
    heal();
    constexpr std::array<int, 6> kDelays{0, 0, 1, 5, 10, 20};
    for (size_t i = 0; i < room_->devices(); ++i) {
      normal_ = std::chrono::milliseconds(kDelays[pick(kDelays.size())]);
      room_->relay(i).delay(normal_, normal_ / 4);
    }
    room_->hub_relay().delay(normal_, normal_ / 4);
    keeper_.now([&] { chat_ = room_->chat(answering()); });
    ask(0);
    const auto line = chat_->line(kPatience);
    const Json found = Json::parse(line.value_or(""), nullptr, false);
    ASSERT_TRUE(found.is_object() && found.contains("logits_sha256"))
        << line.value_or("nothing") << "\n"
        << room_->logs();
    EXPECT_EQ(found["logits_sha256"], expected()[0]["logits_sha256"]);
    ask(0);
    const auto before = Clock::now();
    ASSERT_TRUE(chat_->line(kPatience).has_value());
    usual_ = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - before);
  }

  void heal() {
    keeper_.now([&] {
      room_->heal();
      if (!room_->hub_runs()) return;
      for (size_t i = 0; i < room_->devices(); ++i) room_->start(i);
    });
  }

  /// On the keeper's thread.
  void strike(Fault fault) {
    const size_t device = pick(room_->devices());
    const size_t other = (device + 1 + pick(room_->devices() - 1)) % room_->devices();
    Relay& relay = room_->relay(device);
    const auto delay = normal_;
    switch (fault) {
      case Fault::kKill:
        return room_->kill(device);
      case Fault::kRestart:
        room_->kill(device);
        return room_->start(device);
      case Fault::kPause:
      case Fault::kFreeze:
        room_->signal(device, SIGSTOP);
        return later(fault == Fault::kPause ? 2s : 20s,
                     [&, device] { room_->signal(device, SIGCONT); });
      case Fault::kPart:
        return room_->part(device, other);
      case Fault::kUnreachable:
        return relay.stall(Which::kAll);
      case Fault::kCutDevice:
        return room_->cut(device);
      case Fault::kCutLink:
        return relay.stall(pick(2) == 0 ? Which::kHost : Which::kNeighbour);
      case Fault::kReset:
        return relay.reset(Which::kAll);
      case Fault::kCorrupt:
        if (!relay.corrupt(Which::kAll)) room_->hub_relay().corrupt(Which::kAll);
        return;
      case Fault::kDelay:
        relay.delay(300ms, 100ms);
        return later(3s, [&relay, delay] { relay.delay(delay, delay / 4); });
      case Fault::kHubRestart:
        room_->end_hub();
        return room_->start_hub();
      case Fault::kHubStop:
        room_->signal_hub(SIGSTOP);
        return later(10s, [&] { room_->signal_hub(SIGCONT); });
      case Fault::kHubReset:
        return room_->hub_relay().reset(Which::kAll);
      case Fault::kHubAway:
        room_->end_hub();
        return later(60s, [&] { room_->start_hub(); });
      case Fault::kKillHost:
        return;
    }
  }

  void report(Fault fault, const Json& answer, Clock::duration took, Tally& tally) {
    std::string events;
    bool relayed = false;
    const bool good = answer.is_object() && answer.contains("logits_sha256");
    if (good) {
      for (const Json& event : answer["events"]) {
        events += " " + event["kind"].get<std::string>();
        relayed = relayed || event["kind"] == "relay";
      }
    } else {
      events = " " + answer.dump();
    }
    const bool noticed = events.find("lost") != std::string::npos ||
                         events.find("link") != std::string::npos ||
                         events.find("silent") != std::string::npos;
    const std::string outcome = !good ? "reason" : noticed ? "went on" : "unnoticed";
    const double seconds = std::chrono::duration<double>(took).count();
    EXPECT_LT(took, kPatience + 5s) << name(fault);
    const std::lock_guard lock(tally.mutex);
    ++tally.answers;
    tally.reasons += good ? 0 : 1;
    tally.relayed += relayed ? 1 : 0;
    ++tally.outcomes[std::string(name(fault)) + ": " + outcome];
    double& longest = tally.longest[name(fault)];
    longest = std::max(longest, seconds);
    std::printf("room %zu of %zu, %-13s %6.2f s %s%s\n", number_, room_->devices(), name(fault),
                seconds, outcome.c_str(), events.c_str());
    std::fflush(stdout);
  }

  const size_t number_;
  std::mt19937_64 random_;
  std::chrono::milliseconds normal_{0};
  std::chrono::milliseconds usual_{0};  ///< what an answer takes undisturbed
  std::unique_ptr<RoomProcesses> room_;
  std::unique_ptr<Child> chat_;
  Keeper keeper_;  // ends first
};

TEST(RoomChaos, AnswersStayTheSameWhateverHappensToTheRoom) {
  const ChaosOptions& options = chaos_options();
  std::mt19937_64 random(options.seed);
  std::vector<Fault> drawn;
  while (drawn.size() < options.room_faults) {
    auto all = kFaults;
    // Few faults are the quick ones, of each kind one.
    if (options.room_faults >= all.size()) std::shuffle(all.begin(), all.end(), random);
    drawn.insert(drawn.end(), all.begin(), all.end());
  }
  drawn.resize(options.room_faults);
  if (drawn.empty()) GTEST_SKIP() << "no faults asked for";
  (void)expected();
  Tally tally;
  in_rooms(std::min<size_t>(options.rooms, (drawn.size() + 3) / 4), drawn.size(), random,
           [&](size_t i, uint64_t room_seed) {
             auto room = std::make_shared<Room>(i, room_seed);
             return [&, room](size_t at) { room->answer(drawn[at], tally); };
           });
  for (const auto& [outcome, times] : tally.outcomes) {
    std::printf("%4u  %s\n", times, outcome.c_str());
  }
  for (const auto& [fault, seconds] : tally.longest) {
    std::printf("longest answer with %s: %.1f s\n", fault.c_str(), seconds);
  }
  std::printf("%u answers, %u ended with a reason, %u took the hub's relay, seed %llu\n",
              tally.answers, tally.reasons, tally.relayed,
              static_cast<unsigned long long>(options.seed));
  EXPECT_EQ(tally.answers, drawn.size());
}

bool has(const Json& answer, const std::string& kind) {
  for (const Json& event : answer.value("events", Json::array())) {
    if (event["kind"] == kind) return true;
  }
  return false;
}

/// Asks the first prompt; the answer, which has to be the undisturbed one.
Json ask(Child& chat, const std::function<std::string()>& logs) {
  chat.write(std::string("/new\n") + kPrompts[0] + "\n");
  const auto line = chat.line(kPatience);
  const Json found = Json::parse(line.value_or(""), nullptr, false);
  EXPECT_TRUE(found.is_object() && found.contains("logits_sha256"))
      << line.value_or("nothing") << logs();
  if (!found.is_object() || !found.contains("logits_sha256")) return Json::object();
  EXPECT_EQ(found["text"], expected()[0]["text"]);
  EXPECT_EQ(found["logits_sha256"], expected()[0]["logits_sha256"]);
  return found;
}

TEST(RoomChaos, APartitionBetweenTwoWorkersIsGoneAroundThroughTheHub) {
  std::unique_ptr<RoomProcesses> room;
  std::unique_ptr<Child> chat;
  Keeper keeper;
  keeper.now([&] {
    room = std::make_unique<RoomProcesses>(100, 2, 1);
    chat = room->chat(answering());
  });
  const auto logs = [&] { return room->logs(); };
  ask(*chat, logs);
  const auto before = Clock::now();
  EXPECT_FALSE(has(ask(*chat, logs), "link"));
  const auto usual = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - before);
  keeper.after(usual / 3, [&] { room->part(0, 1); });
  // It may be that the first one is through before.
  const Json first = ask(*chat, logs);
  keeper.drain();
  const Json second = ask(*chat, logs);
  EXPECT_TRUE(has(first, "link") || has(second, "link")) << first << second;
  EXPECT_TRUE(has(first, "relay") || has(second, "relay")) << first << second;
  EXPECT_FALSE(has(first, "detour") || has(second, "detour")) << first << second;
  EXPECT_FALSE(has(first, "lost") || has(second, "lost")) << first << second;
  keeper.now([&] {
    chat.reset();
    room.reset();
  });
}

std::string text_of(const Json& answer, const std::string& kind) {
  for (const Json& event : answer.value("events", Json::array())) {
    if (event["kind"] == kind) return event.value("text", "");
  }
  return "";
}

TEST(RoomChaos, LinksByTheRelayAreMeasuredBeforeTheLayersAreDealtAnew) {
  constexpr auto kDelay = 4ms;
  std::unique_ptr<RoomProcesses> room;
  std::unique_ptr<Child> chat;
  Keeper keeper;
  keeper.now([&] {
    room = std::make_unique<RoomProcesses>(101, 3, 1);
    std::vector<std::string> flags = answering();
    flags.emplace_back("--no-spares");
    chat = room->chat(flags);
  });
  const auto logs = [&] { return room->logs(); };
  const std::string planned = text_of(ask(*chat, logs), "planned");
  // In the order of the ring: the one that goes leaves two neighbours.
  size_t last = 0;
  for (size_t i = 0; i < 3; ++i) {
    const size_t at = planned.find("device-" + std::to_string(i));
    ASSERT_NE(at, std::string::npos) << planned;
    if (at > planned.find("device-" + std::to_string(last))) last = i;
  }
  room->hub_relay().delay(kDelay, 0ms);
  keeper.now([&] {
    for (size_t i = 0; i < 3; ++i) room->part(i, (i + 1) % 3);
  });
  Json answer = ask(*chat, logs);
  EXPECT_TRUE(has(answer, "relay")) << answer;
  EXPECT_FALSE(has(answer, "measuring")) << answer;
  keeper.now([&] { room->kill(last); });
  answer = ask(*chat, logs);
  EXPECT_TRUE(has(answer, "replanned")) << answer;
  EXPECT_EQ(text_of(answer, "measuring"), "links by the relay") << answer;
  EXPECT_FALSE(has(answer, "measuring_failed")) << answer;
  // What the plan counted with is the way that the answer took: twice through the hub.
  uint64_t rtt = 0;
  for (const auto& entry : std::filesystem::directory_iterator(room->home() + "/measured")) {
    std::ifstream file(entry.path());
    const Json measured = Json::parse(file, nullptr, false);
    for (const auto& [pair, link] : measured["links"].items()) {
      if (pair.starts_with("relay ")) rtt = link["rtt_ns"]["median"];
    }
  }
  EXPECT_GE(std::chrono::nanoseconds(rtt), 4 * kDelay);
  keeper.now([&] {
    chat.reset();
    room.reset();
  });
}

TEST(RoomChaos, DevicesOfSeparateNetworksAnswerThroughTheHub) {
  const auto networks = Namespaces::make(2);
  if (networks == nullptr) GTEST_SKIP() << "no network namespaces here (they need root)";
  const std::string folder = testing::TempDir() + "tandem-networks-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const std::string home = folder + "/home";
  Child hub({"hub", "--listen", "0.0.0.0:0", "--data", folder + "/hub", "--no-mdns"}, home,
            folder + "/hub.log");
  const std::string listening = hub.line(kPatience).value_or("");
  const std::string url = listening.substr(listening.rfind(' ') + 1);
  const size_t begin = url.find("//") + 2;
  const std::string authority = url.substr(begin, url.find('/', begin) - begin);
  const std::string port = authority.substr(authority.rfind(':'));
  Child create({"room", "create", "--hub", at(url, "127.0.0.1" + port), "--objective", "memory",
                "--context", "512", "--json"},
               home, folder + "/create.log");
  const Json made = Json::parse(create.line(kPatience).value_or(""), nullptr, false);
  ASSERT_TRUE(made.is_object() && made.contains("link")) << listening << made;
  const std::string link = made["link"];
  std::vector<std::unique_ptr<Child>> devices;
  for (size_t i = 0; i < 2; ++i) {
    // It has a way to the machine that the hub is on, and to no other network.
    ASSERT_EQ(std::system(("ip -n " + networks->name(i) + " route del default").c_str()), 0);
    const std::string name = "device-" + std::to_string(i);
    std::ofstream(folder + "/" + name) << at(link, networks->host(i) + port) << "\n";
    devices.push_back(std::make_unique<Child>(
        std::vector<std::string>{"worker", "--join", "@" + folder + "/" + name, "--name", name,
                                 "--threads", "1", "--models", TANDEM_SOURCE_DIR "/models"},
        home, folder + "/" + name + ".log", networks->name(i)));
    ASSERT_TRUE(devices.back()->line(kPatience).has_value());
  }
  std::ofstream(folder + "/link") << link << "\n";
  std::vector<std::string> arguments{"chat",     "--room", "@" + folder + "/link", "--json", "-q",
                                     "--memory", "64M"};
  for (const std::string& flag : answering()) arguments.push_back(flag);
  Child chat(arguments, home, folder + "/chat.log");
  const Json answer = ask(chat, [] { return std::string(); });
  // The room is told twice a second.
  Json seen;
  size_t direct = 0;
  size_t relayed = 0;
  for (int i = 0; i < 100 && (direct != 2 || relayed != 1); ++i) {
    Child look({"room", "@" + folder + "/link", "--json"}, home, folder + "/look.log");
    seen = Json::parse(look.line(kPatience).value_or(""), nullptr, false);
    direct = relayed = 0;
    for (const Json& device : seen.value("devices", Json::array())) {
      const Json placement = device.value("placement", Json::object());
      direct += placement.value("way", "") == "direct" ? 1 : 0;
      relayed += placement.value("next", "") == "relay" ? 1 : 0;
    }
  }
  EXPECT_EQ(direct, 2U) << seen;
  EXPECT_EQ(relayed, 1U) << seen << answer;
  std::error_code error;
  std::filesystem::remove_all(folder, error);
}

}  // namespace
}  // namespace tandem::chaos
