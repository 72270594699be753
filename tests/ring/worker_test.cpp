// What a worker makes of its clients: the well-behaved, the slow, the hostile and the gone.
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "ring/harness.h"

namespace tandem::toy {
namespace {

long resident_kib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

std::string refusal(wire::Connection& connection) {
  for (;;) {
    const auto header = connection.receive_until(soon(), 4096);
    if (!header.ok()) return "error: " + header.error().message;
    if (header->type == wire::Type::kProgress) continue;
    if (header->type != wire::Type::kRefusal) return std::string(wire::name(header->type));
    return wire::Refusal::decode(connection.payload())->reason;
  }
}

TEST(Worker, ChoosesAPortAndSaysWhich) {
  const auto served = worker(std::make_shared<Behaviour>());
  const auto address = wire::parse_address(served->address());
  ASSERT_TRUE(address.ok());
  EXPECT_NE(address->port, 0);
  ring::WorkerOptions options;
  options.listen = served->address();
  const auto second = ring::Worker::start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(served->address()), std::string::npos);
}

TEST(Worker, RefusesOtherVersionsWithAReason) {
  const auto served = worker(std::make_shared<Behaviour>());
  auto old = raw(served->address());
  ASSERT_EQ(hello(*old, 99), wire::Type::kRefusal);
  EXPECT_NE(wire::Refusal::decode(old->payload())->reason.find("protocol version 99"),
            std::string::npos);
  auto other = raw(served->address());
  ASSERT_EQ(hello(*other, wire::kProtocolVersion, 77), wire::Type::kRefusal);
  EXPECT_NE(wire::Refusal::decode(other->payload())->reason.find("contract version 77"),
            std::string::npos);
}

TEST(Worker, TakesNoLinkFromAStranger) {
  Model model;
  const Workers workers(1);
  auto opened = open(options(model, workers.at({{0, 6}})));
  for (const auto role : {wire::Role::kLinkIn, wire::Role::kLinkOut}) {
    for (const uint8_t byte : {0, 7}) {
      auto stranger = raw(workers.workers[0]->address());
      wire::Hello said;
      said.contract = ring::contract_version();
      said.role = role;
      said.key.fill(byte);
      ASSERT_TRUE(stranger->send({.type = wire::Type::kHello}, said.encode()).ok());
      EXPECT_NE(refusal(*stranger).find("no stage here expects"), std::string::npos);
    }
  }
  EXPECT_TRUE(opened->forward(input(model, 10), 0, 1).ok());
}

TEST(Worker, IdleConnectionsDontBlockTheNextClient) {
  Model model;
  const Workers workers(1);
  std::vector<std::unique_ptr<wire::Connection>> idle;
  idle.reserve(200);
  for (int i = 0; i < 200; ++i) idle.push_back(raw(workers.workers[0]->address()));
  // Half a hello each from some of them.
  const auto head = wire::encode({.type = wire::Type::kHello, .length = 100});
  for (size_t i = 0; i < 50; ++i) {
    (void)::send(idle[i]->fd(), head.data(), 1 + i % (head.size() - 1), MSG_NOSIGNAL);
  }
  auto opened = open(options(model, workers.at({{0, 6}})));
  ASSERT_NE(opened, nullptr);
  EXPECT_TRUE(opened->forward(input(model, 10), 0, 1).ok());
}

TEST(Worker, AConnectionWithoutAHelloEnds) {
  ring::WorkerOptions options;
  options.hello_deadline = std::chrono::milliseconds(300);
  options.load = loader();
  const auto served = std::move(*ring::Worker::start(options));
  const auto idle = raw(served->address());
  const auto answer = idle->receive_until(soon(), 4096);
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message.find("closed"), std::string::npos) << answer.error().message;
}

TEST(Worker, RandomBytesDontMakeItGrow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory grows";
#endif
  const auto served = worker(std::make_shared<Behaviour>());
  std::mt19937_64 random(5);
  std::vector<uint64_t> noise((1u << 20) / 8);
  auto send_noise = [&](bool framed, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
      for (auto& word : noise) word = random();
      auto connection = raw(served->address());
      if (framed) {
        // A good header first, so that the noise is a payload.
        auto head = wire::encode({.type = wire::Type::kHello, .length = 1024});
        std::memcpy(noise.data(), head.data(), head.size());
      }
      const ssize_t got =
          ::send(connection->fd(), noise.data(), noise.size() * 8, MSG_NOSIGNAL | MSG_DONTWAIT);
      sent += got > 0 ? static_cast<size_t>(got) : noise.size() * 8;
    }
  };
  send_noise(false, 10u << 20);
  send_noise(true, 10u << 20);
  const long before = resident_kib();
  send_noise(false, 50u << 20);
  send_noise(true, 50u << 20);
  EXPECT_LT(resident_kib() - before, 16 << 10);
  auto connection = raw(served->address());
  EXPECT_EQ(hello(*connection), wire::Type::kWelcome);
}

