#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/cpu/weight_mover.h"

namespace tandem::kernels::cpu {
namespace {

// Of huge pages, which small matrices share.
constexpr size_t kChunkBytes = size_t{32} << 20;
// Copied and not taken yet: the most that is in memory twice.
constexpr size_t kMostWaiting = size_t{32} << 20;
constexpr size_t kPiece = size_t{1} << 20;  // between two looks at whether to stop

struct Source {
  size_t index;
  PackedMatrix matrix;
};

struct Copy {
  size_t index = 0;
  Block<uint8_t> data;
  Block<float> row_scales;
  [[nodiscard]] size_t bytes() const { return data.size() + row_scales.size() * sizeof(float); }
};

}  // namespace

struct WeightMover::Work {
  std::vector<Source> sources;  ///< the next one last; the thread's until it ends
  std::shared_ptr<void> chunk;
  size_t used = 0;
  size_t room = 0;

  std::mutex mutex;  ///< guards what follows
  std::condition_variable taken;
  std::vector<Copy> ready;
  size_t waiting = 0;
  bool stop = false;
  bool ended = false;
  std::thread thread;

  void run();
  bool copy(const PackedMatrix& matrix, Copy& to);
  bool stopped();
};

bool WeightMover::Work::stopped() {
  const std::lock_guard lock(mutex);
  return stop;
}

bool WeightMover::Work::copy(const PackedMatrix& matrix, Copy& to) {
  const size_t data_bytes = (matrix.data.size() + 63) / 64 * 64;
  const size_t bytes = data_bytes + (matrix.row_scales.size() * sizeof(float) + 63) / 64 * 64;
  if (bytes > room - used) {
    room = std::max(kChunkBytes, bytes);
    used = 0;
    chunk = allocate_zeroed(room);
    if (chunk == nullptr) {
      room = 0;
      return false;
    }
  }
  auto* place = static_cast<uint8_t*>(chunk.get()) + used;
  used += bytes;
  for (size_t from = 0; from < matrix.data.size(); from += kPiece) {
    if (stopped()) return false;
    std::memcpy(place + from, matrix.data.data() + from,
                std::min(kPiece, matrix.data.size() - from));
  }
  auto* scales = reinterpret_cast<float*>(place + data_bytes);
  std::copy_n(matrix.row_scales.data(), matrix.row_scales.size(), scales);
  to.data = Block<uint8_t>({place, matrix.data.size()}, chunk);
  to.row_scales = Block<float>({scales, matrix.row_scales.size()}, chunk);
  return true;
}

void WeightMover::Work::run() {
#if defined(__linux__)
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);  // this thread's alone
#endif
  while (!sources.empty()) {
    {
      std::unique_lock lock(mutex);
      taken.wait(lock, [this] { return stop || waiting < kMostWaiting; });
      if (stop) break;
    }
    Copy copied;
    copied.index = sources.back().index;
    if (!copy(sources.back().matrix, copied)) break;
    sources.pop_back();
    const std::lock_guard lock(mutex);
    waiting += copied.bytes();
    ready.push_back(std::move(copied));
  }
  sources.clear();
  chunk.reset();
  const std::lock_guard lock(mutex);
  ended = true;
}

WeightMover::WeightMover(std::span<const PackedMatrix> matrices) {
  auto work = std::make_unique<Work>();
  for (size_t i = matrices.size(); i-- > 0;) {
    if (matrices[i].mapped && matrices[i].on_demand == nullptr)
      work->sources.push_back({i, matrices[i].share()});
  }
  if (work->sources.empty()) return;
  try {
    work->thread = std::thread([raw = work.get()] { raw->run(); });
  } catch (const std::system_error&) {
    return;  // the system grants no more threads
  }
  work_ = std::move(work);
}

WeightMover::~WeightMover() {
  if (work_ == nullptr) return;
  {
    const std::lock_guard lock(work_->mutex);
    work_->stop = true;
  }
  work_->taken.notify_all();
  work_->thread.join();
}

bool WeightMover::take(std::span<PackedMatrix> matrices) {
  if (work_ == nullptr) return true;
  std::vector<Copy> copies;
  bool ended = false;
  {
    const std::lock_guard lock(work_->mutex);
    copies.swap(work_->ready);
    work_->waiting = 0;
    ended = work_->ended;
  }
  for (Copy& copied : copies) {
    PackedMatrix& matrix = matrices[copied.index];
    matrix.data = std::move(copied.data);
    matrix.row_scales = std::move(copied.row_scales);
    matrix.mapped = false;
  }
  work_->taken.notify_all();
  return ended;
}

}  // namespace tandem::kernels::cpu
