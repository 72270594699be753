#include "hub/server/signals.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace tandem::hub {

namespace asio = boost::asio;

Signals::Registration::Registration(Signals& signals, std::vector<std::string> subjects,
                                    std::shared_ptr<Waiter> waiter)
    : signals_(signals), subjects_(std::move(subjects)), waiter_(std::move(waiter)) {
  const std::lock_guard lock(signals_.mutex_);
  for (const auto& subject : subjects_) signals_.waiters_[subject].insert(waiter_);
}

Signals::Registration::~Registration() {
  const std::lock_guard lock(signals_.mutex_);
  for (const auto& subject : subjects_) {
    const auto found = signals_.waiters_.find(subject);
    if (found == signals_.waiters_.end()) continue;
    found->second.erase(waiter_);
    if (found->second.empty()) signals_.waiters_.erase(found);
  }
}

void Signals::wake(const std::shared_ptr<Waiter>& waiter) {
  if (waiter->woken.exchange(true)) return;
  // On the sleeper's own strand: either it has not looked at `woken` yet, or its timer is set.
  asio::post(waiter->timer.get_executor(), [waiter] { waiter->timer.cancel(); });
}

void Signals::notify(const std::string& subject) {
  const std::lock_guard lock(mutex_);
  if (subject.empty()) {
    for (const auto& [name, waiters] : waiters_) {
      for (const auto& waiter : waiters) wake(waiter);
    }
    return;
  }
  const auto found = waiters_.find(subject);
  if (found == waiters_.end()) return;
  for (const auto& waiter : found->second) wake(waiter);
}

asio::awaitable<void> Signals::sleep(std::shared_ptr<Waiter> waiter,
                                     std::chrono::steady_clock::time_point deadline) {
  if (waiter->woken) co_return;
  waiter->timer.expires_at(deadline);
  co_await waiter->timer.async_wait(asio::as_tuple(asio::use_awaitable));
}

size_t Signals::waiting() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [name, waiters] : waiters_) sum += waiters.size();
  return sum;
}

}  // namespace tandem::hub
