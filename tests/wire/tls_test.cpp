// TLS between devices: who may talk to whom, and what becomes of everybody else.
#include "wire/tls.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "wire/messages.h"
#include "wire/tcp.h"

namespace tandem::wire {
namespace {

using Text = std::vector<std::byte>;

RoomKey key_of(uint8_t byte) {
  RoomKey key;
  key.fill(byte);
  return key;
}

std::shared_ptr<const Tls> device(uint8_t key = 7) {
  return *Tls::create(*Identity::create(), key_of(key));
}

Text bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

Text drain(TlsChannel& channel) {
  const auto out = channel.outgoing();
  Text bytes(out.begin(), out.end());
  channel.take();
  return bytes;
}

/// The stream cut into records.
std::vector<Text> records(const Text& stream) {
  std::vector<Text> result;
  for (size_t at = 0; at + TlsChannel::kRecordHeader <= stream.size();) {
    const auto body =
        TlsChannel::body_bytes(std::span(stream).subspan(at).first<TlsChannel::kRecordHeader>());
    if (!body.ok()) break;  // an alert in the version of a hello that was changed
    const size_t size = TlsChannel::kRecordHeader + *body;
    result.emplace_back(stream.begin() + static_cast<ptrdiff_t>(at),
                        stream.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
  }
  return result;
}

using Change = std::function<void(bool from_connecting, size_t record, Text&)>;

/// Carries records between two sides until nothing moves. `seen` gets all that the connecting side
/// sent. The first failure of each side.
struct Outcome {
  Status connecting;
  Status accepting;
  Text seen;
};
Outcome pump(TlsChannel& a, TlsChannel& b, const Change& change = {}) {
  Outcome outcome;
  outcome.connecting = a.receive({});
  size_t from_a = 0;
  size_t from_b = 0;
  auto carry = [&](TlsChannel& from, TlsChannel& to, Status& status, bool connecting,
                   size_t& count) {
    const Text stream = drain(from);
    if (connecting) outcome.seen.insert(outcome.seen.end(), stream.begin(), stream.end());
    for (Text record : records(stream)) {
      if (change) change(connecting, count, record);
      ++count;
      if (status.ok()) status = to.receive(record);
    }
    return !stream.empty();
  };
  for (bool moved = true; moved;) {
    moved = carry(a, b, outcome.accepting, true, from_a);
    moved = carry(b, a, outcome.connecting, false, from_b) || moved;
  }
  return outcome;
}

TEST(Tls, BothSidesProveTheKeyAndKnowEachOther) {
  const auto a = device();
  const auto b = device();
  auto connecting = a->connecting(b->fingerprint());
  auto accepting = b->accepting();
  const auto outcome = pump(*connecting, *accepting);
  ASSERT_TRUE(outcome.connecting.ok()) << outcome.connecting.error().message;
  ASSERT_TRUE(outcome.accepting.ok()) << outcome.accepting.error().message;
  ASSERT_TRUE(connecting->open());
  ASSERT_TRUE(accepting->open());
  EXPECT_EQ(connecting->peer(), b->fingerprint());
  EXPECT_EQ(accepting->peer(), a->fingerprint());
  EXPECT_EQ(connecting->code(), accepting->code());
  EXPECT_EQ(connecting->code().size(), 7u);  // "123 456"
  // Each session has a code of its own.
  auto again = a->connecting(std::nullopt);
  auto other = b->accepting();
  pump(*again, *other);
  EXPECT_TRUE(again->open());
  EXPECT_NE(again->code(), connecting->code());

  const Text said = bytes_of("hidden states");
  ASSERT_TRUE(connecting->write(said).ok());
  const Text sealed = drain(*connecting);
  const auto* plain = reinterpret_cast<const char*>(sealed.data());
  EXPECT_EQ(std::string_view(plain, sealed.size()).find("hidden"), std::string_view::npos);
  ASSERT_TRUE(accepting->receive(sealed).ok());
  Text heard(100);
  EXPECT_EQ(*accepting->read(heard), said.size());
  EXPECT_EQ(0, std::memcmp(heard.data(), said.data(), said.size()));
  connecting->end();
  ASSERT_TRUE(accepting->receive(drain(*connecting)).ok());
  EXPECT_EQ(*accepting->read(heard), 0u);
  EXPECT_TRUE(accepting->ended());
}

TEST(Tls, WhoHasAnotherKeyIsRefused) {
  const auto a = device(7);
  const auto b = device(8);
  auto connecting = a->connecting(std::nullopt);
  auto accepting = b->accepting();
  const auto outcome = pump(*connecting, *accepting);
  ASSERT_FALSE(outcome.accepting.ok());
  EXPECT_NE(outcome.accepting.error().message.find("does not know the room's key"),
            std::string::npos);
  EXPECT_FALSE(connecting->open());
  EXPECT_FALSE(accepting->open());
  EXPECT_FALSE(connecting->write(bytes_of("x")).ok() && accepting->write(bytes_of("x")).ok());
}

TEST(Tls, AnotherDeviceThanExpectedIsRefusedThoughItHasTheKey) {
  const auto a = device();
  const auto b = device();
  const auto other = device();
  auto connecting = a->connecting(other->fingerprint());
  auto accepting = b->accepting();
  const auto outcome = pump(*connecting, *accepting);
  ASSERT_FALSE(outcome.connecting.ok());
  EXPECT_NE(outcome.connecting.error().message.find(hex(b->fingerprint())), std::string::npos);
  EXPECT_FALSE(accepting->open());
}

TEST(Tls, SomebodyInBetweenWithTheKeyShowsInTheCode) {
  const auto a = device();
  const auto b = device();
  const auto middle = device();
  auto left = a->connecting(std::nullopt);
  auto left_middle = middle->accepting();
  pump(*left, *left_middle);
  auto right_middle = middle->connecting(std::nullopt);
  auto right = b->accepting();
  pump(*right_middle, *right);
  ASSERT_TRUE(left->open());
  ASSERT_TRUE(right->open());
  EXPECT_NE(left->code(), right->code());
}

/// Plain OpenSSL, for who doesn't keep to the rules.
struct Raw {
  explicit Raw(bool connecting, int version = TLS1_3_VERSION, const char* key_type = "ED25519",
               bool certificate = true)
      : context(SSL_CTX_new(TLS_method()), &SSL_CTX_free), ssl(nullptr, &SSL_free) {
    SSL_CTX_set_max_proto_version(context.get(), version);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        std::string_view(key_type) == "EC" ? EVP_EC_gen("P-256")
                                           : EVP_PKEY_Q_keygen(nullptr, nullptr, key_type),
        &EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), &X509_free);
    X509_set_version(cert.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 5);
    X509_gmtime_adj(X509_getm_notBefore(cert.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert.get()), 10000);
    X509_set_pubkey(cert.get(), key.get());
    const bool edwards = EVP_PKEY_get_id(key.get()) == EVP_PKEY_ED25519;
    X509_sign(cert.get(), key.get(), edwards ? nullptr : EVP_sha256());
    if (certificate) {
      SSL_CTX_use_certificate(context.get(), cert.get());
      SSL_CTX_use_PrivateKey(context.get(), key.get());
    }
    SSL_CTX_set_num_tickets(context.get(), 0);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
    ssl.reset(SSL_new(context.get()));
    in = BIO_new(BIO_s_mem());
    out = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl.get(), in, out);
    connecting ? SSL_set_connect_state(ssl.get()) : SSL_set_accept_state(ssl.get());
  }
  void give(const Text& bytes) {
    if (!bytes.empty()) BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
  }
  Text take() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(out, &data);
    Text bytes(static_cast<size_t>(std::max(size, 0L)));
    if (size > 0) std::memcpy(bytes.data(), data, bytes.size());
    (void)BIO_reset(out);
    return bytes;
  }
  Text read() {
    Text bytes(1000);
    size_t got = 0;
    if (SSL_read_ex(ssl.get(), bytes.data(), bytes.size(), &got) != 1) got = 0;
    bytes.resize(got);
    return bytes;
  }
  void write(const Text& bytes) {
    size_t put = 0;
    SSL_write_ex(ssl.get(), bytes.data(), bytes.size(), &put);
  }
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl;
  BIO* in = nullptr;
  BIO* out = nullptr;
};

