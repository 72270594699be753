// What goes wrong ends an answer soon, with the name of who failed and why; the rest stays usable.
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "ring/harness.h"

namespace tandem::toy {
namespace {

using ring::LayerRange;

/// Not a test: a worker process for the tests, run by LocalWorkers.
TEST(WorkerProcess, DISABLED_Serve) {
  const auto served = worker(std::make_shared<Behaviour>());
  std::printf("%s\n", ring::listening_line(served->address()).c_str());
  std::fflush(stdout);
  served->serve();
}

std::string name_of(const std::string& address, const std::string& layers) {
  return "worker " + address + " (layers " + layers + ")";
}

/// Expects that the forward under way fails, naming `name` and with `cause` in the text.
void expect_blame(const Result<model::HiddenStates>& result, const std::string& name,
                  const std::string& cause) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kPeer);
  EXPECT_EQ(result.error().message.find(name), 0u) << result.error().message;
  EXPECT_NE(result.error().message.find(cause), std::string::npos) << result.error().message;
}

/// Expects that a reset makes the ring whole again.
void expect_recovery(ring::Ring& ring, Model& model) {
  const Status status = ring.reset();
  ASSERT_TRUE(status.ok()) << status.error().message;
  const auto given = input(model, 50);
  const auto result = ring.forward(given, 0, 50);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(same(*result, whole(model, given)));
}

class Failure : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(AnyWorker, Failure, testing::Values(0, 1, 2));

const std::vector<LayerRange> kSplit = {{0, 2}, {2, 4}, {4, 6}};
const std::vector<std::string> kLayers = {"0-1", "2-3", "4-5"};

TEST_P(Failure, OfAStageTravelsBackInItsOwnWords) {
  Model model;
  const Workers workers(3);
  auto opened = open(options(model, workers.at(kSplit)));
  const size_t bad = GetParam();
  workers.behaviours[bad]->fail = true;
  const auto result = opened->forward(input(model, 100), 0, 1);
  expect_blame(result, name_of(workers.workers[bad]->address(), kLayers[bad]), "the toy broke");
  EXPECT_EQ(opened->forward(input(model, 1), 0, 1).error().message, result.error().message);
  workers.behaviours[bad]->fail = false;
  expect_recovery(*opened, model);
}

TEST_P(Failure, ValuesThatAreNotFiniteAreTheSendersFault) {
  Model model;
  const Workers workers(3);
  auto opened = open(options(model, workers.at(kSplit)));
  const size_t bad = GetParam();
  workers.behaviours[bad]->not_finite = true;
  expect_blame(opened->forward(input(model, 100), 0, 100),
               name_of(workers.workers[bad]->address(), kLayers[bad]), "not finite");
  workers.behaviours[bad]->not_finite = false;
  expect_recovery(*opened, model);
}

TEST_P(Failure, FramesOfAWrongSizeAreTheSendersFault) {
  Model model;
  const Workers workers(3);
  auto opened = open(options(model, workers.at(kSplit)));
  const size_t bad = GetParam();
  workers.behaviours[bad]->wrong_size = true;
  expect_blame(opened->forward(input(model, 100), 0, 100),
               name_of(workers.workers[bad]->address(), kLayers[bad]), "");
  workers.behaviours[bad]->wrong_size = false;
  expect_recovery(*opened, model);
}

TEST_P(Failure, APassThatNeverEndsIsNoticed) {
  Model model;
  const Workers workers(3);
  auto opened = open(options(model, workers.at(kSplit)));
  const size_t bad = GetParam();
  workers.behaviours[bad]->hang = true;
  expect_blame(opened->forward(input(model, 100), 0, 1),
               name_of(workers.workers[bad]->address(), kLayers[bad]), "hangs");
  workers.behaviours[bad]->hang = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the pass has ended
  expect_recovery(*opened, model);
}

TEST_P(Failure, AKilledProcessIsNamed) {
  Model model;
  const auto workers = processes(3);
  std::vector<ring::RingWorker> where;
  for (size_t i = 0; i < 3; ++i) where.push_back({workers->addresses()[i], kSplit[i]});
  auto opened = open(options(model, where));
  const size_t bad = GetParam();
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ::kill(workers->processes()[bad], SIGKILL);
  });
  Result<model::HiddenStates> result = model::HiddenStates{};
  for (uint32_t i = 0; result.ok(); ++i) {
    if (opened->length() > 900) {
      ASSERT_TRUE(opened->reset().ok());
    }
    result = opened->forward(input(model, 100), opened->length(), 1);
  }
  killer.join();
  expect_blame(result, name_of(workers->addresses()[bad], kLayers[bad]), "");
  // It is still gone: that is what a reset says, and the others serve another ring.
  EXPECT_EQ(opened->reset().error().message.find(name_of(workers->addresses()[bad], kLayers[bad])),
            0u);
  const size_t other = (bad + 1) % 3;
  auto again = open(options(model, {{workers->addresses()[other], {0, 6}}}));
  EXPECT_TRUE(again->forward(input(model, 10), 0, 1).ok());
}

/// Whether every thread of a process is stopped.
bool stopped(pid_t process) {
  std::error_code code;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", code)) {
    std::ifstream file(task.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');  // "ID (NAME) STATE …"
    if (name_end == std::string::npos || text.substr(name_end + 2, 1) != "T") return false;
  }
  return !code;
}

