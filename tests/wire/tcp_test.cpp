// Connections over real sockets.
#include "wire/tcp.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace tandem::wire {
namespace {

using namespace std::chrono_literals;

struct Pair {
  Pair() {
    auto listener = Listener::open({"127.0.0.1", 0});
    auto client = connect(listener->address(), 2s);
    wait_for(listener->fd(), false, Clock::now() + 2s);
    auto accepted = listener->accept();
    a = std::make_unique<Connection>(std::move(*client));
    b = std::make_unique<Connection>(std::move(**accepted));
  }
  std::unique_ptr<Connection> a;
  std::unique_ptr<Connection> b;
};

auto soon() {
  return Clock::now() + 10s;
}

TEST(Address, IsHostAndPort) {
  const auto v4 = parse_address("127.0.0.1:80");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 80);
  const auto v6 = parse_address("[::1]:81");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->text(), "[::1]:81");
  for (const char* bad : {"", "host", "host:", ":80", "host:65536", "host:8x", "::1:80", "h:-1"}) {
    EXPECT_FALSE(parse_address(bad).ok()) << bad;
  }
}

TEST(Connection, CarriesFramesOfAnySize) {
  Pair pair;
  std::thread writer([&] {
    for (const size_t size : {0u, 1u, 1000u, 1u << 20}) {
      std::vector<std::byte> bytes(size, std::byte{42});
      const auto half = std::span<const std::byte>(bytes).first(size / 3);
      const auto rest = std::span<const std::byte>(bytes).subspan(size / 3);
      EXPECT_TRUE(pair.a->send_until(soon(), {.type = Type::kStates}, half, rest).ok());
    }
  });
  for (const size_t size : {0u, 1u, 1000u, 1u << 20}) {
    const auto header = pair.b->receive_until(soon(), 2u << 20);
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(header->length, size);
    EXPECT_EQ(pair.b->payload(), std::vector<std::byte>(size, std::byte{42}));
  }
  writer.join();
}

TEST(Connection, ReadsInPlace) {
  Pair pair;
  std::vector<std::byte> bytes(10);
  for (size_t i = 0; i < 10; ++i) bytes[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(pair.a->send({.type = Type::kStates}, bytes).ok());
  std::array<std::byte, 4> first{};
  std::array<std::byte, 6> second{};
  wait_for(pair.b->fd(), false, soon());
  const auto step = pair.b->read([&](const Header&) -> Result<Connection::Place> {
    return Connection::Place{first, second};
  });
  ASSERT_TRUE(step.ok());
  ASSERT_EQ(*step, Connection::Step::kFrame);
  EXPECT_EQ(first[3], std::byte{3});
  EXPECT_EQ(second[0], std::byte{4});
  EXPECT_EQ(second[5], std::byte{9});
}

TEST(Connection, TellsAnEndBetweenFramesFromOneWithin) {
  {
    Pair pair;
    pair.a.reset();
    wait_for(pair.b->fd(), false, soon());
    const auto step = pair.b->read([&](const Header& header) -> Result<Connection::Place> {
      return pair.b->to_payload(header);
    });
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(*step, Connection::Step::kClosed);
  }
  Pair pair;
  auto head = encode({.type = Type::kStates, .length = 100});
  seal(head, {}, {});
  ASSERT_EQ(::send(pair.a->fd(), head.data(), head.size(), 0), 48);
  pair.a.reset();
  const auto header = pair.b->receive_until(soon(), 1000);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.error().kind, ErrorKind::kPeer);
}

TEST(Connection, AHugeLengthIsRefusedBeforeAllocation) {
  Pair pair;
  auto head = encode({.type = Type::kStates, .length = 100});
  for (size_t i = 8; i < 12; ++i) head[i] = std::byte{0xff};
  seal(head, {}, {});
  ASSERT_EQ(::send(pair.a->fd(), head.data(), head.size(), 0), 48);
  const auto header = pair.b->receive_until(soon(), 0xffffffff);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.error().kind, ErrorKind::kInvalid);
  EXPECT_TRUE(pair.b->payload().empty());
}

TEST(Connection, ABitThatFlipsOnTheWayIsFound) {
  const std::vector<std::byte> bytes(500, std::byte{42});
  auto head = encode({.type = Type::kStates, .length = 500});
  seal(head, bytes, {});
  for (size_t bit = 0; bit < (head.size() + bytes.size()) * 8; bit += 13) {
    Pair pair;
    // Only what has sent a frame before is known to speak in frames.
    ASSERT_TRUE(pair.a->send({.type = Type::kPing}).ok());
    ASSERT_TRUE(pair.b->receive_until(soon(), 1000).ok());
    std::vector<std::byte> sent(head.begin(), head.end());
    sent.insert(sent.end(), bytes.begin(), bytes.end());
    sent[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(::send(pair.a->fd(), sent.data(), sent.size(), 0), 548);
    const auto header = pair.b->receive_until(soon(), 1000);
    ASSERT_FALSE(header.ok()) << bit;
    EXPECT_EQ(header.error().kind, ErrorKind::kPeer);
    EXPECT_NE(header.error().message.find("damaged"), std::string::npos) << header.error().message;
  }
}

TEST(Connection, WritingToAPeerThatLeftIsAnError) {
  Pair pair;
  pair.b.reset();
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = pair.a->send({.type = Type::kPing});
    std::this_thread::sleep_for(1ms);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kPeer);
}

TEST(Connection, APeerThatDoesNotReadIsBounded) {
  Pair pair;
  const std::vector<std::byte> bytes(1u << 20);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = pair.a->send({.type = Type::kTensorChunk}, bytes);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("does not read"), std::string::npos);
}

TEST(Connection, FlushSendsWhatWasPending) {
  Pair pair;
  const std::vector<std::byte> bytes(16u << 20, std::byte{9});
  ASSERT_TRUE(pair.a->send({.type = Type::kStates}, bytes).ok());
  ASSERT_TRUE(pair.a->pending());
  std::thread flusher([&] {
    while (pair.a->pending()) {
      wait_for(pair.a->fd(), true, soon());
      if (!pair.a->flush().ok()) break;
    }
  });
  const auto header = pair.b->receive_until(soon(), 32u << 20);
  flusher.join();
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(pair.b->payload(), bytes);
}

TEST(Connect, NamesTheAddressThatRefuses) {
  auto listener = Listener::open({"127.0.0.1", 0});
  const Address address = listener->address();
  { const auto gone = std::move(*listener); }
  const auto socket = connect(address, 2s);
  ASSERT_FALSE(socket.ok());
  EXPECT_NE(socket.error().message.find(address.text()), std::string::npos);
}

}  // namespace
}  // namespace tandem::wire
