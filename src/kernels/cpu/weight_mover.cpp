#include "kernels/cpu/weight_mover.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::kernels::cpu {
namespace {

constexpr size_t kChunkBytes = size_t{32} << 20;
constexpr size_t kStep = size_t{4} << 20;     // between two looks at the time
constexpr size_t kPiece = size_t{128} << 10;  // what a thread copies at once

size_t lines(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

bool WeightMover::place(const PackedMatrix& matrix) {
  const size_t data_bytes = lines(matrix.data.size());
  const size_t bytes = data_bytes + lines(matrix.row_scales.size() * sizeof(float));
  if (bytes > room_ - used_) {
    room_ = std::max(kChunkBytes, bytes);
    used_ = 0;
    memory_ = allocate_zeroed(room_);
    if (memory_ == nullptr) {
      exhausted_ = true;
      return false;
    }
  }
  auto* start = static_cast<uint8_t*>(memory_.get()) + used_;
  used_ += bytes;
  auto* scales = reinterpret_cast<float*>(start + data_bytes);
  std::copy_n(matrix.row_scales.data(), matrix.row_scales.size(), scales);
  data_ = Block<uint8_t>({start, matrix.data.size()}, memory_);
  row_scales_ = Block<float>({scales, matrix.row_scales.size()}, memory_);
  to_ = start;
  copied_ = 0;
  return true;
}

bool WeightMover::move(std::span<PackedMatrix> matrices, ThreadPool& pool,
                       Clock::time_point until) {
  for (; next_ < matrices.size(); ++next_) {
    PackedMatrix& matrix = matrices[next_];
    if (!matrix.mapped || matrix.on_demand != nullptr) continue;
    if (data_.size() == 0 && (Clock::now() >= until || !place(matrix))) break;
    while (copied_ < data_.size()) {
      if (Clock::now() >= until) return false;
      const size_t step = std::min(kStep, data_.size() - copied_);
      pool.split((step + kPiece - 1) / kPiece, 1, [&](uint64_t begin, uint64_t end) {
        const auto from = static_cast<size_t>(copied_ + begin * kPiece);
        const auto to =
            static_cast<size_t>(std::min<uint64_t>(copied_ + end * kPiece, copied_ + step));
        std::memcpy(to_ + from, matrix.data.data() + from, to - from);
      });
      copied_ += step;
    }
    matrix.data = std::exchange(data_, {});
    matrix.row_scales = std::exchange(row_scales_, {});
    matrix.mapped = false;
  }
  const bool done = next_ == matrices.size() || exhausted_;
  if (done) memory_.reset();
  return done;
}

}  // namespace tandem::kernels::cpu
