// The payloads of frames other than kStates and kTensorChunk. Each struct is written by encode()
// and read by its decode(), which fails on anything that encode() can't have written: short, long,
// or with a value out of its range. Texts are a u32 length and UTF-8 bytes, cut by encode() to the
// limit. Fields are in the order of the struct; docs/wire.md has the grammar.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "wire/frame.h"

namespace tandem::wire {

using Bytes = std::vector<std::byte>;
/// Proof that a link was announced by the host of its ring: 128 random bits.
using Key = std::array<uint8_t, 16>;

enum class Role : uint8_t {
  kHost = 1,     ///< the connection that a host loads and watches a worker through
  kLinkIn = 2,   ///< brings hidden states to the stage that expects `key`
  kLinkOut = 3,  ///< fetches hidden states from the stage that expects `key`
  kEcho = 4,     ///< measures the way to a stage that expects `key`
  kSource = 5,   ///< asks for ranges of tensors that the worker has on its disk
};

/// The two versions come first and stay first in all versions, so that any two programs can tell
/// each other why they don't fit.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  uint32_t contract = 0;  ///< version of the arithmetic contract
  Role role = Role::kHost;
  Key key{};             ///< zero for a host
  std::string software;  ///< for people, at most 64 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<Hello> decode(std::span<const std::byte> bytes);
};

struct Welcome {
  uint32_t protocol = kProtocolVersion;
  uint32_t contract = 0;
  uint32_t threads = 0;
  uint64_t memory_limit = 0;      ///< bytes for weights and KV caches; 0 is no limit
  uint64_t memory_free = 0;       ///< of them not in use; without a limit memory_available
  uint64_t memory_available = 0;  ///< bytes that its system could still give; 0 if not known
  std::string software;           ///< at most 64 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<Welcome> decode(std::span<const std::byte> bytes);
};

struct Refusal {
  ErrorKind kind = ErrorKind::kInvalid;
  std::string reason;  ///< at most 2,000 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<Refusal> decode(std::span<const std::byte> bytes);
};

/// What a stage is. `manifest` is weights::Manifest's canonical form; its SHA-256 must be
/// `model_hash`, and that of `config_json` must be the one that the manifest names.
struct Load {
  Digest model_hash{};
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;  ///< one past the last
  uint8_t weight_bits = 8;  ///< 16, 8 or 4
  uint8_t kv_bits = 16;     ///< 16 or 8
  uint32_t context = 0;     ///< positions that each sequence may grow to
  uint32_t sequences = 1;   ///< 1 to 64
  std::string config_json;  ///< at most 1 MiB
  Bytes manifest;           ///< at most 16 MiB
  /// Where the model is known to be: "ORG/NAME@REVISION", or its name at a hub; or empty. At most
  /// 300 bytes. A hint: what counts is the manifest.
  std::string origin;

  [[nodiscard]] Bytes encode() const;
  static Result<Load> decode(std::span<const std::byte> bytes);
};

enum class LoadPhase : uint8_t {
  kWaiting = 0,    ///< for another client's load of the same stage
  kSearching = 1,  ///< hashing folders under --models
  kLoading = 2,    ///< reading and quantizing the layers' tensors
};

struct Progress {
  LoadPhase phase = LoadPhase::kWaiting;
  uint64_t done = 0;  ///< bytes
  uint64_t total = 0;

  [[nodiscard]] Bytes encode() const;
  static Result<Progress> decode(std::span<const std::byte> bytes);
};

enum class LoadedFrom : uint8_t { kMemory = 0, kLibrary = 1, kHost = 2, kFetched = 3 };

struct Ready {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;  ///< reserved for the session's sequences
  uint64_t streamed = 0;  ///< bytes of tensors that came over the connection
  LoadedFrom from = LoadedFrom::kMemory;

  [[nodiscard]] Bytes encode() const;
  static Result<Ready> decode(std::span<const std::byte> bytes);
};

/// From now on the stage takes a link in that proves `in`, and a link out that proves `out`.
struct Activate {
  uint64_t number = 0;  ///< of this activation, for Trouble; rises
  Key in{};
  Key out{};

  [[nodiscard]] Bytes encode() const;
  static Result<Activate> decode(std::span<const std::byte> bytes);
};

struct Dial {
  Key key{};            ///< the next stage's `in`
  Digest pin{};         ///< fingerprint of the device there; zero: without TLS
  std::string address;  ///< HOST:PORT, at most 300 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<Dial> decode(std::span<const std::byte> bytes);
};

