// An answer goes on without a worker that leaves in the middle of it, and is the same to the bit.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <thread>

#include "model/stage.h"
#include "ring/generate.h"
#include "ring/harness.h"
#include "ring/stored_model.h"
#include "text/tokenizer.h"

namespace tandem::toy {
namespace {

using ring::Event;
using ring::LayerRange;

/// Small enough for the sanitizers.
const std::filesystem::path kStoryteller = TANDEM_SOURCE_DIR "/models/storyteller-draft";

std::unique_ptr<ring::Worker> real(const std::string& listen = "127.0.0.1:0",
                                   wire::Dialler dialler = {}) {
  ring::WorkerOptions options;
  options.listen = listen;
  options.dialler = std::move(dialler);
  options.models = kStoryteller.parent_path().string();
  auto worker = ring::Worker::start(options);
  EXPECT_TRUE(worker.ok()) << worker.error().message;
  return worker.ok() ? std::move(*worker) : nullptr;
}

/// Not a test: a worker process for the tests, run by LocalWorkers.
TEST(WorkerProcess, DISABLED_ServeReal) {
  const auto served = real();
  std::printf("%s\n", ring::listening_line(served->address()).c_str());
  std::fflush(stdout);
  served->serve();
}

/// A model that tells a story of 40 tokens, over whatever ring.
struct Story : StoredModel {
  explicit Story(const std::filesystem::path& folder = kStoryteller) : StoredModel(folder) {
    auto loaded = model::Ends::load(config, {}, *checkpoint, {});
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    ends = std::move(*loaded);
    if (std::filesystem::exists(folder / "tokenizer.json")) {
      tokenizer = std::make_unique<text::Tokenizer>(*text::Tokenizer::load(folder));
    }
    for (uint32_t i = 0; i < 100; ++i) request.prompt.push_back((i * 37 + 11) % config.vocab);
    request.max_tokens = 40;
    request.hash_logits = true;
  }

  [[nodiscard]] ring::RingOptions options(std::vector<ring::RingWorker> workers) const {
    ring::RingOptions options = StoredModel::options(std::move(workers));
    options.context = 512;
    options.survive = true;
    return options;
  }

  /// `then` is called when the third piece of text is there.
  Result<ring::Answer> tell(ring::Ring& ring, const std::function<void()>& then = {}) {
    EXPECT_TRUE(ring.reset().ok());
    ring::Conversation conversation(ring, *ends, config.vocab, 512, tokenizer.get(), nullptr);
    return tell(conversation, then);
  }
  Result<ring::Answer> tell(ring::Conversation& conversation, const std::function<void()>& then) {
    int pieces = 0;
    auto asked = request;
    asked.on_text = [&](std::string_view) {
      if (++pieces == 3 && then) then();
      return true;
    };
    return conversation.generate(asked);
  }
  ring::Answer undisturbed() {
    const auto ring = open(options({}));
    return std::move(*tell(*ring));
  }

  std::unique_ptr<model::Ends> ends;
  std::unique_ptr<text::Tokenizer> tokenizer;
  ring::GenerateRequest request;
};

size_t count(const ring::Answer& answer, Event::Kind kind, const std::string& peer = "") {
  return static_cast<size_t>(
      std::count_if(answer.events.begin(), answer.events.end(), [&](const Event& event) {
        return event.kind == kind && (peer.empty() || event.peer == peer);
      }));
}

void expect_same(const Result<ring::Answer>& answer, const ring::Answer& expected) {
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->tokens, expected.tokens);
  EXPECT_EQ(answer->text, expected.text);
  EXPECT_EQ(hex(answer->logits_sha256), hex(expected.logits_sha256));
}

struct Recovery : testing::Test {
  Story story;
  const uint32_t layers = story.config.layers;
  const LayerRange low{0, layers / 2};
  const LayerRange high{layers / 2, layers};
  const ring::Answer expected = story.undisturbed();
};

/// Two ways to each worker: its address, which cut() takes away, and "other:" and its address.
class TwoWays {
 public:
  wire::Dialler dialler() {
    return [this](const std::string& where, std::chrono::milliseconds timeout) {
      return dial(where, timeout);
    };
  }
  static ring::RingWorker worker(const std::string& address, LayerRange layers) {
    return {address, layers, std::nullopt, "", "", "other:" + address};
  }
  /// Nobody reaches anybody directly any more; what there is breaks.
  void cut() {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    for (const wire::Socket& socket : direct_) ::shutdown(socket.fd(), SHUT_RDWR);
  }