/// Runs the handshake between a channel and raw TLS; the channel's status.
Status handshake(TlsChannel& channel, Raw& raw) {
  Status status = channel.receive({});
  for (int i = 0; i < 10 && status.ok(); ++i) {
    raw.give(drain(channel));
    SSL_do_handshake(raw.ssl.get());
    for (const Text& record : records(raw.take())) {
      if (status.ok()) status = channel.receive(record);
    }
  }
  return status;
}

TEST(Tls, SomebodyInBetweenWithoutTheKeyCanPassNothingOn) {
  const auto a = device();
  const auto b = device();
  auto left = a->connecting(std::nullopt);
  auto right = b->accepting();
  Raw to_left(false);
  Raw to_right(true);
  SSL_do_handshake(to_right.ssl.get());
  ASSERT_TRUE(handshake(*left, to_left).ok());
  for (const Text& record : records(to_right.take())) ASSERT_TRUE(right->receive(record).ok());
  ASSERT_TRUE(handshake(*right, to_right).ok());
  // Both handshakes stand. The opening is passed on as it is: it belongs to another session.
  const Text opening = to_left.read();
  ASSERT_EQ(opening.size(), 64u);
  to_right.write(opening);
  Status status;
  for (const Text& record : records(to_right.take())) status = right->receive(record);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("somebody is in between"), std::string::npos);
  // Nor does the connecting side take back what it sent, or anything made up.
  to_left.write(Text(opening.begin(), opening.begin() + 48));
  for (const Text& record : records(to_left.take())) status = left->receive(record);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(left->open());
  EXPECT_FALSE(right->open());
}

