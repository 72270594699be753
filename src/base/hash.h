// SHA-256 (FIPS 180-4), the one hash that names models, tensors and answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

using Digest = std::array<uint8_t, 32>;

/// Incremental SHA-256. Not thread-safe; any number of update() calls, then one digest().
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Ends the hash; the object may only be destroyed or assigned to afterwards.
  Digest digest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest sha256(std::span<const std::byte> bytes);
Digest sha256(std::string_view text);
/// 64 lower-case hexadecimal digits.
std::string hex(const Digest& digest);
/// True and `digest` filled if `text` is exactly 64 hexadecimal digits.
bool parse_hex(std::string_view text, Digest& digest);

}  // namespace tandem
