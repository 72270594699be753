// Short-lived threads of one owner, joined as they end or when the owner does.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <thread>
#include <utility>

namespace tandem::ring {

/// Not thread-safe: one owner. The destructor waits for all tasks.
class Tasks {
 public:
  Tasks() = default;
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;
  ~Tasks() { join(); }

  template <typename Function>
  void run(Function function) {
    reap();
    auto done = std::make_shared<std::atomic<bool>>(false);
    tasks_.push_back({std::thread([function = std::move(function), done]() mutable {
                        {
                          // What the task holds is gone before it counts as done.
                          auto body = std::move(function);
                          body();
                        }
                        *done = true;
                      }),
                      done});
  }
  /// Joins the tasks that have ended.
  void reap() {
    for (auto task = tasks_.begin(); task != tasks_.end();) {
      if (*task->done) {
        task->thread.join();
        task = tasks_.erase(task);
      } else {
        ++task;
      }
    }
  }
  void join() {
    for (auto& task : tasks_) task.thread.join();
    tasks_.clear();
  }

 private:
  struct Task {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::list<Task> tasks_;
};

}  // namespace tandem::ring
