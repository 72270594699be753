// Ranges of tensors between devices: what a hostile one can ask for, and what it can answer.
#include <functional>

#include "ring/harness.h"
#include "ring/range_client.h"
#include "ring/range_server.h"

namespace tandem::toy {
namespace {

using wire::Type;

std::shared_ptr<const wire::Tls> identity() {
  wire::RoomKey room;
  room.fill(9);
  return *wire::Tls::create(*wire::Identity::create(), room);
}

/// A worker that gives a tensor "t" of 5,000,000 bytes, whose bytes follow from where they lie.
class Giver {
 public:
  static constexpr uint64_t kBytes = 5'000'000;

  explicit Giver(uint64_t rate = 0) {
    ring::WorkerOptions options;
    options.load = loader();
    options.tls = tls;
    options.share.bytes_per_second = rate;
    options.share.admit = [this](const wire::Fingerprint&) {
      return admits ? Status() : Status(Error{ErrorKind::kPeer, "sent away"});
    };
    options.share.give = [this](const wire::NeedRange& range, std::span<std::byte> out) -> Status {
      ++asked;
      largest = std::max<size_t>(largest, out.size());
      if (range.tensor != "t") return Error{ErrorKind::kNotFound, "no such tensor"};
      if (range.offset > kBytes || out.size() > kBytes - range.offset) return invalid("beyond it");
      for (size_t i = 0; i < out.size(); ++i) out[i] = byte_at(range.offset + i);
      return {};
    };
    worker = std::move(*ring::Worker::start(std::move(options)));
  }
  static std::byte byte_at(uint64_t place) {
    return static_cast<std::byte>(place * 7 + place / 251);
  }
  [[nodiscard]] Result<std::unique_ptr<ring::RangeClient>> dial(
      std::shared_ptr<const wire::Tls> who = identity()) const {
    ring::RangeClientOptions options;
    options.address = worker->address();
    options.pin = tls->fingerprint();
    options.tls = std::move(who);
    return ring::RangeClient::dial(options);
  }

  std::shared_ptr<const wire::Tls> tls = identity();
  std::atomic<bool> admits{true};
  std::atomic<int> asked{0};
  std::atomic<size_t> largest{0};
  std::unique_ptr<ring::Worker> worker;
};

/// Whether all of it is what lies at `offset`.
bool right(std::span<const std::byte> bytes, uint64_t offset) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != Giver::byte_at(offset + i)) return false;
  }
  return true;
}

TEST(Ranges, WhoIsSentAwayGetsNoMoreOnAConnectionThatItHasOpen) {
  Giver giver;
  const auto client = giver.dial();
  ASSERT_TRUE(client.ok()) << client.error().message;
  std::vector<std::byte> out(1000);
  ASSERT_TRUE((*client)->read({}, "t", 10, out).ok());
  EXPECT_TRUE(right(out, 10));
  const int asked = giver.asked;
  giver.admits = false;
  const Status refused = (*client)->read({}, "t", 10, out);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("sent away"), std::string::npos);
  EXPECT_EQ((*client)->read({}, "t", 10, out).error().kind, ErrorKind::kPeer);
  EXPECT_EQ(giver.asked, asked) << "asked for bytes that are not given";
}

TEST(Ranges, NonsenseIsRefusedBeforeAnyByteIsRead) {
  Giver giver;
  const auto who = identity();
  const auto open = [&] {
    auto socket =
        wire::connect(*wire::parse_address(giver.worker->address()), std::chrono::seconds(5));
    EXPECT_TRUE(socket.ok());
    auto connection = std::make_unique<wire::Connection>(std::move(*socket),
                                                         who->connecting(giver.tls->fingerprint()));
    EXPECT_TRUE(connection->secure_until(soon()).ok());
    wire::Hello hello;
    hello.contract = ring::contract_version();
    hello.role = wire::Role::kSource;
    EXPECT_TRUE(connection->send_until(soon(), {.type = Type::kHello}, hello.encode()).ok());
    EXPECT_EQ(connection->receive_until(soon(), 4096)->type, Type::kWelcome);
    return connection;
  };
  wire::Bytes torn = wire::NeedRange{{}, 0, 10, "t"}.encode();
  torn.pop_back();
  wire::Bytes longer = wire::NeedRange{{}, 0, 10, "t"}.encode();
  longer.push_back(std::byte{0});
  const std::vector<std::pair<Type, wire::Bytes>> wrong{
      {Type::kNeedRange, wire::NeedRange{{}, 0, 0, "t"}.encode()},
      {Type::kNeedRange, wire::NeedRange{{}, 0, wire::kMaxRangeBytes + 1, "t"}.encode()},
      {Type::kNeedRange, wire::NeedRange{{}, 0, UINT32_MAX, "t"}.encode()},
      {Type::kNeedRange, wire::NeedRange{{}, UINT64_MAX, 10, "t"}.encode()},
      {Type::kNeedRange, wire::NeedRange{{}, 0, 10, ""}.encode()},
      {Type::kNeedRange, wire::NeedRange{{}, 0, 10, std::string(513, 't')}.encode()},
      {Type::kNeedRange, torn},
      {Type::kNeedRange, longer},
      {Type::kNeedRange, {}},
      {Type::kNeedRange, wire::Bytes(2000)},
      {Type::kTensorChunk, wire::Bytes(1000)},
      {Type::kLoad, wire::Bytes(1000)},
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    const auto connection = open();
    ASSERT_TRUE(connection->send_until(soon(), {.type = wrong[i].first}, wrong[i].second).ok());
    // At most a refusal, and then the end.
    const auto answer = connection->receive_until(soon(), 4096);
    if (!answer.ok()) continue;
    EXPECT_EQ(answer->type, Type::kRefusal) << i;
    EXPECT_FALSE(connection->receive_until(soon(), 4096).ok()) << i;
  }
  EXPECT_EQ(giver.asked, 0);
  const auto client = giver.dial();
  ASSERT_TRUE(client.ok()) << client.error().message;
  std::vector<std::byte> all(Giver::kBytes);
  ASSERT_TRUE((*client)->read({}, "t", 0, all).ok());
  EXPECT_TRUE(right(all, 0));
  EXPECT_EQ(giver.largest, wire::kMaxRangeBytes);
}