TEST(Worker, RefusesALoadWithItsReason) {
  Model model;
  const Workers workers(1);
  auto asks = [&](const std::function<void(wire::Load&)>& change) {
    auto connection = raw(workers.workers[0]->address());
    EXPECT_EQ(hello(*connection), wire::Type::kWelcome);
    wire::Load load = load_request(model, 0, 2);
    change(load);
    EXPECT_TRUE(connection->send({.type = wire::Type::kLoad}, load.encode()).ok());
    return refusal(*connection);
  };
  EXPECT_NE(asks([](auto& load) { load.model_hash[0] ^= 1; }).find("hash"), std::string::npos);
  EXPECT_NE(asks([](auto& load) { load.config_json += " "; }).find("config.json"),
            std::string::npos);
  EXPECT_NE(asks([](auto& load) { load.last_layer = 7; }).find("the model has 6"),
            std::string::npos);
  EXPECT_NE(asks([](auto& load) { load.first_layer = 2; }).find("[2, 2)"), std::string::npos);
  EXPECT_NE(asks([](auto& load) { load.context = 5000; }).find("context of 5000"),
            std::string::npos);
  EXPECT_NE(asks([](auto& load) {
              load.manifest.resize(50);
              load.model_hash = sha256(load.manifest);
            }),
            "ready");
  EXPECT_NE(asks([&](auto& load) {
              load.config_json.replace(load.config_json.find("Llama"), 5, "Lamma");
              auto manifest = model.manifest;
              manifest.config = sha256(load.config_json);
              load.manifest = manifest.serialize();
              load.model_hash = sha256(load.manifest);
            }).find("rchitecture"),
            std::string::npos);
  EXPECT_NE(asks([&](auto& load) {
              auto manifest = model.manifest;
              manifest.tensors[0].info.shape.back() += 1;
              load.manifest = manifest.serialize();
              load.model_hash = sha256(load.manifest);
            }).find("shape"),
            std::string::npos);
  EXPECT_EQ(workers.workers[0]->memory_used(), 0u);
}

TEST(Worker, ChecksEveryTensorsHash) {
  Model model;
  const Workers workers(1);
  auto& bytes = model.contents.begin()->second;
  bytes[bytes.size() / 2] ^= std::byte{1};
  const auto ring = ring::Ring::open(options(model, workers.at({{0, 6}})));
  ASSERT_FALSE(ring.ok());
  EXPECT_NE(ring.error().message.find(model.contents.begin()->first), std::string::npos)
      << ring.error().message;
}

TEST(Worker, GetsEachTensorOfItsLayersOnce) {
  Model model;
  const Workers workers(2);
  auto opened = open(options(model, workers.at({{0, 2}, {4, 6}})));
  std::map<std::string, uint64_t, std::less<>> expected;
  for (const auto& tensor : model::layer_tensors(model.config, 0, 6)) expected[tensor.name] = 1;
  EXPECT_EQ(model.reads, expected);
}

TEST(Worker, KeepsAStageForTheNextHost) {
  Model model;
  const Workers workers(1);
  open(options(model, workers.at({{0, 6}})));
  const uint32_t loads = workers.behaviours[0]->loads;
  auto again = open(options(model, workers.at({{0, 6}})));
  EXPECT_EQ(workers.behaviours[0]->loads, loads);
  EXPECT_EQ(again->stages()[0].load_bytes, 0u);
}

TEST(Worker, ForgetsAStageThatNobodyUses) {
  Model model;
  ring::WorkerOptions settings;
  settings.keep_idle = std::chrono::milliseconds(100);
  settings.load = loader();
  const auto served = std::move(*ring::Worker::start(settings));
  open(options(model, {{served->address(), {0, 6}}}));
  EXPECT_TRUE(eventually([&] { return served->stages() == 0 && served->memory_used() == 0; }));
}

