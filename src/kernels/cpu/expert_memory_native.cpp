#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/cpu/expert_memory.h"

namespace tandem::kernels::cpu {
namespace {

// Passes without a use after which pages may have gone back to the system.
constexpr uint64_t kFresh = 64;
// Passes after which what was used before counts half.
constexpr uint64_t kHalf = 1024;
// Bytes that are handed to the thread at once.
constexpr uint64_t kMostQueued = uint64_t{64} << 20;

// An expert that takes another one's place must be used this much more, or copies go to and fro.
bool worth_it(uint32_t uses, uint32_t victims) {
  return uses > victims + victims / 2 + 8;
}

struct Copy {
  size_t expert = 0;
  std::vector<PackedMatrix> matrices;
  bool ok = false;
};

bool copy_matrix(const PackedMatrix& from, PackedMatrix& to) {
  to = from.share();
  to.data = Block<uint8_t>(from.data.size());
  to.row_scales = Block<float>(from.row_scales.size());
  if (to.data.size() == 0 || to.row_scales.size() == 0) return false;
  std::memcpy(to.data.data(), from.data.data(), from.data.size());
  std::copy_n(from.row_scales.data(), from.row_scales.size(), to.row_scales.data());
  to.mapped = false;
  return true;
}

}  // namespace

struct ExpertMemory::Work {
  std::mutex mutex;  ///< guards what follows
  std::condition_variable changed;
  std::deque<Copy> wanted;  ///< holds the mapped matrices
  std::vector<Copy> ready;
  size_t under_way = 0;
  bool stop = false;
  std::thread thread;

  void run() {
#if defined(__linux__)
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);  // this thread's alone
#endif
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stop || !wanted.empty(); });
      if (stop) return;
      const Copy job = std::move(wanted.front());
      wanted.pop_front();
      ++under_way;
      lock.unlock();
      Copy made;
      made.expert = job.expert;
      made.ok = job.matrices[0].on_demand->fetch().ok();
      made.matrices.resize(job.matrices.size());
      for (size_t i = 0; i < made.matrices.size() && made.ok; ++i) {
        made.ok = copy_matrix(job.matrices[i], made.matrices[i]);
      }
      lock.lock();
      --under_way;
      ready.push_back(std::move(made));
    }
  }
};

ExpertMemory::ExpertMemory() = default;

ExpertMemory::~ExpertMemory() {
  if (work_ == nullptr) return;
  {
    const std::lock_guard lock(work_->mutex);
    work_->stop = true;
  }
  work_->changed.notify_all();
  work_->thread.join();
}

bool ExpertMemory::use(std::span<const uint32_t> ids, std::span<const PackedMatrix> matrices) {
  if (expert_of_.size() < matrices.size()) expert_of_.resize(matrices.size());
  uint32_t& place = expert_of_[ids[0]];
  if (place == 0) {
    Expert& expert = experts_.emplace_back();
    expert.ids.assign(ids.begin(), ids.end());
    for (const uint32_t id : ids) {
      expert.mapped.push_back(matrices[id].share());
      expert.bytes += expert.mapped.back().bytes();
    }
    place = static_cast<uint32_t>(experts_.size());
  }
  Expert& expert = experts_[place - 1];
  const bool fresh = expert.uses != 0 && expert.last_pass + kFresh >= pass_;
  ++expert.uses;
  expert.last_pass = pass_;
  return expert.state != Expert::State::kCopied && !fresh;
}

void ExpertMemory::begin_pass(std::span<PackedMatrix> matrices) {
  ++pass_;
  if (experts_.empty()) return;
  if (pass_ % kHalf == 0) {
    for (Expert& expert : experts_) expert.uses /= 2;
  }
  install(matrices);
  choose(matrices);
}

void ExpertMemory::install(std::span<PackedMatrix> matrices) {
  if (work_ == nullptr) return;
  std::vector<Copy> ready;
  {
    const std::lock_guard lock(work_->mutex);
    ready.swap(work_->ready);
  }
  for (Copy& copy : ready) {
    Expert& expert = experts_[copy.expert];
    if (!copy.ok) {
      // No memory, or damaged: whoever needs it is told then.
      copied_bytes_ -= expert.bytes;
      expert.state = Expert::State::kMapped;
      continue;
    }
    for (size_t i = 0; i < expert.ids.size(); ++i) {
      matrices[expert.ids[i]] = std::move(copy.matrices[i]);
    }
    expert.state = Expert::State::kCopied;
    expert.mapped[0].on_demand->drop();
  }
}

void ExpertMemory::evict(Expert& expert, std::span<PackedMatrix> matrices) {
  for (size_t i = 0; i < expert.ids.size(); ++i) {
    matrices[expert.ids[i]] = expert.mapped[i].share();
  }
  expert.state = Expert::State::kMapped;
  expert.last_pass = 0;
  copied_bytes_ -= expert.bytes;
}

void ExpertMemory::choose(std::span<PackedMatrix> matrices) {
  if (limit_ == 0) return;
  if (work_ != nullptr) {
    const std::lock_guard lock(work_->mutex);
    if (!work_->wanted.empty() || work_->under_way != 0 || !work_->ready.empty()) return;
  }
  // The most used of those that are not copied, and the least used of those that are.
  std::vector<size_t> outside;
  std::vector<size_t> inside;
  for (size_t i = 0; i < experts_.size(); ++i) {
    (experts_[i].state == Expert::State::kCopied ? inside : outside).push_back(i);
  }
  const auto uses = [&](size_t i) { return experts_[i].uses; };
  // Once memory is full of the right ones, passes find so without sorting thousands.
  const auto best = std::max_element(outside.begin(), outside.end(),
                                     [&](size_t a, size_t b) { return uses(a) < uses(b); });
  if (best == outside.end()) return;
  if (copied_bytes_ + experts_[*best].bytes > limit_) {
    const auto least = std::min_element(inside.begin(), inside.end(),
                                        [&](size_t a, size_t b) { return uses(a) < uses(b); });
    if (least == inside.end() || !worth_it(uses(*best), uses(*least))) return;
  }
  std::stable_sort(outside.begin(), outside.end(),
                   [&](size_t a, size_t b) { return uses(a) > uses(b); });
  std::stable_sort(inside.begin(), inside.end(),
                   [&](size_t a, size_t b) { return uses(a) < uses(b); });
  std::vector<Copy> jobs;
  uint64_t queued = 0;
  auto victim = inside.begin();
  for (const size_t index : outside) {
    Expert& expert = experts_[index];
    if (queued >= kMostQueued) break;
    while (copied_bytes_ + expert.bytes > limit_ && victim != inside.end() &&
           worth_it(expert.uses, uses(*victim))) {
      evict(experts_[*victim++], matrices);
    }
    if (copied_bytes_ + expert.bytes > limit_) break;
    Copy job;
    job.expert = index;
    for (const PackedMatrix& matrix : expert.mapped) job.matrices.push_back(matrix.share());
    jobs.push_back(std::move(job));
    expert.state = Expert::State::kCopying;
    copied_bytes_ += expert.bytes;
    queued += expert.bytes;
  }
  if (jobs.empty()) return;
  if (work_ == nullptr) {
    work_ = std::make_unique<Work>();
    try {
      work_->thread = std::thread([work = work_.get()] { work->run(); });
    } catch (const std::system_error&) {
      // The system grants no more threads: experts stay where they are.
      work_.reset();
      limit_ = 0;
      return;
    }
  }
  const std::lock_guard lock(work_->mutex);
  for (Copy& job : jobs) work_->wanted.push_back(std::move(job));
  work_->changed.notify_all();
}

}  // namespace tandem::kernels::cpu
