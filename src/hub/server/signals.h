// Who waits for what: coroutines that sleep until a subject changes.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tandem::hub {

class Signals {
 public:
  /// One sleeper. Register it before the state is looked at: a change in between is then not
  /// missed.
  struct Waiter {
    explicit Waiter(const boost::asio::any_io_executor& executor) : timer(executor) {}
    boost::asio::steady_timer timer;
    std::atomic<bool> woken{false};
  };
  /// Keeps a waiter registered under its subjects.
  class Registration {
   public:
    Registration(Signals& signals, std::vector<std::string> subjects,
                 std::shared_ptr<Waiter> waiter);
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    Signals& signals_;
    std::vector<std::string> subjects_;
    std::shared_ptr<Waiter> waiter_;
  };

  /// Wakes those who wait for `subject`, all if it is empty. Any thread.
  void notify(const std::string& subject);
  /// Sleeps until the waiter is woken or the deadline passes. On the waiter's own executor.
  static boost::asio::awaitable<void> sleep(std::shared_ptr<Waiter> waiter,
                                            std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] size_t waiting() const;

 private:
  static void wake(const std::shared_ptr<Waiter>& waiter);
  mutable std::mutex mutex_;  ///< guards waiters_
  std::unordered_map<std::string, std::unordered_set<std::shared_ptr<Waiter>>> waiters_;
};

}  // namespace tandem::hub