TEST(Tls, OlderVersionsOtherKeysAndNoCertificateAreRefused) {
  const auto b = device();
  struct Case {
    int version;
    const char* key;
    bool certificate;
  };
  for (const Case& one : {Case{TLS1_2_VERSION, "ED25519", true}, Case{TLS1_3_VERSION, "EC", true},
                          Case{TLS1_3_VERSION, "ED25519", false}}) {
    auto accepting = b->accepting();
    Raw raw(true, one.version, one.key, one.certificate);
    SSL_do_handshake(raw.ssl.get());
    Status status;
    for (const Text& record : records(raw.take())) {
      if (status.ok()) status = accepting->receive(record);
    }
    if (status.ok()) status = handshake(*accepting, raw);
    EXPECT_FALSE(status.ok()) << one.version << " " << one.key << " " << one.certificate;
    EXPECT_FALSE(accepting->open());
    auto connecting = b->connecting(std::nullopt);
    Raw server(false, one.version, one.key, one.certificate);
    EXPECT_FALSE(handshake(*connecting, server).ok() && connecting->open());
  }
}

TEST(Tls, ASessionThatEndsBeforeTheProofIsNone) {
  const auto b = device();
  auto accepting = b->accepting();
  Raw raw(true);
  SSL_do_handshake(raw.ssl.get());
  Status status;
  for (const Text& record : records(raw.take())) status = accepting->receive(record);
  ASSERT_TRUE(handshake(*accepting, raw).ok());
  raw.write(Text(20));  // a part of an opening
  SSL_shutdown(raw.ssl.get());
  for (const Text& record : records(raw.take())) {
    if (status.ok()) status = accepting->receive(record);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("before it proved"), std::string::npos);
}

TEST(Tls, WhatWasSentOnceIsWorthNothingAgain) {
  const auto a = device();
  const auto b = device();
  auto connecting = a->connecting(std::nullopt);
  auto accepting = b->accepting();
  const auto outcome = pump(*connecting, *accepting);
  ASSERT_TRUE(accepting->open());
  auto fresh = b->accepting();
  Status status = fresh->receive({});
  for (const Text& record : records(outcome.seen)) {
    if (status.ok()) status = fresh->receive(record);
    drain(*fresh);
  }
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(fresh->open());
  // A record of an open session, twice.
  ASSERT_TRUE(connecting->write(bytes_of("once")).ok());
  const Text record = drain(*connecting);
  Text heard(100);
  ASSERT_TRUE(accepting->receive(record).ok());
  EXPECT_EQ(*accepting->read(heard), 4u);
  ASSERT_TRUE(accepting->receive(record).ok());
  EXPECT_FALSE(accepting->read(heard).ok());
}

TEST(Tls, NoByteOfTheHandshakeCanBeChanged) {
  const auto a = device();
  const auto b = device();
  for (const bool direction : {true, false}) {
    for (size_t which = 0; which < 8; ++which) {
      for (const size_t place : {5u, 9u, 20u, 47u}) {
        auto connecting = a->connecting(std::nullopt);
        auto accepting = b->accepting();
        bool changed = false;
        const auto outcome =
            pump(*connecting, *accepting, [&](bool from_connecting, size_t number, Text& record) {
              if (from_connecting != direction || number != which || place >= record.size()) return;
              // Records of one byte that older programs expect mean nothing.
              if (record[0] == std::byte{20}) return;
              record[place] ^= std::byte{1};
              changed = true;
            });
        if (!changed) continue;
        EXPECT_FALSE(connecting->open() && accepting->open())
            << direction << " " << which << " " << place;
      }
    }
  }
}

