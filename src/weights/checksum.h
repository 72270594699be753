// A checksum as fast as memory: of cached weights, each time before they are used. It finds
// damage; it is not meant to withstand somebody who forges a file (docs/cache.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.h"
#include "base/thread_pool.h"

namespace tandem::weights {

/// Eight sums over 64-byte lines: with k_j(i) = first_j + i * step, lane j adds for line i of
/// 64-bit words w the product of the two halves of w_j + k_j(i), and w_(j^1), modulo 2^64. A change
/// of a single word always changes a sum. A last line that is not full counts as filled up with
/// zeros.
using LineSums = std::array<uint64_t, 8>;
LineSums line_sums(std::span<const std::byte> bytes);

/// The same by one way to compute it, for tests: "plain", or "avx2"; plain if there is none such.
LineSums line_sums_by(const char* isa, std::span<const std::byte> bytes);

/// Bytes whose sums are taken together, by one thread.
inline constexpr uint64_t kChecksumBlock = uint64_t{1} << 20;

/// SHA-256 of the length and of the sums of each block of kChecksumBlock bytes, in order.
Digest checksum(std::span<const std::byte> bytes, ThreadPool& pool);
/// The same from the sums of the blocks of `length` bytes.
Digest checksum(uint64_t length, std::span<const LineSums> blocks);

}  // namespace tandem::weights
