// The unit of everything that Tandem's processes say to each other.
//
//   stream  = frame*
//   frame   = header payload
//   header  = magic:u32 type:u8 control:u8 head:u16 length:u32 want:u32 lap:u64 position:u32
//             tokens:u32 argument:u32 compute_us:u32 sequence:u32 whole:u32           (48 bytes)
//   payload = byte*length
//
// All numbers are little-endian. `magic` is the four letters "TNDM". `whole` is the CRC-32C of the
// frame with `head` and `whole` zero, and `head` the exclusive or of the two halves of that of the
// header alone, so that bits that flip on the way are found: TCP's own sum misses one damaged
// segment in 65,536, and hidden states look as good with another bit. Both are 0 over TLS, which
// finds them itself, and in the first frames that two programs exchange (checked). `length` may not
// pass the limit of its type (max_payload), which is checked before a byte is allocated. The fields
// from `want` on are used by kStates and kFence only and are 0 elsewhere. docs/wire.md has the
// meaning of every type and who sends it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace tandem::wire {

/// Raised whenever a frame or message changes its form or meaning.
inline constexpr uint32_t kProtocolVersion = 6;
inline constexpr uint32_t kMagic = 0x4d444e54;  // "TNDM"
inline constexpr size_t kHeaderBytes = 48;
/// Tokens in one kStates frame. 4,096 tokens of a hidden size of 16,384 are 128 MiB.
inline constexpr uint32_t kMaxFrameTokens = 4096;
inline constexpr uint32_t kMaxFrameBytes = 160u << 20;
/// Bytes of a tensor in one kTensorChunk.
inline constexpr uint32_t kMaxChunkBytes = 1u << 20;
/// Bytes of a tensor that one kNeedRange may ask for.
inline constexpr uint32_t kMaxRangeBytes = 4u << 20;
/// Payload of one kEcho, and of an answer to one.
inline constexpr uint32_t kMaxEchoBytes = 256u << 10;

enum class Type : uint8_t {
  kHello = 1,    ///< first frame of whoever connects: Hello
  kWelcome,      ///< the answer to it: Welcome
  kRefusal,      ///< why something asked for will not happen: Refusal
  kLoad,         ///< host to worker: Load
  kNeedTensor,   ///< worker to host: the name of a tensor
  kTensorChunk,  ///< the next bytes of the tensor, or of the range of one, that was asked for
  kProgress,     ///< worker to host while it loads: Progress
  kReady,        ///< worker to host: the stage is loaded: Ready
  kActivate,     ///< host to worker: forget all links, expect new ones: Activate
  kActivated,    ///< worker to host: no payload
  kDial,         ///< host to worker: connect to the next stage: Dial
  kDialed,       ///< worker to host: no payload; a kRefusal instead says why not
  kStates,       ///< along the ring: hidden states, and control
  kTrouble,      ///< worker to host: a lap failed: Trouble
  kFence,        ///< host to worker: laps up to header.lap are void
  kPing,         ///< host to worker
  kPong,         ///< worker to host: Pong
  kBye,          ///< either side before it closes; no payload
  kMeasure,      ///< host to worker: time passes of the stage: Measure
  kMeasured,     ///< worker to host: Measured
  kTestLink,     ///< host to worker: measure the way to another worker: TestLink
  kLinkTested,   ///< worker to host: LinkTested; a kRefusal instead says why not
  kEcho,         ///< both ways on a connection of Role::kEcho: Echo
  kNeedRange,    ///< worker to host, or to another worker (Role::kSource): NeedRange
};
inline constexpr uint8_t kLastType = static_cast<uint8_t>(Type::kNeedRange);
std::string_view name(Type type);

/// What a kStates frame asks of a stage's sequence before its tokens are run. Travels in the header
/// so that nothing can overtake it.
enum class Control : uint8_t {
  kNone = 0,
  kReset,     ///< forget all positions and marks
  kRollback,  ///< forget the positions from `argument` on
  kSave,      ///< remember the present length as mark `argument`
  kRestore,   ///< roll back to mark `argument`
  kDrop,      ///< forget mark `argument`
};
inline constexpr uint8_t kLastControl = static_cast<uint8_t>(Control::kDrop);

struct Header {
  Type type = Type::kBye;
  Control control = Control::kNone;
  uint32_t length = 0;      ///< payload bytes
  uint32_t want = 0;        ///< how many of the last tokens' rows the segment's last stage sends on
  uint64_t lap = 0;         ///< which lap a frame belongs to; laps only ever rise
  uint32_t position = 0;    ///< of the first token
  uint32_t tokens = 0;      ///< tokens run by this frame, even if fewer rows travel
  uint32_t argument = 0;    ///< of `control`
  uint32_t compute_us = 0;  ///< microseconds that stages have computed on this frame so far
  uint32_t sequence = 0;    ///< which of the session's sequences
};

/// Largest payload of a type, in bytes.
uint32_t max_payload(Type type);

/// Whether frames of a type are checked: all but hello, welcome and refusal, whose form is that of
/// all versions.
bool checked(Type type);

/// Writes a header to 48 bytes, with `head` and `whole` zero.
std::array<std::byte, kHeaderBytes> encode(const Header& header);
/// Sets `head` and `whole` for a payload in two parts.
void seal(std::span<std::byte, kHeaderBytes> header, std::span<const std::byte> first,
          std::span<const std::byte> second);
/// What a frame that came says of itself.
bool intact_header(std::span<const std::byte, kHeaderBytes> header);
bool intact(std::span<const std::byte, kHeaderBytes> header, std::span<const std::byte> first,
            std::span<const std::byte> second);

/// Reads and checks a header: magic, type, control, and length and tokens against the limits; not
/// `head` and `whole`. Error: kInvalid.
Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace tandem::wire
