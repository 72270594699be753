// Answers over workers to which things happen: each is the undisturbed one to the bit, or ends with
// a clear reason.
//
//   chaos_tests --faults 200 --seed 7 --rooms 8
//
// Faults come from a seeded generator, in several rooms at once, since most of the time is waiting.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "chaos/devices.h"
#include "chaos/options.h"
#include "model/stage.h"
#include "ring/generate.h"
#include "ring/host.h"
#include "ring/stored_model.h"
#include "text/tokenizer.h"

namespace tandem::chaos {
namespace {

using namespace std::chrono_literals;
using ring::Event;
using ring::LayerRange;

constexpr uint32_t kContext = 512;
constexpr auto kPatience = 90s;
/// Devices of a room.
constexpr size_t kMostDevices = 5;

/// The model, and what it answers undisturbed. Read by all rooms.
struct Story : toy::StoredModel {
  Story() : StoredModel(kFolder), tokenizer(*text::Tokenizer::load(kFolder)) {
    for (size_t i = 0; i < requests.size(); ++i) {
      ring::GenerateRequest& request = requests[i];
      request.prompt.resize(20 + 60 * i);
      for (size_t k = 0; k < request.prompt.size(); ++k) {
        request.prompt[k] = static_cast<uint32_t>((k * 37 + 11 * i + 5) % config.vocab);
      }
      request.max_tokens = 20 + static_cast<uint32_t>(10 * i);
      request.hash_logits = true;
      auto opened = ring::Ring::open(options({}));
      const auto ends = load_ends();
      ring::Conversation alone(**opened, *ends, config.vocab, kContext, &tokenizer, nullptr);
      request.on_text = [&, i](std::string_view) { return ++pieces[i] > 0; };
      expected.push_back(*alone.generate(request));
      request.on_text = {};
    }
  }
  ring::RingOptions options(std::vector<ring::RingWorker> workers) {
    ring::RingOptions options = StoredModel::options(std::move(workers));
    options.context = kContext;
    options.survive = true;
    return options;
  }
  std::unique_ptr<model::Ends> load_ends() {
    return std::move(*model::Ends::load(config, {}, *checkpoint, {}));
  }

  static constexpr const char* kFolder = TANDEM_SOURCE_DIR "/models/storyteller";
  text::Tokenizer tokenizer;
  std::array<ring::GenerateRequest, 3> requests;
  std::array<uint32_t, 3> pieces{};  ///< of text, of each answer
  std::vector<ring::Answer> expected;
};

Story& story() {
  static Story one;
  return one;
}

size_t count(const std::vector<Event>& events, Event::Kind kind) {
  return static_cast<size_t>(std::count_if(events.begin(), events.end(),
                                           [&](const Event& event) { return event.kind == kind; }));
}

std::string describe(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) {
    text +=
        " " + std::to_string(static_cast<int>(event.at_ms)) + ":" + std::string(name(event.kind));
  }
  return text;
}

enum class Fault : uint8_t {
  kKill,
  kRestart,
  kPause,
  kFreeze,
  kCut,
  kCutLink,
  kReset,
  kResetLink,
  kCorrupt,
  kDelay,
  kRate,
};
constexpr std::array kFaults{Fault::kKill,    Fault::kRestart, Fault::kPause, Fault::kFreeze,
                             Fault::kCut,     Fault::kCutLink, Fault::kReset, Fault::kResetLink,
                             Fault::kCorrupt, Fault::kDelay,   Fault::kRate};
const char* name(Fault fault) {
  constexpr std::array kNames{"kill",  "restart",    "stop 2 s", "stop 20 s", "cut", "cut link",
                              "reset", "reset link", "corrupt",  "delay",     "rate"};
  return kNames[static_cast<size_t>(fault)];
}

/// What all rooms saw.
struct Tally {
  std::mutex mutex;
  std::map<std::string, uint32_t> outcomes;
  std::map<std::string, double> longest;  ///< of a kind of recovery, milliseconds
  uint32_t answers = 0;
  uint32_t reasons = 0;
};

/// A ring over three to five devices, of which one may be a spare.
class Room {
 public:
  /// Every other one has a key, and so TLS.
  Room(size_t number, const Namespaces* namespaces, uint64_t room_seed)
      : number_(number), random_(room_seed), ends_(story().load_ends()) {
    if (number % 2 == 1) {
      const std::string digits = "000102030405060708090a0b0c0d0e0f";
      key_ = testing::TempDir() + "tandem-chaos-" + std::to_string(::getpid()) + "-" +
             std::to_string(number);
      std::ofstream(key_) << digits;
      tls_ = *wire::Tls::create(*wire::Identity::create(), *wire::parse_room_key(digits));
    }
    keeper_.now([&] {
      for (size_t i = 0; i < kMostDevices; ++i) {
        devices_.push_back(
            std::make_unique<Device>(number * kMostDevices + i, namespaces, random_(), key_));
      }
    });
  }
  ~Room() {
    ring_.reset();
    keeper_.drain();
    keeper_.now([&] { devices_.clear(); });
    if (!key_.empty()) std::filesystem::remove(key_);
  }