 private:
  Result<wire::Socket> dial(const std::string& where, std::chrono::milliseconds timeout) {
    if (where.starts_with("other:")) return wire::dial_tcp(where.substr(6), timeout);
    const std::lock_guard lock(mutex_);
    if (cut_) return Error{ErrorKind::kPeer, "can't connect to " + where + ": cut"};
    auto socket = wire::dial_tcp(where, timeout);
    if (socket.ok()) direct_.emplace_back(::fcntl(socket->fd(), F_DUPFD_CLOEXEC, 3));
    return socket;
  }
  std::mutex mutex_;  ///< guards what follows
  bool cut_ = false;
  std::vector<wire::Socket> direct_;
};

TEST_F(Recovery, AWorkerThatCantDialTheNextOneTakesTheOtherWay) {
  TwoWays of_worker;
  const auto first = real("127.0.0.1:0", of_worker.dialler());
  const auto second = real();
  of_worker.cut();
  TwoWays of_host;
  auto options = story.options(
      {TwoWays::worker(first->address(), low), TwoWays::worker(second->address(), high)});
  options.dialler = of_host.dialler();
  const auto ring = open(std::move(options));
  expect_same(story.tell(*ring), expected);
  const auto stages = ring->stages();
  EXPECT_TRUE(stages[0].next_by_relay);
  EXPECT_FALSE(stages[0].relayed) << "that would be through the host";
  EXPECT_FALSE(stages[0].host_by_relay);
}

TEST_F(Recovery, WhoLosesTheDirectWayIsReachedByTheOther) {
  TwoWays ways;
  const auto first = real("127.0.0.1:0", ways.dialler());
  const auto second = real("127.0.0.1:0", ways.dialler());
  auto options = story.options(
      {TwoWays::worker(first->address(), low), TwoWays::worker(second->address(), high)});
  options.dialler = ways.dialler();
  const auto ring = open(std::move(options));
  const auto answer = story.tell(*ring, [&] { ways.cut(); });
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kReplanned), 0U);
  EXPECT_GE(count(*answer, Event::Kind::kRelay), 1U);
  const auto stages = ring->stages();
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_TRUE(stages[0].host_by_relay && stages[1].host_by_relay);
  EXPECT_TRUE(stages[0].next_by_relay);
  // It stays that way.
  const auto next = story.tell(*ring);
  expect_same(next, expected);
  EXPECT_TRUE(next->events.empty());
}

TEST_F(Recovery, ASpareTakesOver) {
  const auto first = real();
  auto second = real();
  const auto spare = real();
  auto options = story.options({{first->address(), low}, {second->address(), high}});
  options.spares = {{spare->address(), high}};
  const auto ring = open(std::move(options));
  const std::string gone = second->address();
  const auto answer = story.tell(*ring, [&] { second.reset(); });
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kLost, gone), 1u);
  EXPECT_EQ(count(*answer, Event::Kind::kSpare, spare->address()), 1u);
  EXPECT_EQ(count(*answer, Event::Kind::kReplaying), 1u);
  EXPECT_EQ(count(*answer, Event::Kind::kGoesOn), 1u);
  EXPECT_EQ(ring->stages()[1].peer, spare->address());
  // And the next answer knows nothing of it.
  const auto next = story.tell(*ring);
  expect_same(next, expected);
  EXPECT_TRUE(next->events.empty());
}

