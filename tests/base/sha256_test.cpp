// The hash of WebAssembly builds against OpenSSL's, at every length around a block and however the
// bytes are cut.
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/hash.h"

namespace tandem {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * i * 7 + i);
  return bytes;
}

TEST(PortableSha256, EqualsTheLibrarysAtEveryLength) {
  for (size_t count = 0; count <= 300; ++count) {
    const auto bytes = some_bytes(count);
    PortableSha256 hash;
    hash.update(bytes);
    ASSERT_EQ(hash.finish(), sha256(bytes)) << count << " bytes";
  }
}

TEST(PortableSha256, DoesNotDependOnPieces) {
  const auto bytes = some_bytes(1000);
  const Digest wanted = sha256(bytes);
  for (size_t piece = 1; piece < 200; ++piece) {
    PortableSha256 hash;
    for (size_t i = 0; i < bytes.size(); i += piece) {
      hash.update(std::span(bytes).subspan(i, std::min(piece, bytes.size() - i)));
    }
    ASSERT_EQ(hash.finish(), wanted) << "pieces of " << piece;
  }
}

}  // namespace
}  // namespace tandem
