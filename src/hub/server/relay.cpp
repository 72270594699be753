#include "hub/server/relay.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace tandem::hub {

namespace asio = boost::asio;
using std::chrono::seconds;

namespace {

constexpr auto kPartnerPatience = seconds(30);
/// Between two bytes: links between devices rest between answers. That an end is gone, the sockets'
/// own probes tell.
constexpr auto kIdle = seconds(3600);
constexpr auto kSlow = seconds(120);  // for 16 KiB to be read by the other end
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxWaitingOfCaller = 64;
constexpr size_t kMaxOfCaller = 256;

/// On the stream's own executor, whoever calls.
asio::awaitable<bool> write_there(std::shared_ptr<TlsStream> stream, std::string_view bytes) {
  auto writing = [](std::shared_ptr<TlsStream> to, std::string_view what) -> asio::awaitable<bool> {
    to->set_deadline(kSlow);
    const bool written = co_await to->write(what);
    to->set_deadline(kIdle);
    co_return written;
  };
  const bool done =
      co_await asio::co_spawn(stream->executor(), writing(stream, bytes), asio::use_awaitable);
  co_return done;
}

asio::awaitable<void> finish_there(std::shared_ptr<TlsStream> stream) {
  auto finishing = [](std::shared_ptr<TlsStream> to) -> asio::awaitable<void> {
    co_await to->finish();
  };
  co_await asio::co_spawn(stream->executor(), finishing(stream), asio::use_awaitable);
}

std::string switching() {
  Response response;
  response.status = 101;
  response.fields = {{"Connection", "Upgrade"}, {"Upgrade", "tandem-relay"}};
  return header_of(response, true);
}

}  // namespace

asio::awaitable<void> RelayDesk::carry(std::shared_ptr<TlsStream> from,
                                       std::shared_ptr<TlsStream> to, std::string held) {
  for (;;) {
    if (!held.empty()) {
      figures_.relay_bytes += held.size();
      const bool written = co_await write_there(to, held);
      if (!written) break;
      held.clear();
    }
    from->set_deadline(kIdle);
    const int count = co_await from->read(held);
    if (count < 0) break;
    if (count == 0) {
      co_await finish_there(to);
      co_return;
    }
  }
  from->close();
  TlsStream::expire(to);
}

size_t RelayDesk::waiting_of(const std::string& caller) const {
  return static_cast<size_t>(
      std::count_if(waiting_.begin(), waiting_.end(),
                    [&](const auto& entry) { return entry.second->caller == caller; }));
}

/// Counts a device's stream as long as it lives.
class RelayDesk::Counted {
 public:
  Counted(std::shared_ptr<Streams> streams, std::string caller)
      : streams_(std::move(streams)), caller_(std::move(caller)) {
    const std::lock_guard lock(streams_->mutex);
    too_many_ = ++streams_->of_caller[caller_] > kMaxOfCaller;
  }
  ~Counted() {
    const std::lock_guard lock(streams_->mutex);
    const auto found = streams_->of_caller.find(caller_);
    if (--found->second == 0) streams_->of_caller.erase(found);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  [[nodiscard]] bool too_many() const { return too_many_; }

 private:
  std::shared_ptr<Streams> streams_;
  std::string caller_;
  bool too_many_ = false;
};

asio::awaitable<void> RelayDesk::serve(std::string pair, std::string caller,
                                       std::shared_ptr<TlsStream> stream, std::string held) {
  std::shared_ptr<Side> first;
  auto side = std::make_shared<Side>();
  side->stream = stream;
  side->caller = caller;
  side->waiter = std::make_shared<Signals::Waiter>(stream->executor());
  const Counted counted(streams_, caller);
  bool full = counted.too_many();
  if (!full) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(pair);
    if (found != waiting_.end() && found->second->caller != caller) {
      first = found->second;
      first->other = stream;
      waiting_.erase(found);
    } else if (found == waiting_.end() &&
               (waiting_.size() >= kMaxWaiting || waiting_of(caller) >= kMaxWaitingOfCaller)) {
      full = true;
    } else {
      waiting_[pair] = side;
    }
  }
  if (full) {
    const std::string text = [] {
      const Response busy = too_many("too many relayed streams, of this device or of all", 10);
      return header_of(busy, false) + busy.body;
    }();
    co_await stream->write(text);
    co_return;
  }
  const std::string answer = switching();
  if (first != nullptr) {
    // Both answers go out before any relayed byte can: the first end sleeps until then.
    const bool there = co_await write_there(first->stream, answer);
    const bool here = co_await stream->write(answer);
    if (!there || !here) stream->close();
    first->waiter->woken = true;
    asio::post(first->waiter->timer.get_executor(),
               [waiter = first->waiter] { waiter->timer.cancel(); });
    ++figures_.relays_now;
    co_await carry(stream, first->stream, std::move(held));
    --figures_.relays_now;
    co_return;
  }
  stream->set_deadline(kPartnerPatience + seconds(10));
  co_await Signals::sleep(side->waiter, std::chrono::steady_clock::now() + kPartnerPatience);
  std::shared_ptr<TlsStream> other;
  {
    const std::lock_guard lock(mutex_);
    other = side->other;
    const auto found = waiting_.find(pair);
    if (other == nullptr && found != waiting_.end() && found->second == side) {
      waiting_.erase(found);
    }
  }
  if (other == nullptr) {
    const std::string text = [] {
      const Response late = refusal(408, "peer", "the other end did not come within 30 s");
      return header_of(late, false) + late.body;
    }();
    co_await stream->write(text);
    co_return;
  }
  // The sleep may have ended just before the other end came: its answers are still on their way.
  while (!side->waiter->woken) {
    side->waiter->timer.expires_after(seconds(1));
    co_await Signals::sleep(side->waiter, std::chrono::steady_clock::now() + seconds(1));
  }
  co_await carry(stream, other, std::move(held));
}

}  // namespace tandem::hub
