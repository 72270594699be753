// Frames and messages: what is written is read back, and nothing else is accepted.
#include "wire/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "wire/messages.h"

namespace tandem::wire {
namespace {

Header states_header() {
  Header header;
  header.type = Type::kStates;
  header.control = Control::kRollback;
  header.length = 12345;
  header.want = 3;
  header.lap = 0x1122334455667788;
  header.position = 77;
  header.tokens = 32;
  header.argument = 70;
  header.compute_us = 999;
  header.sequence = 2;
  return header;
}

TEST(Frame, HeaderIsReadAsWritten) {
  const auto bytes = encode(states_header());
  const auto header = decode_header(bytes);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(encode(*header), bytes);
  EXPECT_EQ(header->lap, 0x1122334455667788u);
  EXPECT_EQ(header->control, Control::kRollback);
}

TEST(Frame, HeaderHasTheDocumentedBytes) {
  Header header;
  header.type = Type::kPing;
  const auto bytes = encode(header);
  EXPECT_EQ(std::to_integer<char>(bytes[0]), 'T');
  EXPECT_EQ(std::to_integer<char>(bytes[1]), 'N');
  EXPECT_EQ(std::to_integer<char>(bytes[2]), 'D');
  EXPECT_EQ(std::to_integer<char>(bytes[3]), 'M');
  EXPECT_EQ(std::to_integer<int>(bytes[4]), 16);
}

TEST(Frame, RefusesWhatIsNotAHeader) {
  const auto good = encode(states_header());
  auto with = [&](size_t at, int value) {
    auto bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return decode_header(bytes);
  };
  EXPECT_FALSE(with(0, 'X').ok());
  EXPECT_FALSE(with(4, 0).ok());
  EXPECT_FALSE(with(4, 200).ok());
  EXPECT_FALSE(with(5, 99).ok());
  EXPECT_NE(with(4, 200).error().message.find("200"), std::string::npos);
}

TEST(Frame, AnyBitThatFlipsIsFound) {
  std::vector<std::byte> first(100);
  std::vector<std::byte> second(30);
  std::mt19937 random(5);
  for (auto& byte : first) byte = static_cast<std::byte>(random());
  for (auto& byte : second) byte = static_cast<std::byte>(random());
  Header header = states_header();
  header.length = 130;
  auto head = encode(header);
  seal(head, first, second);
  EXPECT_TRUE(intact_header(head));
  EXPECT_TRUE(intact(head, first, second));
  const auto flip = [](auto& bytes, size_t bit) { bytes[bit / 8] ^= std::byte{1} << (bit % 8); };
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    flip(head, bit);
    // `whole` is found wrong with the payload, all else at once: before a byte of it is placed.
    if (bit < 44 * 8) {
      EXPECT_FALSE(intact_header(head)) << bit;
    }
    EXPECT_FALSE(intact(head, first, second) && intact_header(head)) << bit;
    flip(head, bit);
  }
  for (size_t bit = 0; bit < first.size() * 8; ++bit) {
    flip(first, bit);
    EXPECT_FALSE(intact(head, first, second)) << bit;
    flip(first, bit);
  }
  for (size_t bit = 0; bit < second.size() * 8; ++bit) {
    flip(second, bit);
    EXPECT_FALSE(intact(head, first, second)) << bit;
    flip(second, bit);
  }
  EXPECT_TRUE(intact(head, first, second));
}

TEST(Frame, TheFirstFramesOfAllVersionsAreNotChecked) {
  const auto hello = encode({.type = Type::kHello, .length = 5});
  EXPECT_TRUE(intact_header(hello));
  EXPECT_TRUE(intact(hello, std::vector<std::byte>(5), {}));
  const auto ping = encode({.type = Type::kPing});
  EXPECT_FALSE(intact_header(ping));
}

TEST(Frame, LengthIsLimitedByType) {
  for (uint8_t type = 1; type <= kLastType; ++type) {
    Header header;
    header.type = static_cast<Type>(type);
    header.length = max_payload(header.type);
    EXPECT_TRUE(decode_header(encode(header)).ok()) << name(header.type);
    header.length += 1;
    EXPECT_FALSE(decode_header(encode(header)).ok()) << name(header.type);
    EXPECT_LE(max_payload(header.type), kMaxFrameBytes);
  }
}

TEST(Frame, OnlyStatesFramesHaveStatesFields) {
  Header header = states_header();
  header.type = Type::kPing;
  header.length = 0;
  EXPECT_FALSE(decode_header(encode(header)).ok());
}

TEST(Frame, WantsNoMoreTokensThanThereAre) {
  Header header = states_header();
  header.want = header.tokens + 1;
  EXPECT_FALSE(decode_header(encode(header)).ok());
  header.want = 0;
  header.tokens = kMaxFrameTokens + 1;
  EXPECT_FALSE(decode_header(encode(header)).ok());
}

// Every message: its encoding decodes to the same encoding, and no shorter or longer bytes decode.
template <typename Message>
void expect_exact(const Message& message) {
  const Bytes bytes = message.encode();
  const auto read = Message::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->encode(), bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Message::decode(std::span(bytes).first(length)).ok()) << length;
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Message::decode(longer).ok());
}

