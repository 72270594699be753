// A conversation's state on disk, to go on with it in another process:
//
//   file = "TDSTATE1" contract:u32 model:32 first:u32 last:u32 weight_bits:u8 count:u32
//          tokens_sha256:32 token:u32*count note length:u64 state:byte*length sha256:32
//   note = size:u32 byte*size
//
// little-endian. `model` names the model by its content, layers are [first, last), `note` is the
// writer's own (at most 16 MiB), `state` is what
// Sequence::write() gives after the tokens, and the last hash is of everything before it. A state
// of another contract, model, layers or bits is never used: its numbers mean something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace tandem::model {

/// What a state belongs to.
struct StateIdentity {
  Digest model{};  ///< SHA-256 of the model's manifest
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;  ///< one past the last
  uint8_t weight_bits = 8;

  bool operator==(const StateIdentity&) const = default;
};

struct StateFile {
  StateIdentity identity;
  std::vector<uint32_t> tokens;  ///< whose positions are held
  std::string note;              ///< whatever the writer wants to have back
  std::vector<std::byte> state;

  [[nodiscard]] std::vector<std::byte> serialize() const;
  /// Errors: kInvalid (says what is wrong), kUnsupported (another version or contract).
  static Result<StateFile> parse(std::span<const std::byte> bytes);

  /// Writes `path` in one step: whoever reads it sees the old file or the whole new one.
  /// Error: kIo.
  [[nodiscard]] Status write(const std::filesystem::path& path) const;
  /// Errors: kNotFound, kIo, kInvalid (more than `limit` bytes, or not such a file), kUnsupported.
  static Result<StateFile> read(const std::filesystem::path& path, uint64_t limit);
};

}  // namespace tandem::model