  void answer(Fault fault, Tally& tally) {
    heal();
    if (ring_ == nullptr || pick(3) == 0) open();
    ASSERT_NE(ring_, nullptr);
    const size_t which = pick(story().requests.size());
    ring::GenerateRequest request = story().requests[which];
    const uint32_t at = pick(story().pieces[which] * 4 / 5);
    uint32_t pieces = 0;
    // Before the prompt, or when some pieces of text are there.
    if (at == 0) strike(fault);
    request.on_text = [&](std::string_view) {
      if (++pieces == at) strike(fault);
      return true;
    };
    std::vector<Event> events;
    request.on_event = [&](const Event& event) { events.push_back(event); };
    const auto start = wire::Clock::now();
    ASSERT_TRUE(ring_->reset().ok());
    ring::Conversation conversation(*ring_, *ends_, story().config.vocab, kContext,
                                    &story().tokenizer, nullptr);
    const auto answer = conversation.generate(request);
    const auto took = wire::Clock::now() - start;
    report(fault, answer, events, took, tally);
    EXPECT_LT(took, kPatience) << name(fault);
    if (answer.ok()) {
      const ring::Answer& expected = story().expected[which];
      EXPECT_EQ(answer->text, expected.text) << name(fault);
      EXPECT_EQ(hex(answer->logits_sha256), hex(expected.logits_sha256)) << name(fault);
    } else {
      EXPECT_EQ(answer.error().kind, ErrorKind::kPeer);
      EXPECT_NE(answer.error().message.find("worker "), std::string::npos)
          << answer.error().message;
      ring_.reset();
    }
  }

 private:
  uint32_t pick(size_t below) { return static_cast<uint32_t>(random_() % below); }

  void open() {
    ring_.reset();
    // A device that is still frozen can't be opened; that it was replaced was seen before.
    keeper_.drain();
    heal();
    constexpr std::array<int, 6> kDelays{0, 0, 1, 5, 20, 50};
    const size_t used = 3 + pick(kMostDevices - 2);
    const bool spare = pick(2) == 0;
    const size_t working = used - (spare ? 1 : 0);
    for (const auto& device : devices_) {
      normal_ = std::chrono::milliseconds(kDelays[pick(kDelays.size())]);
      device->relay().delay(normal_, normal_ / 4);
    }
    std::set<uint32_t> cuts;
    const uint32_t layers = story().config.layers;
    while (cuts.size() < working - 1) cuts.insert(1 + pick(layers - 1));
    std::vector<ring::RingWorker> workers;
    uint32_t first = 0;
    for (const uint32_t cut : cuts) {
      workers.push_back({devices_[workers.size()]->address(), {first, cut}});
      first = cut;
    }
    workers.push_back({devices_[workers.size()]->address(), {first, layers}});
    const auto ready = workers[pick(workers.size())].layers;
    // Some layers may be the host's.
    if (pick(3) == 0 && workers.size() > 2) workers.erase(workers.begin() + pick(workers.size()));
    auto options = story().options(workers);
    options.tls = tls_;
    if (spare) options.spares = {{devices_[used - 1]->address(), ready}};
    working_ = used - (spare ? 1 : 0);
    auto opened = ring::Ring::open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ring_ = std::move(*opened);
  }

  /// Whatever is broken for good is as it was.
  void heal() {
    keeper_.now([&] {
      for (const auto& device : devices_) {
        device->cut(false);
        device->relay().heal();
        device->start();
      }
    });
  }

  void strike(Fault fault) {
    const bool link = fault == Fault::kCutLink || fault == Fault::kResetLink;
    // The first one has no link from a neighbour.
    Device& device = *devices_[link && working_ > 1 ? 1 + pick(working_ - 1) : pick(working_)];
    Relay& relay = device.relay();
    const auto delay = normal_;
    switch (fault) {
      case Fault::kKill:
        return keeper_.now([&] { device.kill(); });
      case Fault::kRestart:
        keeper_.now([&] { device.kill(); });
        return keeper_.after(std::chrono::milliseconds(pick(1500)), [&] { device.start(); });
      case Fault::kPause:
      case Fault::kFreeze:
        keeper_.now([&] { device.freeze(true); });
        return keeper_.after(fault == Fault::kPause ? 2s : 20s, [&] { device.freeze(false); });
      case Fault::kCut:
        return keeper_.now([&] { device.cut(true); });
      case Fault::kCutLink:
        return relay.stall(Which::kNeighbour);
      case Fault::kReset:
        return relay.reset(pick(2) == 0 ? Which::kAll : Which::kHost);
      case Fault::kResetLink:
        return relay.reset(Which::kNeighbour);
      case Fault::kCorrupt:
        if (pick(2) == 0 && relay.corrupt(Which::kNeighbour)) return;
        relay.corrupt(Which::kAll);
        return;
      case Fault::kDelay:
        relay.delay(300ms, 100ms);
        return keeper_.after(3s, [&relay, delay] { relay.delay(delay, delay / 4); });
      case Fault::kRate:
        return relay.rate(20000);
    }
  }