TEST(Worker, MemoryIsATrueLimitOverAllHosts) {
  Model model;
  model::StageOptions stage;
  stage.last_layer = 3;
  const uint64_t weights = model::stage_bytes(model.config, stage);
  const uint64_t kv = model::kv_bytes_per_position(model.config, 0, 3) * 1024;
  uint64_t largest = 0;
  for (const auto& tensor : model.manifest.tensors) {
    largest = std::max(largest, tensor.info.bytes());
  }
  const uint64_t limit = weights + largest + kv + kv / 2;
  const Workers workers(1, limit);
  auto first = open(options(model, workers.at({{0, 3}})));
  ASSERT_NE(first, nullptr);
  EXPECT_LE(workers.workers[0]->memory_used(), limit);
  // The stage is shared, but there is no room for a second KV cache …
  const auto second = ring::Ring::open(options(model, workers.at({{0, 3}})));
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("KV cache"), std::string::npos) << second.error().message;
  EXPECT_NE(second.error().message.find("are free"), std::string::npos);
  // … unless it is a smaller one.
  auto small = options(model, workers.at({{0, 3}}));
  small.context = 256;
  EXPECT_NE(open(std::move(small)), nullptr);
  first.reset();
  // A stage that nobody uses makes room for another.
  EXPECT_TRUE(eventually([&] {
    return ring::Ring::open(options(model, workers.at({{3, 6}}))).ok();
  }));
  EXPECT_LE(workers.workers[0]->memory_used(), limit);
}

TEST(Worker, AClientThatLeavesWhileLoadingFreesEverything) {
  Model model;
  const Workers workers(1);
  workers.behaviours[0]->load_ms = 20;
  {
    auto connection = raw(workers.workers[0]->address());
    ASSERT_EQ(hello(*connection), wire::Type::kWelcome);
    ASSERT_TRUE(
        connection->send({.type = wire::Type::kLoad}, load_request(model, 0, 6).encode()).ok());
    // Up to the middle of the first tensor.
    for (;;) {
      const auto header = connection->receive_until(soon(), 4096);
      ASSERT_TRUE(header.ok());
      if (header->type == wire::Type::kNeedTensor) break;
    }
    const std::vector<std::byte> half(1000);
    ASSERT_TRUE(connection->send({.type = wire::Type::kTensorChunk}, half).ok());
  }
  EXPECT_TRUE(eventually([&] {
    return workers.workers[0]->sessions() == 0 && workers.workers[0]->memory_used() == 0;
  }));
  // Another that waits for the same stage loads it itself.
  auto opened = open(options(model, workers.at({{0, 6}})));
  EXPECT_NE(opened, nullptr);
}

TEST(Worker, AWaitingHostLoadsItselfIfTheOtherLeaves) {
  Model model;
  const Workers workers(1);
  auto first = raw(workers.workers[0]->address());
  ASSERT_EQ(hello(*first), wire::Type::kWelcome);
  ASSERT_TRUE(first->send({.type = wire::Type::kLoad}, load_request(model, 0, 6).encode()).ok());
  ASSERT_TRUE(eventually([&] { return workers.workers[0]->stages() == 1; }));
  std::thread leaver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    first.reset();
  });
  auto opened = open(options(model, workers.at({{0, 6}})));
  leaver.join();
  EXPECT_NE(opened, nullptr);
}

TEST(Worker, RefusesChunksThatItDidNotAskFor) {
  const Workers workers(1);
  auto connection = raw(workers.workers[0]->address());
  ASSERT_EQ(hello(*connection), wire::Type::kWelcome);
  const std::vector<std::byte> chunk(1000);
  ASSERT_TRUE(connection->send({.type = wire::Type::kTensorChunk}, chunk).ok());
  EXPECT_FALSE(connection->receive_until(soon(), 4096).ok());
  EXPECT_TRUE(eventually([&] { return workers.workers[0]->sessions() == 0; }));
}

TEST(Worker, AnswersPingsWhileItComputes) {
  Model model;
  const Workers workers(1);
  auto opened = open(options(model, workers.at({{0, 6}})));
  workers.behaviours[0]->hang = true;
  std::thread host([&] { (void)opened->forward(input(model, 1), 0, 1).ok(); });
  auto connection = raw(workers.workers[0]->address());
  ASSERT_EQ(hello(*connection), wire::Type::kWelcome);
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(connection->send({.type = wire::Type::kPing}).ok());
    EXPECT_TRUE(connection->receive_until(soon(), 4096).ok());
    return wire::Pong::decode(connection->payload())->busy == 1;
  }));
  workers.behaviours[0]->hang = false;
  host.join();
}