/// Who is to blame for a lap that failed, as far as the one who tells can see.
enum class Blame : uint8_t {
  kSelf = 0,        ///< this stage could not compute
  kUpstream = 1,    ///< what came in was nonsense, or the link in broke
  kDownstream = 2,  ///< the link out broke
  kRequest = 3,     ///< the lap asked for something that the stage must refuse
};

struct Trouble {
  uint64_t activation = 0;  ///< the Activate under which it happened
  Blame blame = Blame::kSelf;
  ErrorKind kind = ErrorKind::kPeer;
  bool link_lost = false;  ///< the cause is a closed link, whose other end may know more
  std::string text;        ///< at most 2,000 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<Trouble> decode(std::span<const std::byte> bytes);
};

/// Counters since the session's last Activate. A stage with received > sent and no pass under way
/// has lost a frame.
struct Pong {
  uint64_t passes = 0;    ///< all passes that the worker's compute thread has finished
  uint64_t received = 0;  ///< frames that reached this session's stage
  uint64_t sent = 0;      ///< frames that it handed on, or dropped behind a fence
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t stage_passes = 0;   ///< of this session, since its stage was loaded
  uint64_t stage_us = 0;       ///< what they took
  uint64_t single_passes = 0;  ///< those of one token
  uint64_t single_us = 0;
  uint32_t pass_ms = 0;     ///< how long the pass under way has run; 0 if none is
  uint32_t allowed_ms = 0;  ///< how long it may
  uint8_t busy = 0;         ///< 1 while a pass of any session is under way

  [[nodiscard]] Bytes encode() const;
  static Result<Pong> decode(std::span<const std::byte> bytes);
};

/// Have the loaded stage run passes and time them, one width after the other.
struct Measure {
  static constexpr size_t kMostWidths = 8;
  uint32_t warm_up = 0;  ///< passes of each width that are not timed, 0 to 1,000
  uint32_t repeats = 1;  ///< and that are, 1 to 1,000
  uint32_t budget_ms =
      1;  ///< for each width, 1 to 60,000; two passes are timed at least, if so many are asked for
  uint32_t position = 0;         ///< tokens that the sequence holds before
  std::vector<uint32_t> widths;  ///< 1 to kMostWidths, each 1 to kMaxFrameTokens

  [[nodiscard]] Bytes encode() const;
  static Result<Measure> decode(std::span<const std::byte> bytes);
};

/// Median, least and greatest of several values.
struct Spread {
  uint64_t median = 0;
  uint64_t low = 0;
  uint64_t high = 0;
};

/// One entry for each width asked for, in that order.
struct Measured {
  struct Width {
    uint32_t width = 0;
    uint32_t runs = 0;   ///< passes that were timed, 1 or more
    Spread nanoseconds;  ///< of a pass; never 0
  };
  std::vector<Width> widths;

  [[nodiscard]] Bytes encode() const;
  static Result<Measured> decode(std::span<const std::byte> bytes);
};

/// Measure the way to the worker at `address`, which expects `key`.
struct TestLink {
  Key key{};
  Digest pin{};         ///< as in Dial
  std::string address;  ///< HOST:PORT, at most 300 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<TestLink> decode(std::span<const std::byte> bytes);
};

struct LinkTested {
  Spread rtt_ns;            ///< of an empty frame and its answer
  Spread bytes_per_second;  ///< never 0

  [[nodiscard]] Bytes encode() const;
  static Result<LinkTested> decode(std::span<const std::byte> bytes);
};

/// Answered by a kEcho of `answer` bytes payload in all, unless that is 0. The rest of the payload
/// is filler.
struct Echo {
  uint32_t answer = 0;  ///< 0, or 4 to kMaxEchoBytes
  uint32_t filler = 0;  ///< bytes that follow

  [[nodiscard]] Bytes encode() const;
  static Result<Echo> decode(std::span<const std::byte> bytes);
};

/// Asks for bytes [offset, offset + length) of a tensor. Answered by kTensorChunk frames of
/// `length` bytes in all, or by a kRefusal, after which the connection may be asked for something
/// else.
struct NeedRange {
  Digest model_hash{};
  uint64_t offset = 0;  ///< offset + length is below 2^62
  uint32_t length = 1;  ///< 1 to kMaxRangeBytes
  std::string tensor;   ///< 1 to 512 bytes

  [[nodiscard]] Bytes encode() const;
  static Result<NeedRange> decode(std::span<const std::byte> bytes);
};

/// A kNeedTensor's payload: a tensor's name of 1 to 512 bytes.
Result<std::string_view> decode_tensor_name(std::span<const std::byte> bytes);

}  // namespace tandem::wire