TEST_F(Recovery, ASpareThatLeavesIsSaidAndNotMissed) {
  const auto first = real();
  auto spare = real();
  auto options = story.options({{first->address(), {0, layers}}});
  options.spares = {{spare->address(), {0, layers}}};
  const auto ring = open(std::move(options));
  const std::string gone = spare->address();
  spare.reset();
  // An answer may be done before the host has heard of it.
  size_t said = 0;
  for (int i = 0; i < 100 && said == 0; ++i) {
    const auto answer = story.tell(*ring);
    expect_same(answer, expected);
    said = count(*answer, Event::Kind::kLost, gone);
    EXPECT_EQ(count(*answer, Event::Kind::kReplaying), 0u);
  }
  EXPECT_EQ(said, 1u);
}

TEST_F(Recovery, AWorkerThatIsStartedAgainKeepsItsLayers) {
  auto first = real();
  const auto second = real();
  const auto ring = open(story.options({{first->address(), low}, {second->address(), high}}));
  const std::string address = first->address();
  const auto answer = story.tell(*ring, [&] {
    first.reset();
    first = real(address);
  });
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kReconnected, address), 1u);
}

TEST_F(Recovery, ANeighbourTakesTheLayers) {
  auto first = real();
  const auto second = real();
  const auto ring = open(story.options({{first->address(), low}, {second->address(), high}}));
  const auto answer = story.tell(*ring, [&] { first.reset(); });
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kReplanned, second->address()), 1u);
  EXPECT_EQ(ring->stages()[0].peer, second->address());
  EXPECT_EQ(ring->stages()[0].layers, low);
  EXPECT_EQ(ring->stages()[1].layers, high);
}

TEST_F(Recovery, TheHostTakesTheLayersOfItsLastWorker) {
  auto only = real();
  const auto ring = open(story.options({{only->address(), high}}));
  const auto answer = story.tell(*ring, [&] { only.reset(); });
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kReplanned, "host"), 1u);
  for (const auto& stage : ring->stages()) EXPECT_EQ(stage.peer, "host");
  expect_same(story.tell(*ring), expected);
}

TEST_F(Recovery, ThePlanIsTheCallers) {
  const auto first = real();
  auto second = real();
  const auto third = real();
  auto options = story.options({{first->address(), low}, {second->address(), high}});
  const std::string gone = second->address();
  std::vector<std::string> lost;
  options.replan =
      [&](const std::vector<std::string>& who) -> Result<std::vector<ring::RingWorker>> {
    lost = who;
    return std::vector<ring::RingWorker>{{first->address(), low}, {third->address(), high}};
  };
  const auto ring = open(std::move(options));
  const auto answer = story.tell(*ring, [&] { second.reset(); });
  expect_same(answer, expected);
  EXPECT_EQ(lost, std::vector<std::string>{gone});
  EXPECT_EQ(ring->stages()[1].peer, third->address());
  EXPECT_EQ(first->stages(), 1u) << "who keeps its layers does not load them again";
}

TEST_F(Recovery, WithoutAPlanTheReasonIsClear) {
  const auto first = real();
  auto second = real();
  auto options = story.options({{first->address(), low}, {second->address(), high}});
  options.replan = [](const std::vector<std::string>&) -> Result<std::vector<ring::RingWorker>> {
    return Error{ErrorKind::kMemory, "3 of 12 layers fit nowhere"};
  };
  const auto ring = open(std::move(options));
  const std::string gone = second->address();
  const auto answer = story.tell(*ring, [&] { second.reset(); });
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message.find(gone), std::string::npos) << answer.error().message;
  EXPECT_NE(answer.error().message.find("fit nowhere"), std::string::npos);
}

TEST_F(Recovery, ASilentWorkerIsWaitedFor) {
  const auto workers = ring::LocalWorkers::start(
      2, "/proc/self/exe",
      {"--gtest_filter=WorkerProcess.DISABLED_ServeReal", "--gtest_also_run_disabled_tests"});
  ASSERT_TRUE(workers.ok()) << workers.error().message;
  const auto& addresses = (*workers)->addresses();
  const auto ring = open(story.options({{addresses[0], low}, {addresses[1], high}}));
  const pid_t frozen = (*workers)->processes()[1];
  ring::Conversation conversation(*ring, *story.ends, story.config.vocab, 512,
                                  story.tokenizer.get(), nullptr);
  story.request.on_event = [&](const Event& event) {
    // As long as it takes until it is said.
    if (event.kind == Event::Kind::kSilent) ::kill(frozen, SIGCONT);
  };
  const auto answer = story.tell(conversation, [&] { ::kill(frozen, SIGSTOP); });
  ::kill(frozen, SIGCONT);
  expect_same(answer, expected);
  EXPECT_EQ(count(*answer, Event::Kind::kSilent, addresses[1]), 1u);
  EXPECT_EQ(count(*answer, Event::Kind::kBack, addresses[1]), 1u);
  EXPECT_EQ(count(*answer, Event::Kind::kReplaying), 0u);
}