/// Stops a process, and waits until it is: a signal's way takes a while on a busy machine.
void stop(pid_t process) {
  ASSERT_EQ(::kill(process, SIGSTOP), 0);
  for (int i = 0; i < 5000 && !stopped(process); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(stopped(process));
}

TEST_P(Failure, AStoppedProcessIsNoticed) {
  Model model;
  const auto workers = processes(3);
  std::vector<ring::RingWorker> where;
  for (size_t i = 0; i < 3; ++i) where.push_back({workers->addresses()[i], kSplit[i]});
  auto opened = open(options(model, where));
  const size_t bad = GetParam();
  stop(workers->processes()[bad]);
  expect_blame(opened->forward(input(model, 100), 0, 1),
               name_of(workers->addresses()[bad], kLayers[bad]), "silent");
  ::kill(workers->processes()[bad], SIGCONT);
  expect_recovery(*opened, model);
}

TEST(SlowStage, IsNotAFailedOne) {
  Model model;
  const Workers workers(2);
  for (const auto& behaviour : workers.behaviours) behaviour->token_us = 20000;
  auto opened = open(options(model, workers.at({{0, 3}, {3, 6}})));
  // 256 tokens of 20 ms are over five seconds in each stage, 0.64 s a pass.
  const auto result = opened->forward(input(model, 256), 0, 1);
  EXPECT_TRUE(result.ok()) << result.error().message;
}

TEST(SlowStage, MayTakeLongerForOnePassThanSilenceIsAllowedTo) {
  Model model;
  const Workers workers(1);
  workers.behaviours[0]->token_us = 150000;
  auto settings = options(model, workers.at({{0, 6}}));
  settings.batch = 40;
  auto opened = open(std::move(settings));
  const auto result = opened->forward(input(model, 40), 0, 1);  // six seconds
  EXPECT_TRUE(result.ok()) << result.error().message;
}

/// A server that says whatever it likes to whoever connects.
struct Impostor {
  explicit Impostor(std::function<void(wire::Connection&)> act)
      : listener(*wire::Listener::open({"127.0.0.1", 0})), thread([this, act = std::move(act)] {
          while (!stop) {
            if (!wire::wait_for(listener.fd(), false,
                                wire::Clock::now() + std::chrono::milliseconds(20))) {
              continue;
            }
            auto client = listener.accept();
            if (!client.ok() || !client->has_value()) continue;
            wire::Connection connection(std::move(**client));
            act(connection);
          }
        }) {}
  ~Impostor() {
    stop = true;
    thread.join();
  }
  wire::Listener listener;
  std::atomic<bool> stop{false};
  std::thread thread;
};

TEST(Impostor, GarbageInsteadOfAWelcomeIsNamed) {
  Model model;
  Impostor impostor([](wire::Connection& connection) {
    const std::string garbage(10000, 'G');
    (void)::send(connection.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const std::string address = impostor.listener.address().text();
  const auto ring = ring::Ring::open(options(model, {{address, {0, 6}}}));
  ASSERT_FALSE(ring.ok());
  EXPECT_EQ(ring.error().message.find(name_of(address, "0-5")), 0u) << ring.error().message;
}

TEST(Impostor, OfAnotherContractVersionIsRefused) {
  Model model;
  Impostor impostor([](wire::Connection& connection) {
    (void)connection.receive_until(soon(), 4096).ok();
    wire::Welcome welcome;
    welcome.contract = ring::contract_version() + 1;
    (void)connection.send({.type = wire::Type::kWelcome}, welcome.encode()).ok();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const std::string address = impostor.listener.address().text();
  const auto ring = ring::Ring::open(options(model, {{address, {0, 6}}}));
  ASSERT_FALSE(ring.ok());
  EXPECT_NE(ring.error().message.find("contract version"), std::string::npos);
}

TEST(Open, NamesTheWorkerThatIsNotThere) {
  Model model;
  const Workers workers(1);
  auto gone = wire::Listener::open({"127.0.0.1", 0})->address().text();
  auto where = workers.at({{0, 3}});
  where.push_back({gone, {3, 6}});
  const auto ring = ring::Ring::open(options(model, where));
  ASSERT_FALSE(ring.ok());
  EXPECT_EQ(ring.error().message.find(name_of(gone, "3-5")), 0u) << ring.error().message;
  EXPECT_TRUE(eventually([&] { return workers.workers[0]->sessions() == 0; }));
}

TEST(LocalWorkers, SaysWhatCantBeRun) {
  const auto none = ring::LocalWorkers::start(1, "/nonexistent/tandem", {});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("/nonexistent/tandem"), std::string::npos);
  const auto silent = ring::LocalWorkers::start(1, "/bin/true", {});
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().kind, ErrorKind::kPeer);
}

TEST(LocalWorkers, EndWithTheirOwner) {
  pid_t process = 0;
  {
    const auto workers = processes(1);
    process = workers->processes()[0];
    EXPECT_EQ(::kill(process, 0), 0);
  }
  EXPECT_NE(::kill(process, 0), 0);
}

}  // namespace
}  // namespace tandem::toy