  void report(Fault fault, const Result<ring::Answer>& answer, const std::vector<Event>& events,
              wire::Clock::duration took, Tally& tally) {
    const std::string outcome = !answer.ok() ? "reason" : events.empty() ? "unnoticed" : "went on";
    const std::lock_guard lock(tally.mutex);
    ++tally.answers;
    if (!answer.ok()) ++tally.reasons;
    ++tally.outcomes[std::string(name(fault)) + ": " + outcome];
    std::printf("room %zu, %-10s %6.2f s %s%s%s\n", number_, name(fault),
                std::chrono::duration<double>(took).count(), outcome.c_str(),
                describe(events).c_str(),
                answer.ok() ? "" : (" " + answer.error().message).c_str());
    std::fflush(stdout);
    double since = 0;
    std::string how;
    for (const Event& event : events) {
      if (event.kind == Event::Kind::kLost && how.empty()) since = event.at_ms;
      if (event.kind == Event::Kind::kSpare) how = "spare";
      if (event.kind == Event::Kind::kReplanned) how = "re-plan";
      if (event.kind == Event::Kind::kReplaying && !how.empty()) {
        tally.longest[how] = std::max(tally.longest[how], event.at_ms - since);
        how.clear();
      }
    }
  }

  const size_t number_;
  std::mt19937_64 random_;
  std::unique_ptr<model::Ends> ends_;
  std::string key_;  ///< file
  std::shared_ptr<const wire::Tls> tls_;
  Keeper keeper_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::chrono::milliseconds normal_{0};
  size_t working_ = 0;
  std::unique_ptr<ring::Ring> ring_;
};

/// Faults in an order that has each kind as often as any other.
std::vector<Fault> draw_faults(uint32_t number, std::mt19937_64& random) {
  std::vector<Fault> drawn;
  while (drawn.size() < number) {
    auto all = kFaults;
    std::shuffle(all.begin(), all.end(), random);
    drawn.insert(drawn.end(), all.begin(), all.end());
  }
  drawn.resize(number);
  return drawn;
}

void run_chaos(const Namespaces* namespaces, uint32_t number, uint64_t from) {
  std::mt19937_64 random(from);
  const auto drawn = draw_faults(number, random);
  Tally tally;
  (void)story();
  in_rooms(std::min<size_t>(chaos_options().rooms, number), drawn.size(), random,
           [&](size_t i, uint64_t room_seed) {
             auto room = std::make_shared<Room>(i, namespaces, room_seed);
             return [&, room](size_t at) { room->answer(drawn[at], tally); };
           });
  for (const auto& [outcome, times] : tally.outcomes) {
    std::printf("%4u  %s\n", times, outcome.c_str());
  }
  for (const auto& [how, time] : tally.longest) {
    std::printf("longest %s, from the loss to the first token run again: %.0f ms\n", how.c_str(),
                time);
  }
  std::printf("%u answers, %u ended with a reason, seed %llu\n", tally.answers, tally.reasons,
              static_cast<unsigned long long>(from));
  EXPECT_EQ(tally.answers, number);
}

TEST(Chaos, AnswersStayTheSameOverRelays) {
  run_chaos(nullptr, chaos_options().faults, chaos_options().seed);
}

TEST(Chaos, AnswersStayTheSameBetweenSeparateHosts) {
  const auto namespaces = Namespaces::make(1 * kMostDevices);
  if (namespaces == nullptr) GTEST_SKIP() << "no network namespaces here (they need root)";
  const uint32_t before = std::exchange(chaos_options().rooms, 1);
  run_chaos(namespaces.get(), 4, chaos_options().seed + 1);
  chaos_options().rooms = before;
}

/// Two workers with half of the layers each, and a third device beside them.
struct Pair : testing::Test {
  Pair() : ends(story().load_ends()) {
    keeper.now([&] {
      for (size_t i = 0; i < 3; ++i) {
        devices.push_back(std::make_unique<Device>(i, nullptr, i));
      }
    });
  }
  ~Pair() override {
    ring.reset();
    keeper.now([&] { devices.clear(); });
  }
  void open(bool spare) {
    const uint32_t layers = story().config.layers;
    auto options = story().options(
        {{devices[0]->address(), {0, layers / 2}}, {devices[1]->address(), {layers / 2, layers}}});
    if (spare) options.spares = {{devices[2]->address(), {layers / 2, layers}}};
    auto opened = ring::Ring::open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ring = std::move(*opened);
  }
  /// The undisturbed answer must come; `then` is called after its third piece of text.
  std::vector<Event> answer(const std::function<void()>& then, const ring::Listener& listen = {}) {
    ring::GenerateRequest request = story().requests[1];
    int pieces = 0;
    request.on_text = [&](std::string_view) {
      if (++pieces == 3 && then) then();
      return true;
    };
    request.on_event = listen;
    EXPECT_TRUE(ring->reset().ok());
    ring::Conversation conversation(*ring, *ends, story().config.vocab, kContext,
                                    &story().tokenizer, nullptr);
    const auto answer = conversation.generate(request);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    if (!answer.ok()) return {};
    EXPECT_EQ(answer->text, story().expected[1].text);
    EXPECT_EQ(hex(answer->logits_sha256), hex(story().expected[1].logits_sha256));
    std::printf("%s\n", describe(answer->events).c_str());
    return answer->events;
  }
  std::unique_ptr<model::Ends> ends;
  Keeper keeper;
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<ring::Ring> ring;
};

TEST_F(Pair, ALinkThatStallsIsReplacedByTheWayThroughTheHost) {
  open(false);
  const auto events = answer([&] { devices[1]->relay().stall(Which::kNeighbour); });
  EXPECT_EQ(count(events, Event::Kind::kLink), 1U);
  EXPECT_EQ(count(events, Event::Kind::kDetour), 1U);
  EXPECT_EQ(count(events, Event::Kind::kLost), 0U);
  EXPECT_TRUE(ring->stages()[0].relayed);
  EXPECT_TRUE(answer({}).empty());
}

TEST_F(Pair, ALinkThatBreaksIsMadeAnewAndTheSecondTimeGoneAround) {
  open(false);
  for (const bool second : {false, true}) {
    const auto events = answer([&] { devices[1]->relay().reset(Which::kNeighbour); });
    EXPECT_EQ(count(events, Event::Kind::kLink), 1U);
    EXPECT_EQ(count(events, Event::Kind::kLost), 0U);
    EXPECT_EQ(count(events, Event::Kind::kDetour), second ? 1U : 0U);
    EXPECT_EQ(ring->stages()[0].relayed, second);
  }
}

TEST_F(Pair, ABitThatFlipsBetweenWorkersIsFound) {
  open(false);
  const auto events = answer([&] { EXPECT_TRUE(devices[1]->relay().corrupt(Which::kNeighbour)); });
  EXPECT_EQ(devices[1]->relay().corrupted(), 1U);
  ASSERT_EQ(count(events, Event::Kind::kLink), 1U);
  EXPECT_NE(events[0].text.find("damaged"), std::string::npos) << events[0].text;
  EXPECT_EQ(count(events, Event::Kind::kLost), 0U);
}

TEST_F(Pair, AFrozenWorkerIsReplacedAndFencedOut) {
  open(true);
  const auto events = answer([&] { keeper.now([&] { devices[1]->freeze(true); }); },
                             [&](const Event& event) {
                               if (event.kind != Event::Kind::kSpare) return;
                               keeper.now([&] { devices[1]->freeze(false); });
                             });
  EXPECT_EQ(count(events, Event::Kind::kSilent), 1U);
  EXPECT_EQ(count(events, Event::Kind::kLost), 1U);
  EXPECT_EQ(count(events, Event::Kind::kSpare), 1U);
  // What it computed late reaches nobody; as a device it is as good as before.
  EXPECT_TRUE(answer({}).empty());
  const auto again = answer([&] { keeper.now([&] { devices[2]->kill(); }); });
  EXPECT_EQ(count(again, Event::Kind::kReconnected), 1U);
  EXPECT_EQ(ring->stages()[1].peer, devices[1]->address());
}

}  // namespace

ChaosOptions& chaos_options() {
  static ChaosOptions options;
  return options;
}

}  // namespace tandem::chaos

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto& options = tandem::chaos::chaos_options();
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--faults") == 0) {
      options.faults = static_cast<uint32_t>(value);
    } else if (std::strcmp(argv[i], "--room-faults") == 0) {
      options.room_faults = static_cast<uint32_t>(value);
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      options.seed = value;
    } else if (std::strcmp(argv[i], "--rooms") == 0) {
      options.rooms = static_cast<uint32_t>(std::max<uint64_t>(1, value));
    } else {
      std::fprintf(stderr,
                   "usage: chaos_tests [--faults N] [--room-faults N] [--seed S] [--rooms N]\n");
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
