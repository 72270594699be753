#include "wire/frame.h"

#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace tandem::wire {

std::string_view name(Type type) {
  switch (type) {
    case Type::kHello:
      return "hello";
    case Type::kWelcome:
      return "welcome";
    case Type::kRefusal:
      return "refusal";
    case Type::kLoad:
      return "load";
    case Type::kNeedTensor:
      return "need-tensor";
    case Type::kNeedRange:
      return "need-range";
    case Type::kTensorChunk:
      return "tensor-chunk";
    case Type::kProgress:
      return "progress";
    case Type::kReady:
      return "ready";
    case Type::kActivate:
      return "activate";
    case Type::kActivated:
      return "activated";
    case Type::kDial:
      return "dial";
    case Type::kDialed:
      return "dialed";
    case Type::kStates:
      return "states";
    case Type::kTrouble:
      return "trouble";
    case Type::kFence:
      return "fence";
    case Type::kPing:
      return "ping";
    case Type::kPong:
      return "pong";
    case Type::kBye:
      return "bye";
    case Type::kMeasure:
      return "measure";
    case Type::kMeasured:
      return "measured";
    case Type::kTestLink:
      return "test-link";
    case Type::kLinkTested:
      return "link-tested";
    case Type::kEcho:
      return "echo";
  }
  return "unknown";
}

uint32_t max_payload(Type type) {
  switch (type) {
    case Type::kHello:
    case Type::kWelcome:
    case Type::kNeedTensor:
    case Type::kNeedRange:
      return 1024;
    case Type::kRefusal:
    case Type::kTrouble:
      return 4096;
    case Type::kLoad:
      return 18u << 20;  // a config of 1 MiB, a manifest of 16 MiB, and the rest
    case Type::kTensorChunk:
      return kMaxChunkBytes;
    case Type::kStates:
      return kMaxFrameBytes;
    case Type::kProgress:
    case Type::kReady:
    case Type::kActivate:
    case Type::kPong:
    case Type::kMeasure:
    case Type::kLinkTested:
      return 256;
    case Type::kDial:
    case Type::kMeasured:
    case Type::kTestLink:
      return 512;
    case Type::kEcho:
      return kMaxEchoBytes;
    case Type::kActivated:
    case Type::kDialed:
    case Type::kFence:
    case Type::kPing:
    case Type::kBye:
      return 0;
  }
  return 0;
}

std::array<std::byte, kHeaderBytes> encode(const Header& header) {
  std::array<std::byte, kHeaderBytes> bytes{};
  size_t at = 0;
  auto put = [&](auto value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    at += sizeof value;
  };
  put(kMagic);
  put(static_cast<uint8_t>(header.type));
  put(static_cast<uint8_t>(header.control));
  put(uint16_t{0});
  put(header.length);
  put(header.want);
  put(header.lap);
  put(header.position);
  put(header.tokens);
  put(header.argument);
  put(header.compute_us);
  put(header.sequence);
  put(uint32_t{0});
  return bytes;
}

namespace {

constexpr size_t kHeadAt = 6;
constexpr size_t kWholeAt = 44;

struct Checks {
  uint16_t head = 0;
  uint32_t crc = 0;  ///< of the header
};

Checks checks_of(std::span<const std::byte, kHeaderBytes> header) {
  std::array<std::byte, kHeaderBytes> bare;
  std::memcpy(bare.data(), header.data(), kHeaderBytes);
  std::memset(bare.data() + kHeadAt, 0, sizeof(uint16_t));
  std::memset(bare.data() + kWholeAt, 0, sizeof(uint32_t));
  const uint32_t crc = crc32c(bare);
  return {static_cast<uint16_t>(crc ^ crc >> 16), crc};
}

template <typename T>
T read_at(std::span<const std::byte, kHeaderBytes> header, size_t at) {
  T value;
  std::memcpy(&value, header.data() + at, sizeof value);
  return value;
}

bool unchecked(std::span<const std::byte, kHeaderBytes> header) {
  return !checked(static_cast<Type>(header[4])) && read_at<uint16_t>(header, kHeadAt) == 0 &&
         read_at<uint32_t>(header, kWholeAt) == 0;
}

}  // namespace

bool checked(Type type) {
  return type != Type::kHello && type != Type::kWelcome && type != Type::kRefusal;
}

void seal(std::span<std::byte, kHeaderBytes> header, std::span<const std::byte> first,
          std::span<const std::byte> second) {
  const Checks checks = checks_of(header);
  const uint32_t whole = crc32c(second, crc32c(first, checks.crc));
  std::memcpy(header.data() + kHeadAt, &checks.head, sizeof checks.head);
  std::memcpy(header.data() + kWholeAt, &whole, sizeof whole);
}

bool intact_header(std::span<const std::byte, kHeaderBytes> header) {
  return unchecked(header) || checks_of(header).head == read_at<uint16_t>(header, kHeadAt);
}

bool intact(std::span<const std::byte, kHeaderBytes> header, std::span<const std::byte> first,
            std::span<const std::byte> second) {
  return unchecked(header) || crc32c(second, crc32c(first, checks_of(header).crc)) ==
                                  read_at<uint32_t>(header, kWholeAt);
}

Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  ByteReader reader(bytes);
  if (const auto magic = reader.read<uint32_t>(); magic != kMagic) {
    return invalid("not a Tandem frame: it starts with " + std::to_string(magic) +
                   ", expected the magic number " + std::to_string(kMagic));
  }
  const auto type = reader.read<uint8_t>();
  const auto control = reader.read<uint8_t>();
  reader.read<uint16_t>();  // `head`
  Header header;
  header.length = reader.read<uint32_t>();
  header.want = reader.read<uint32_t>();
  header.lap = reader.read<uint64_t>();
  header.position = reader.read<uint32_t>();
  header.tokens = reader.read<uint32_t>();
  header.argument = reader.read<uint32_t>();
  header.compute_us = reader.read<uint32_t>();
  header.sequence = reader.read<uint32_t>();
  if (type == 0 || type > kLastType) {
    return invalid("frame of unknown type " + std::to_string(type));
  }
  header.type = static_cast<Type>(type);
  if (control > kLastControl) {
    return invalid("frame with unknown control " + std::to_string(control));
  }
  header.control = static_cast<Control>(control);
  const std::string type_name(name(header.type));
  if (header.length > max_payload(header.type)) {
    return invalid(type_name + " frame of " + std::to_string(header.length) +
                   " bytes, the limit is " + std::to_string(max_payload(header.type)));
  }
  if (header.type == Type::kStates) {
    if (header.tokens > kMaxFrameTokens || header.want > header.tokens) {
      return invalid("states frame of " + std::to_string(header.tokens) + " tokens with " +
                     std::to_string(header.want) + " wanted, the limit is " +
                     std::to_string(kMaxFrameTokens));
    }
  } else if (header.type != Type::kFence || header.control != Control::kNone) {
    if (header.control != Control::kNone || header.lap != 0 || header.tokens != 0 ||
        header.want != 0 || header.position != 0 || header.argument != 0 ||
        header.compute_us != 0 || header.sequence != 0) {
      return invalid(type_name + " frame with fields of a states frame");
    }
  }
  return header;
}

}  // namespace tandem::wire