TEST(Ranges, ARateIsSharedByAsManyAsItIsEnoughFor) {
  Giver giver(2 * ring::RangeServer::kLeastRate);
  const auto one = giver.dial();
  const auto two = giver.dial();
  ASSERT_TRUE(one.ok() && two.ok());
  const auto three = giver.dial();
  ASSERT_FALSE(three.ok());
  EXPECT_NE(three.error().message.find("2 connections already"), std::string::npos)
      << three.error().message;
  std::vector<std::byte> out(50'000);
  ASSERT_TRUE((*one)->read({}, "t", 7, out).ok());
  EXPECT_TRUE(right(out, 7));
}

TEST(Ranges, AWorkerWithoutTheRoomsKeySharesNothing) {
  const Workers workers(1);
  const auto connection = raw(workers.workers[0]->address());
  wire::Hello hello;
  hello.contract = ring::contract_version();
  hello.role = wire::Role::kSource;
  ASSERT_TRUE(connection->send_until(soon(), {.type = Type::kHello}, hello.encode()).ok());
  const auto answer = connection->receive_until(soon(), 4096);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->type, Type::kRefusal);
}

/// A device that says welcome, takes one request, and then does what the test has it do.
class Liar {
 public:
  explicit Liar(std::function<void(wire::Connection&)> lies)
      : listener_(std::move(*wire::Listener::open(*wire::parse_address("127.0.0.1:0")))),
        thread_([this, lies = std::move(lies)] { serve(lies); }) {}
  ~Liar() { thread_.join(); }
  /// What a client says of what it got.
  Status ask(std::chrono::milliseconds silence) {
    ring::RangeClientOptions options;
    options.address = listener_.address().text();
    options.pin = tls_->fingerprint();
    options.tls = identity();
    options.silence = silence;
    const auto client = ring::RangeClient::dial(options);
    if (!client.ok()) return client.error();
    std::vector<std::byte> out(1 << 20);
    return (*client)->read({}, "t", 0, out);
  }

 private:
  void serve(const std::function<void(wire::Connection&)>& lies) {
    std::optional<wire::Socket> socket;
    while (!socket) {
      auto next = listener_.accept();
      ASSERT_TRUE(next.ok()) << next.error().message;
      socket = std::move(*next);
      if (!socket) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    wire::Connection connection(std::move(*socket), tls_->accepting());
    ASSERT_TRUE(connection.receive_until(soon(), 1024).ok());
    wire::Welcome welcome;
    welcome.contract = ring::contract_version();
    ASSERT_TRUE(connection.send_until(soon(), {.type = Type::kWelcome}, welcome.encode()).ok());
    ASSERT_TRUE(connection.receive_until(soon(), 1024).ok());
    lies(connection);
  }

  std::shared_ptr<const wire::Tls> tls_ = identity();
  wire::Listener listener_;
  std::thread thread_;
};

TEST(Ranges, AFewBytesAtATimeAreNoAnswer) {
  // All would take 50 s so, and each frame comes long before the client's time is up.
  Liar liar([](wire::Connection& connection) {
    const wire::Bytes part(1024);
    while (connection.send_until(soon(), {.type = Type::kTensorChunk}, part).ok()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const Status status = liar.ask(std::chrono::seconds(2));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kPeer);
}

TEST(Ranges, AnswersToSomethingElseAreNotTaken) {
  const auto answers = [](Type type, size_t bytes) {
    Liar liar([=](wire::Connection& connection) {
      (void)connection.send_until(soon(), {.type = type}, wire::Bytes(bytes)).ok();
      (void)connection.receive_until(soon(), 1024).ok();
    });
    return liar.ask(std::chrono::seconds(20));
  };
  EXPECT_EQ(answers(Type::kTensorChunk, 0).error().kind, ErrorKind::kPeer);
  EXPECT_EQ(answers(Type::kWelcome, 30).error().kind, ErrorKind::kPeer);
  EXPECT_FALSE(answers(Type::kStates, 1000).ok());
  EXPECT_FALSE(answers(Type::kRefusal, 3).ok()) << "a torn refusal";
  // More than was asked for.
  Liar more([](wire::Connection& connection) {
    const wire::Bytes part(wire::kMaxChunkBytes - 1);
    for (int i = 0; i < 2; ++i) {
      (void)connection.send_until(soon(), {.type = Type::kTensorChunk}, part).ok();
    }
    (void)connection.receive_until(soon(), 1024).ok();
  });
  EXPECT_EQ(more.ask(std::chrono::seconds(20)).error().kind, ErrorKind::kPeer);
}

TEST(Ranges, OneThatLeavesInTheMiddleIsSaidToHave) {
  Liar liar([](wire::Connection& connection) {
    (void)connection.send_until(soon(), {.type = Type::kTensorChunk}, wire::Bytes(1000)).ok();
  });
  EXPECT_EQ(liar.ask(std::chrono::seconds(20)).error().kind, ErrorKind::kPeer);
}

}  // namespace
}  // namespace tandem::toy