TEST(Messages, AreReadAsWrittenAndNothingElse) {
  Hello hello;
  hello.role = Role::kLinkIn;
  hello.key.fill(7);
  hello.software = "tandem test";
  expect_exact(hello);
  Welcome welcome;
  welcome.software = "x";
  expect_exact(welcome);
  expect_exact(Refusal{ErrorKind::kMemory, "needs 4 GB, has 2 GB"});
  Load load;
  load.config_json = "{}";
  load.manifest.resize(100, std::byte{5});
  load.context = 4096;
  expect_exact(load);
  expect_exact(Progress{LoadPhase::kLoading, 5, 10});
  expect_exact(Ready{1, 2, 3, LoadedFrom::kHost});
  expect_exact(Activate{});
  expect_exact(Dial{{}, {}, "127.0.0.1:4000"});
  expect_exact(Trouble{9, Blame::kUpstream, ErrorKind::kInvalid, true, "why"});
  expect_exact(Pong{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1});
  Measure measure;
  measure.warm_up = 3;
  measure.position = 77;
  measure.widths = {1, 4, 4096};
  expect_exact(measure);
  expect_exact(Measured{{{1, 9, {2, 1, 3}}, {64, 5, {7, 7, 7}}}});
  expect_exact(TestLink{{}, {}, "127.0.0.1:4000"});
  expect_exact(LinkTested{{2, 1, 3}, {5, 4, 6}});
  expect_exact(NeedRange{sha256("m"), 77, kMaxRangeBytes, "model.layers.0.mlp.up_proj.weight"});
}

TEST(Messages, AnotherProtocolVersionIsStillUnderstoodAsSuch) {
  Bytes bytes(300, std::byte{0xff});
  const auto hello = Hello::decode(bytes);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->protocol, 0xffffffffu);
}

TEST(Messages, TextOfAPeerCantControlATerminal) {
  const auto read = Refusal::decode(Refusal{ErrorKind::kIo, "a\x1b[2J\nb"}.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->reason, "a [2J b");
}

TEST(Messages, LongTextIsCutWhenWritten) {
  const Bytes bytes = Refusal{ErrorKind::kIo, std::string(100000, 'x')}.encode();
  EXPECT_LE(bytes.size(), max_payload(Type::kRefusal));
  EXPECT_TRUE(Refusal::decode(bytes).ok());
}

TEST(Messages, RefuseValuesOutOfRange) {
  Load load;
  load.weight_bits = 5;
  EXPECT_FALSE(Load::decode(load.encode()).ok());
  load.weight_bits = 4;
  load.kv_bits = 4;
  EXPECT_FALSE(Load::decode(load.encode()).ok());
  load.kv_bits = 8;
  EXPECT_TRUE(Load::decode(load.encode()).ok());
  load.sequences = 65;
  EXPECT_FALSE(Load::decode(load.encode()).ok());
  for (const Spread& wrong : {Spread{0, 0, 0}, Spread{1, 2, 3}, Spread{3, 1, 2}}) {
    EXPECT_FALSE(LinkTested::decode(LinkTested{wrong, {1, 1, 1}}.encode()).ok());
    EXPECT_FALSE(LinkTested::decode(LinkTested{{1, 1, 1}, wrong}.encode()).ok());
    EXPECT_FALSE(Measured::decode(Measured{{{1, 1, wrong}}}.encode()).ok());
  }
  EXPECT_FALSE(Measured::decode(Measured{}.encode()).ok());
  EXPECT_FALSE(Measured::decode(Measured{{{1, 0, {1, 1, 1}}}}.encode()).ok());
  auto measures = [](const Measure& measure) { return Measure::decode(measure.encode()).ok(); };
  EXPECT_TRUE(measures({0, 1, 1, 0, {1}}));
  EXPECT_FALSE(measures({0, 1, 1, 0, {}}));
  EXPECT_FALSE(measures({0, 1, 1, 0, {0}}));
  EXPECT_FALSE(measures({0, 1, 1, 0, {kMaxFrameTokens + 1}}));
  EXPECT_FALSE(measures({0, 0, 1, 0, {1}}));
  EXPECT_FALSE(measures({0, 1, 60001, 0, {1}}));
  EXPECT_FALSE(measures({1001, 1, 1, 0, {1}}));
  EXPECT_FALSE(Echo::decode(Echo{3, 0}.encode()).ok());
  EXPECT_FALSE(Echo::decode(Echo{kMaxEchoBytes + 1, 0}.encode()).ok());
  EXPECT_EQ(Echo::decode(Echo{4, 9}.encode())->filler, 9u);
  const auto asks = [](uint64_t offset, uint32_t length, const std::string& tensor) {
    return NeedRange::decode(NeedRange{{}, offset, length, tensor}.encode()).ok();
  };
  EXPECT_TRUE(asks(0, 1, "t"));
  EXPECT_TRUE(asks((uint64_t{1} << 61) - 1, kMaxRangeBytes, std::string(512, 't')));
  EXPECT_FALSE(asks(uint64_t{1} << 61, 1, "t"));
  EXPECT_FALSE(asks(UINT64_MAX, 1, "t"));
  EXPECT_FALSE(asks(0, 0, "t"));
  EXPECT_FALSE(asks(0, kMaxRangeBytes + 1, "t"));
  EXPECT_FALSE(asks(0, UINT32_MAX, "t"));
  EXPECT_FALSE(asks(0, 1, ""));
  EXPECT_FALSE(asks(0, 1, std::string(513, 't')));
}

TEST(Messages, RandomBytesNeverDecodeToMuch) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    const auto load = Load::decode(bytes);
    if (load.ok()) {
      EXPECT_LE(load->config_json.size() + load->manifest.size(), bytes.size());
    }
    (void)Trouble::decode(bytes).ok();
    (void)Dial::decode(bytes).ok();
  }
}

}  // namespace
}  // namespace tandem::wire
