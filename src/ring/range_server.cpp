#include "ring/range_server.h"

#include <algorithm>
#include <thread>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdle = 60s;
constexpr auto kTaken = 30s;  // in which a peer has to take a MiB
constexpr auto kNap = 50ms;
constexpr uint32_t kMaxRequest = 1024;

Status refuse(wire::Connection& connection, const Error& error) {
  return connection.send_until(wire::Clock::now() + kTaken, {.type = wire::Type::kRefusal},
                               wire::Refusal{error.kind, error.message}.encode());
}

}  // namespace

// With a rate, frames are so small that all readers get one within a few seconds.
RangeServer::RangeServer(ShareOptions options)
    : options_(std::move(options)),
      most_readers_(options_.bytes_per_second == 0
                        ? kMostReaders
                        : static_cast<size_t>(std::clamp<uint64_t>(
                              options_.bytes_per_second / kLeastRate, 1, kMostReaders))),
      part_(options_.bytes_per_second == 0
                ? wire::kMaxChunkBytes
                : static_cast<size_t>(std::clamp<uint64_t>(options_.bytes_per_second / 16, 4096,
                                                           wire::kMaxChunkBytes))) {}

Status RangeServer::may_take(const wire::Connection& connection) {
  if (!options_.give || connection.channel() == nullptr) {
    return unsupported("this worker shares no weights");
  }
  const std::lock_guard lock(mutex_);
  const auto& peer = connection.channel()->peer();
  const auto own = std::count_if(open_.begin(), open_.end(),
                                 [&](const auto& one) { return one->channel()->peer() == peer; });
  if (open_.size() >= most_readers_ || static_cast<size_t>(own) >= kMostOfOne) {
    return Error{ErrorKind::kMemory, "this worker gives weights to " +
                                         std::to_string(open_.size()) + " connections already, " +
                                         std::to_string(own) + " of them from this device"};
  }
  return {};
}

void RangeServer::take(std::unique_ptr<wire::Connection> connection, wire::Bytes welcome) {
  std::shared_ptr<wire::Connection> shared = std::move(connection);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    open_.push_back(shared);
  }
  tasks_.run([this, shared, welcome = std::move(welcome)] {
    serve(*shared, welcome);
    const std::lock_guard lock(mutex_);
    open_.remove(shared);
  });
}

void RangeServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& one : open_) one->shutdown();
  }
  tasks_.join();
}

Status RangeServer::admitted(const wire::Connection& connection) const {
  return options_.admit ? options_.admit(connection.channel()->peer()) : Status();
}

void RangeServer::serve(wire::Connection& connection, const wire::Bytes& welcome) {
  if (const Status let = admitted(connection); !let.ok()) {
    (void)refuse(connection, let.error()).ok();
    return;
  }
  const auto deadline = wire::Clock::now() + kTaken;
  if (!connection.send_until(deadline, {.type = wire::Type::kWelcome}, welcome).ok()) return;
  while (!stopping_ && answer(connection).ok()) {
  }
}

Status RangeServer::answer(wire::Connection& connection) {
  TANDEM_ASSIGN(const wire::Header header,
                connection.receive_until(wire::Clock::now() + kIdle, kMaxRequest));
  if (header.type != wire::Type::kNeedRange) {
    const Error wrong =
        invalid("a " + std::string(wire::name(header.type)) + " frame, expected need-range");
    if (header.type != wire::Type::kBye) (void)refuse(connection, wrong).ok();
    return wrong;
  }
  const auto range = wire::NeedRange::decode(connection.payload());
  if (!range.ok()) {
    (void)refuse(connection, range.error()).ok();
    return range.error();
  }
  if (Status let = admitted(connection); !let.ok()) {
    (void)refuse(connection, let.error()).ok();
    return let;
  }
  // At most kMaxRangeBytes: decode() has checked that.
  std::vector<std::byte> bytes(range->length);
  if (const Status given = options_.give(*range, bytes); !given.ok()) {
    return refuse(connection, given.error());
  }
  for (std::span<const std::byte> rest = bytes; !rest.empty();) {
    const auto part = rest.first(std::min(rest.size(), part_));
    if (!wait_for_turn(part.size())) return Error{ErrorKind::kCancelled, "stopping"};
    TANDEM_TRY(connection.send_until(wire::Clock::now() + kTaken,
                                     {.type = wire::Type::kTensorChunk}, part));
    bytes_ += part.size();
    rest = rest.subspan(part.size());
  }
  return {};
}

bool RangeServer::wait_for_turn(uint64_t count) {
  if (options_.bytes_per_second == 0) return !stopping_;
  wire::Clock::time_point turn;
  {
    const std::lock_guard lock(mutex_);
    turn = std::max(free_at_, wire::Clock::now());
    const std::chrono::duration<double> time(static_cast<double>(count) /
                                             static_cast<double>(options_.bytes_per_second));
    free_at_ = turn + std::chrono::duration_cast<wire::Clock::duration>(time);
  }
  while (!stopping_ && wire::Clock::now() < turn) {
    std::this_thread::sleep_for(std::min<wire::Clock::duration>(kNap, turn - wire::Clock::now()));
  }
  return !stopping_;
}

}  // namespace tandem::ring