TEST(Tls, KeysAndPinsAreReadStrictly) {
  EXPECT_TRUE(parse_room_key(" 000102030405060708090a0b0c0d0E0f\n").ok());
  for (const char* bad :
       {"", "00", "000102030405060708090a0b0c0d0e0", "g00102030405060708090a0b0c0d0e0f",
        "000102030405060708090a0b0c0d0e0f00"}) {
    const auto key = parse_room_key(bad);
    ASSERT_FALSE(key.ok()) << bad;
    EXPECT_TRUE(std::strlen(bad) < 3 || key.error().message.find(bad) == std::string::npos);
  }
  const std::string digits(64, 'a');
  const auto pinned = split_pin("host:7000#" + digits);
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(pinned->first, "host:7000");
  EXPECT_EQ(hex(*pinned->second), digits);
  EXPECT_FALSE(split_pin("host:7000")->second.has_value());
  EXPECT_FALSE(split_pin("host:7000#abc").ok());
}

TEST(Tls, AnIdentityStaysInItsFile) {
  const std::string file =
      testing::TempDir() + "/tandem-identity-" + std::to_string(::getpid()) + ".pem";
  ::unlink(file.c_str());
  const auto made = Identity::open(file);
  ASSERT_TRUE(made.ok()) << made.error().message;
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto read = Identity::open(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ((*read)->fingerprint(), (*made)->fingerprint());
  EXPECT_NE((*Identity::create())->fingerprint(), (*made)->fingerprint());
  std::ofstream(file, std::ios::trunc) << "no key";
  EXPECT_FALSE(Identity::open(file).ok());
  ::unlink(file.c_str());
  EXPECT_FALSE(Identity::open("/nowhere/identity.pem").ok());
}

struct Pair {
  std::unique_ptr<Connection> a;
  std::unique_ptr<Connection> b;
};

Clock::time_point soon() {
  return Clock::now() + std::chrono::seconds(20);
}

/// Two connections over real sockets, the handshake done.
Pair connect_pair(const std::shared_ptr<const Tls>& a, const std::shared_ptr<const Tls>& b) {
  auto listener = Listener::open({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  auto socket = connect(listener->address(), std::chrono::seconds(5));
  EXPECT_TRUE(socket.ok());
  auto accepted = listener->accept();
  while (accepted.ok() && !accepted->has_value()) accepted = listener->accept();
  Pair pair{std::make_unique<Connection>(std::move(*socket), a->connecting(std::nullopt)),
            std::make_unique<Connection>(std::move(**accepted), b->accepting())};
  std::thread other([&] { EXPECT_TRUE(pair.b->secure_until(soon()).ok()); });
  EXPECT_TRUE(pair.a->secure_until(soon()).ok());
  other.join();
  return pair;
}

TEST(TlsConnection, CarriesFramesOfAllSizesBothWaysAtOnce) {
  const auto a = device();
  const auto b = device();
  const Pair pair = connect_pair(a, b);
  const std::vector<size_t> sizes{4, 100, 16384 - 48, 16384, 200000, 5, 262144};
  auto talk = [&](Connection& connection) {
    std::thread sender([&] {
      for (const size_t size : sizes) {
        const Text payload(size, static_cast<std::byte>(size));
        EXPECT_TRUE(connection.send_until(soon(), {.type = Type::kEcho}, payload).ok());
      }
    });
    for (const size_t size : sizes) {
      const auto header = connection.receive_until(soon(), kMaxEchoBytes);
      ASSERT_TRUE(header.ok()) << header.error().message;
      ASSERT_EQ(connection.payload().size(), size);
      EXPECT_EQ(connection.payload().back(), static_cast<std::byte>(size));
    }
    sender.join();
  };
  std::thread other([&] { talk(*pair.b); });
  talk(*pair.a);
  other.join();
}

TEST(TlsConnection, AnEndThatWasNotSaidIsNotAnEnd) {
  const auto a = device();
  const auto b = device();
  auto read = [](Connection& connection) {
    for (;;) {
      auto step = connection.read([&](const Header& header) -> Result<Connection::Place> {
        return connection.to_payload(header);
      });
      if (!step.ok() || *step != Connection::Step::kNothing) return step;
      EXPECT_TRUE(wait_for(connection.fd(), false, soon()));
    }
  };
  Pair said = connect_pair(a, b);
  said.a.reset();
  const auto end = read(*said.b);
  ASSERT_TRUE(end.ok()) << end.error().message;
  EXPECT_EQ(*end, Connection::Step::kClosed);
  const Pair cut = connect_pair(a, b);
  ::shutdown(cut.a->fd(), SHUT_RDWR);
  const auto error = read(*cut.b);
  ASSERT_FALSE(error.ok());
  EXPECT_NE(error.error().message.find("cut off"), std::string::npos);
}

}  // namespace
}  // namespace tandem::wire