/// A host that was activated with known keys, to speak on the links itself.
struct Manual {
  explicit Manual(const Workers& workers, Model& model) {
    const std::string address = workers.workers[0]->address();
    control = raw(address);
    EXPECT_EQ(hello(*control), wire::Type::kWelcome);
    EXPECT_TRUE(
        control->send({.type = wire::Type::kLoad}, load_request(model, 0, 6).encode()).ok());
    for (auto type = wire::Type::kProgress; type != wire::Type::kReady;) {
      const auto header = control->receive_until(soon(), 4096);
      if (!header.ok()) break;
      type = header->type;
      if (type != wire::Type::kNeedTensor) continue;
      const auto data = model.read(*wire::decode_tensor_name(control->payload()));
      EXPECT_TRUE(
          control->send_until(soon(), {.type = wire::Type::kTensorChunk}, data->bytes).ok());
    }
    wire::Activate activate;
    activate.number = 1;
    activate.in.fill(1);
    activate.out.fill(2);
    EXPECT_TRUE(control->send({.type = wire::Type::kActivate}, activate.encode()).ok());
    EXPECT_TRUE(control->receive_until(soon(), 4096).ok());
    in = link(address, wire::Role::kLinkIn, activate.in);
    out = link(address, wire::Role::kLinkOut, activate.out);
  }
  static std::unique_ptr<wire::Connection> link(const std::string& address, wire::Role role,
                                                const wire::Key& key) {
    auto connection = raw(address);
    wire::Hello said;
    said.contract = ring::contract_version();
    said.role = role;
    said.key = key;
    EXPECT_TRUE(connection->send({.type = wire::Type::kHello}, said.encode()).ok());
    const auto answer = connection->receive_until(soon(), 4096);
    EXPECT_TRUE(answer.ok() && answer->type == wire::Type::kWelcome);
    return connection;
  }
  void send(uint64_t lap, uint32_t position, uint32_t tokens,
            wire::Control what = wire::Control::kNone, uint32_t argument = 0) const {
    wire::Header header;
    header.type = wire::Type::kStates;
    header.lap = lap;
    header.position = position;
    header.tokens = tokens;
    header.control = what;
    header.argument = argument;
    const std::vector<std::byte> payload(tokens * (64 * 2 + 2));
    EXPECT_TRUE(in->send(header, payload).ok());
  }
  wire::Trouble trouble() const {
    for (;;) {
      const auto header = control->receive_until(soon(), 4096);
      EXPECT_TRUE(header.ok());
      if (!header.ok()) return {};
      if (header->type == wire::Type::kTrouble) {
        return *wire::Trouble::decode(control->payload());
      }
    }
  }
  std::unique_ptr<wire::Connection> control;
  std::unique_ptr<wire::Connection> in;
  std::unique_ptr<wire::Connection> out;
};

TEST(Worker, DropsFramesBehindTheFence) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  wire::Header fence;
  fence.type = wire::Type::kFence;
  fence.lap = 5;
  ASSERT_TRUE(host.control->send(fence).ok());
  // An answer shows that the fence was seen.
  ASSERT_TRUE(host.control->send({.type = wire::Type::kPing}).ok());
  ASSERT_TRUE(host.control->receive_until(soon(), 4096).ok());
  host.send(4, 0, 3);
  host.send(5, 3, 3);
  host.send(6, 0, 2);
  const auto header = host.out->receive_until(soon(), 4096);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->lap, 6u) << "the frames of laps 4 and 5 went nowhere";
  EXPECT_EQ(header->position, 0u);
}

TEST(Worker, RefusesToContinueWhereItIsNot) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  host.send(1, 17, 3);
  const auto trouble = host.trouble();
  EXPECT_EQ(trouble.blame, wire::Blame::kRequest);
  EXPECT_NE(trouble.text.find("position 17, the stage holds 0"), std::string::npos) << trouble.text;
}

TEST(Worker, RefusesToPassItsContext) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  host.send(1, 0, 101);
  EXPECT_NE(host.trouble().text.find("of 100 positions"), std::string::npos);
}

TEST(Worker, RefusesARollbackToWhatItNeverHeld) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  host.send(1, 0, 3, wire::Control::kRollback, 9);
  EXPECT_NE(host.trouble().text.find("roll back to 9"), std::string::npos);
}

TEST(Worker, NoticesGarbageOnALink) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  const std::string garbage(1000, 'G');
  ASSERT_GT(::send(host.in->fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  const auto trouble = host.trouble();
  EXPECT_EQ(trouble.blame, wire::Blame::kUpstream);
  // Whoever sent it is not to blame: it may have been something else when it was sent.
  EXPECT_TRUE(trouble.link_lost);
  EXPECT_NE(trouble.text.find("damaged"), std::string::npos) << trouble.text;
}

TEST(Worker, NoticesAFrameThatDoesNotBelongOnALink) {
  Model model;
  const Workers workers(1);
  const Manual host(workers, model);
  ASSERT_TRUE(host.in->send({.type = wire::Type::kPing}).ok());
  const auto trouble = host.trouble();
  EXPECT_EQ(trouble.blame, wire::Blame::kUpstream);
  EXPECT_FALSE(trouble.link_lost);
}

}  // namespace
}  // namespace tandem::toy
