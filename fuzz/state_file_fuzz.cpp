// Any bytes as a conversation's state on disk: refused, or a state that would be written as these
// bytes; and what such a state holds as a state of small layers.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/local_sequence.h"
#include "model/state_file.h"

namespace {

using tandem::model::LocalSequence;
using tandem::model::StateFile;

// Two layers of attention with two heads of 8, and a delta net.
void hold(std::span<const std::byte> state) {
  static const auto backend =
      tandem::kernels::make_cpu_backend("best", std::make_shared<tandem::ThreadPool>(1));
  if (!backend.ok()) std::abort();
  tandem::kernels::DeltaShape shape;
  shape.key_heads = 1;
  shape.value_heads = 2;
  shape.key_dim = shape.value_dim = 16;
  shape.kernel = 2;
  LocalSequence sequence(nullptr, (*backend)->new_cache(2, 2, 8), 2,
                         (*backend)->new_recurrent(1, shape), 2);
  if (!sequence.read(state).ok()) {
    if (sequence.length() != 0) std::abort();
    return;
  }
  const auto again = sequence.write();
  if (!again.ok() || !std::ranges::equal(*again, state)) std::abort();
  if (!sequence.digest().ok() || !sequence.save(1).ok()) std::abort();
  for (uint32_t length = sequence.length(); length-- > sequence.floor();) {
    if (!sequence.rollback(length).ok()) std::abort();
    if (length == 0) break;
  }
}

void check(std::span<const std::byte> bytes) {
  const auto file = StateFile::parse(bytes);
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return;
  }
  if (!std::ranges::equal(file->serialize(), bytes)) std::abort();
  hold(file->state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // As they are, as a state alone, and with both hashes made right, or nothing behind them would
  // ever be reached.
  std::vector<std::byte> bytes(size);
  std::copy_n(reinterpret_cast<const std::byte*>(data), size, bytes.begin());
  check(bytes);
  hold(bytes);
  constexpr size_t kTokens = 8 + 4 + 32 + 4 + 4 + 1 + 4;
  constexpr size_t kRest = 4 + 8;  // an empty note, and the state's length
  if (size < kTokens + 32 + kRest + 32) return 0;
  uint32_t count = 0;
  std::memcpy(&count, bytes.data() + kTokens - 4, sizeof count);
  const size_t end = size - 32;
  if (count > (end - kTokens - 32 - kRest) / 4) return 0;
  const auto all = std::span<const std::byte>(bytes);
  const auto tokens = tandem::sha256(all.subspan(kTokens + 32, size_t{count} * 4));
  std::memcpy(bytes.data() + kTokens, tokens.data(), tokens.size());
  const size_t note = kTokens + 32 + size_t{count} * 4;
  const uint64_t length = end - note - kRest;
  std::memset(bytes.data() + note, 0, 4);
  std::memcpy(bytes.data() + note + 4, &length, sizeof length);
  const auto whole = tandem::sha256(all.first(end));
  std::memcpy(bytes.data() + end, whole.data(), whole.size());
  check(bytes);
  return 0;
}