// Between two answers, and with layers whose state can't be rolled back: what the second one shares
// with the first is run again, checkpoints included.
TEST(RecoveryBetweenAnswers, BringsBackWhatWasHeld) {
  Story story(TANDEM_SOURCE_DIR "/tests/data/oracle/qwen3_5");
  const uint32_t cut = story.config.layers / 2;
  auto converse = [&](ring::Ring& ring, const std::function<void()>& between) {
    ring::Conversation conversation(ring, *story.ends, story.config.vocab, 256, nullptr, nullptr);
    auto request = story.request;
    auto first = conversation.generate(request);
    EXPECT_TRUE(first.ok()) << first.error().message;
    between();
    request.prompt.insert(request.prompt.end(), first->tokens.begin(), first->tokens.end());
    request.prompt.push_back(5);
    return conversation.generate(request);
  };
  auto settings = [&](std::vector<ring::RingWorker> workers) {
    auto options = story.options(std::move(workers));
    options.context = 256;
    return options;
  };
  const auto alone = open(settings({}));
  const auto expected = converse(*alone, [] {});
  ASSERT_TRUE(expected.ok());
  const auto first = real();
  auto second = real();
  const auto ring = open(
      settings({{first->address(), {0, cut}}, {second->address(), {cut, story.config.layers}}}));
  const auto answer = converse(*ring, [&] { second.reset(); });
  expect_same(answer, *expected);
  EXPECT_EQ(answer->reused_tokens, expected->reused_tokens);
}

TEST(SlowWorker, IsSaidAndTheLayersAreDealtAnewAtTheNextReset) {
  Model model(6, 64, 1 << 20);
  const Workers workers(3);
  auto settings = options(model, workers.at({{0, 3}, {3, 6}}));
  settings.survive = true;
  std::vector<std::string> asked;
  settings.replan =
      [&](const std::vector<std::string>& who) -> Result<std::vector<ring::RingWorker>> {
    asked = who;
    return std::vector<ring::RingWorker>{{workers.workers[0]->address(), {0, 3}},
                                         {workers.workers[2]->address(), {3, 6}}};
  };
  for (const auto& behaviour : workers.behaviours) behaviour->pass_us = 200;
  const auto ring = open(std::move(settings));
  std::vector<Event> events;
  ring->listen([&](const Event& event) { events.push_back(event); });
  const auto token = input(model, 1);
  auto lap = [&] {
    const auto result = ring->forward(token, ring->length(), 1);
    ASSERT_TRUE(result.ok()) << result.error().message;
  };
  const std::string slow = workers.workers[1]->address();
  // Until its pace is known: a pong has come after 64 passes.
  const auto known = wire::Clock::now() + std::chrono::seconds(2);
  while (ring->length() < 200 || wire::Clock::now() < known) lap();
  workers.behaviours[1]->pass_us = 15000;
  const auto deadline = soon();
  while (events.empty() && wire::Clock::now() < deadline) lap();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, Event::Kind::kSlow);
  EXPECT_EQ(events[0].peer, slow);
  EXPECT_TRUE(asked.empty()) << "not in the middle of an answer";
  EXPECT_TRUE(ring->wants_replan());
  ASSERT_TRUE(ring->reset().ok());
  EXPECT_EQ(asked, std::vector<std::string>{slow});
  EXPECT_EQ(ring->stages()[1].peer, workers.workers[2]->address());
  EXPECT_FALSE(ring->wants_replan());
  const auto given = input(model, 50);
  const auto result = ring->forward(given, 0, 50);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, whole(model, given)));
}

}  // namespace
}  // namespace tandem::toy
