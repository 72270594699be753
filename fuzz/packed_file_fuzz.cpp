// Any bytes as a file of cached weights: refused, or a header whose matrices lie within the file,
// one behind the other, and which would be written as these bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "weights/packed_file.h"

namespace {

using tandem::weights::PackedHeader;

void check(std::span<const std::byte> bytes, uint64_t file_bytes) {
  const auto header = PackedHeader::parse(bytes, file_bytes);
  if (!header.ok()) {
    if (header.error().message.empty()) std::abort();
    return;
  }
  const auto again = header->serialize();
  if (again.size() > bytes.size() || !std::ranges::equal(again, bytes.first(again.size()))) {
    std::abort();
  }
  uint64_t end = header->data_offset();
  if (end < again.size()) std::abort();
  for (const PackedHeader::Place& place : header->places()) {
    if (place.weights < end || place.weights % 64 != 0 || place.scales % 64 != 0) std::abort();
    if (place.weight_bytes == 0 || place.scale_bytes == 0) std::abort();
    if (place.scales < place.weights + place.weight_bytes) std::abort();
    end = place.scales + place.scale_bytes;
    if (end > file_bytes) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The file's size first, then its bytes; once as they are, once with the hash made right, or
  // nothing behind it would ever be reached.
  uint64_t file_bytes = 0;
  if (size < sizeof file_bytes) return 0;
  std::memcpy(&file_bytes, data, sizeof file_bytes);
  std::vector<std::byte> bytes(size - sizeof file_bytes);
  std::copy_n(reinterpret_cast<const std::byte*>(data) + sizeof file_bytes, bytes.size(),
              bytes.begin());
  check(bytes, file_bytes);
  if (bytes.size() < 116) return 0;
  uint32_t count = 0;
  std::memcpy(&count, bytes.data() + 80, sizeof count);
  const uint64_t length = 84 + 9 * uint64_t{count};
  if (length + 32 > bytes.size()) return 0;
  const auto digest = tandem::sha256(std::span<const std::byte>(bytes).first(length));
  std::memcpy(bytes.data() + length, digest.data(), digest.size());
  check(bytes, file_bytes);
  // And with the size that the header implies.
  for (uint64_t guess = 0; guess < 2; ++guess) {
    const auto parsed = PackedHeader::parse(bytes, file_bytes);
    if (parsed.ok() || guess == 1) break;
    const std::string& message = parsed.error().message;
    if (message.rfind("expected ", 0) == 0) file_bytes = std::strtoull(&message[9], nullptr, 10);
    check(bytes, file_bytes);
  }
  return 0;
}
