#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/cpu/expert_reader.h"

namespace tandem::kernels::cpu {
namespace {

// Threads, which mostly sleep: a token's experts of most models at once.
constexpr size_t kMostReaders = 8;

}  // namespace

struct ExpertReader::Work {
  struct Job {
    size_t place = 0;
    std::shared_ptr<OnDemand> expert;
  };

  std::mutex mutex;  ///< guards what follows
  std::condition_variable wanted_changed;
  std::condition_variable arrived_changed;
  std::deque<Job> wanted;
  std::vector<Arrival> arrived;
  bool stop = false;

  size_t missing = 0;                ///< not given yet; of the thread that runs passes
  std::vector<std::thread> readers;  ///< likewise

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      wanted_changed.wait(lock, [this] { return stop || !wanted.empty(); });
      if (stop) return;
      read_one(lock);
    }
  }

  // Something is wanted. The lock is not held while it is read.
  void read_one(std::unique_lock<std::mutex>& lock) {
    const Job job = std::move(wanted.front());
    wanted.pop_front();
    lock.unlock();
    Arrival arrival{job.place, job.expert->fetch()};
    lock.lock();
    arrived.push_back(std::move(arrival));
    arrived_changed.notify_one();
  }

  void start_readers(size_t count) {
    while (readers.size() < count) {
      try {
        readers.emplace_back([this] { run(); });
      } catch (const std::system_error&) {
        return;  // the system grants no more: those that are there do it, or wait() itself
      }
    }
  }
};

ExpertReader::ExpertReader() = default;

ExpertReader::~ExpertReader() {
  if (work_ == nullptr) return;
  {
    const std::lock_guard lock(work_->mutex);
    work_->stop = true;
  }
  work_->wanted_changed.notify_all();
  for (std::thread& reader : work_->readers) reader.join();
}

void ExpertReader::begin(std::span<const std::shared_ptr<OnDemand>> experts) {
  if (experts.empty()) return;
  if (work_ == nullptr) work_ = std::make_unique<Work>();
  // The system reads ahead for all of them before anybody waits for the first.
  for (const auto& expert : experts) expert->want();
  work_->start_readers(std::min(experts.size(), kMostReaders));
  work_->missing = experts.size();
  {
    const std::lock_guard lock(work_->mutex);
    for (size_t i = 0; i < experts.size(); ++i) work_->wanted.push_back({i, experts[i]});
  }
  work_->wanted_changed.notify_all();
}

std::vector<ExpertReader::Arrival> ExpertReader::wait() {
  std::vector<Arrival> arrived;
  if (work_ == nullptr || work_->missing == 0) return arrived;
  std::unique_lock lock(work_->mutex);
  if (work_->readers.empty() && work_->arrived.empty()) work_->read_one(lock);
  work_->arrived_changed.wait(lock, [this] { return !work_->arrived.empty(); });
  arrived.swap(work_->arrived);
  work_->missing -= arrived.size();
  return arrived;
}

}  // namespace tandem::kernels::cpu
