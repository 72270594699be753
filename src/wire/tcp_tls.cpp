// The part of a connection that speaks TLS.
//
// Records are read one at a time, and a frame ends with a record, so that nothing that belongs to
// the next frame waits decrypted where no poll() would see it.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "wire/tcp.h"

namespace tandem::wire {
namespace {

/// What a record buffer holds for the longest.
constexpr size_t kRecordBytes = TlsChannel::kRecordHeader + TlsChannel::kMostRecord;

}  // namespace

Connection::Connection(Socket socket, std::unique_ptr<TlsChannel> channel)
    : socket_(std::move(socket)), channel_(std::move(channel)) {
  if (channel_ != nullptr) record_.resize(kRecordBytes);
}

Connection::~Connection() {
  if (channel_ == nullptr || !channel_->open()) return;
  // An end that is not said looks like one that was cut off. Best effort: nobody waits here.
  const std::lock_guard lock(mutex_);
  channel_->end();
  (void)send_channel().ok();
}

Result<bool> Connection::take_record(bool& ended) {
  size_t wanted = TlsChannel::kRecordHeader;
  for (;;) {
    if (record_have_ >= TlsChannel::kRecordHeader) {
      const auto header = std::span(record_).first<TlsChannel::kRecordHeader>();
      const auto body = TlsChannel::body_bytes(header);
      if (!body.ok() && channel_->open()) {
        return Error{ErrorKind::kPeer, "a TLS record was damaged on its way"};
      }
      if (!body.ok()) {
        // "TNDM" and the type of a hello.
        plain_peer_ = std::memcmp(header.data(), "TNDM\1", header.size()) == 0;
        return body.error();
      }
      wanted = TlsChannel::kRecordHeader + *body;
      if (record_have_ == wanted) return true;
    }
    TANDEM_ASSIGN(
        const ssize_t got,
        receive_plain(std::span(record_).subspan(record_have_, wanted - record_have_), {}));
    if (got < 0) return false;
    if (got == 0) {
      ended = true;
      return false;
    }
    record_have_ += static_cast<size_t>(got);
  }
}

Result<ssize_t> Connection::receive_sealed(std::span<std::byte> first,
                                           std::span<std::byte> second) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (channel_->open()) {
        TANDEM_ASSIGN(size_t got, channel_->read(first));
        if (got == first.size() && !second.empty()) {
          TANDEM_ASSIGN(const size_t more, channel_->read(second));
          got += more;
        }
        if (got > 0) return static_cast<ssize_t>(got);
        if (channel_->ended()) return ssize_t{0};
      }
    }
    bool ended = false;
    TANDEM_ASSIGN(const bool whole, take_record(ended));
    if (ended) {
      return Error{ErrorKind::kPeer, channel_->open()
                                         ? "the connection was cut off"
                                         : "the connection was closed before both sides had proved "
                                           "the room's key"};
    }
    if (!whole) return ssize_t{-1};
    const std::lock_guard lock(mutex_);
    const Status status = channel_->receive(std::span(record_).first(record_have_));
    record_have_ = 0;
    // An alert tells the other side, if there is one.
    const Status sent = send_channel();
    if (!status.ok()) return status.error();
    if (!sent.ok()) return sent.error();
  }
}

Status Connection::send_channel() {
  auto rest = channel_->outgoing();
  while (!rest.empty() && sent_ == queue_.size()) {
    const ssize_t got = ::send(socket_.fd(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got >= 0) {
      rest = rest.subspan(static_cast<size_t>(got));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return Error{ErrorKind::kPeer, std::string("the connection broke: ") + std::strerror(errno)};
    }
  }  // NOLINT(concurrency-mt-unsafe)
  if (!rest.empty()) {
    if (sent_ == queue_.size()) {
      queue_.clear();
      sent_ = 0;
    }
    queue_.insert(queue_.end(), rest.begin(), rest.end());
    pending_.store(true, std::memory_order_release);
  }
  channel_->take();
  return {};
}

Status Connection::encrypt(std::span<const std::byte> head, std::span<const std::byte> first,
                           std::span<const std::byte> second) {
  if (!channel_->open()) {
    return Error{ErrorKind::kPeer, "the other side has not proved the room's key"};
  }
  // One record for what fits into one: header and payload together.
  plain_.clear();
  for (auto part : {head, first, second}) {
    while (!part.empty()) {
      const size_t count = std::min(part.size(), TlsChannel::kMostPlain - plain_.size());
      plain_.insert(plain_.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
      part = part.subspan(count);
      if (plain_.size() < TlsChannel::kMostPlain) continue;
      TANDEM_TRY(channel_->write(plain_));
      plain_.clear();
    }
  }
  if (!plain_.empty()) TANDEM_TRY(channel_->write(plain_));
  return send_channel();
}

Status Connection::secure_until(Clock::time_point deadline) {
  if (channel_ == nullptr) return {};
  {
    const std::lock_guard lock(mutex_);
    TANDEM_TRY(channel_->receive({}));
    TANDEM_TRY(send_channel());
  }
  while (!channel_->open()) {
    bool ended = false;
    const auto whole = take_record(ended);
    if (ended || (!whole.ok() && whole.error().kind == ErrorKind::kPeer)) {
      return Error{
          ErrorKind::kPeer,
          "closed the connection in the middle of the handshake: it has another room's key, "
          "or none"};
    }
    if (!whole.ok()) return whole.error();
    if (!*whole) {
      if (!wait_for(fd(), false, deadline)) {
        return Error{ErrorKind::kPeer, "no answer to the TLS handshake in time"};
      }
      continue;
    }
    const std::lock_guard lock(mutex_);
    const Status status = channel_->receive(std::span(record_).first(record_have_));
    record_have_ = 0;
    const Status sent = send_channel();
    if (!status.ok()) return status.error();
    if (!sent.ok()) return sent.error();
  }
  while (pending()) {
    if (!wait_for(fd(), true, deadline)) return Error{ErrorKind::kPeer, "the peer does not read"};
    TANDEM_TRY(flush());
  }
  return {};
}

bool Connection::drop_channel_for_plain_peer() {
  if (!plain_peer_) return false;
  channel_.reset();
  return true;
}

}  // namespace tandem::wire
