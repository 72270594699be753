#include "wire/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace tandem::wire {
namespace {

std::string system_error(int error) {
  return std::strerror(error);
}  // NOLINT(concurrency-mt-unsafe)

void set_option(int fd, int level, int option, int value) {
  // Options only tune; a system that lacks one still carries frames.
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer whose machine vanished without a word is noticed after a minute.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60000);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return Error{ErrorKind::kNotFound,
                 "no such address " + address.text() + ": " + ::gai_strerror(error)};
  }
  return AddressList(found, &::freeaddrinfo);
}

Address address_of(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return {text, ntohs(in.sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    return {text, ntohs(in.sin6_port)};
  }
  return {text, 0};
}

Error closed() {
  return {ErrorKind::kPeer, "the connection closed"};
}

Error damaged() {
  return {ErrorKind::kPeer,
          "a frame was damaged on its way: its checksum is not that of its bytes"};
}

bool looks_like_frame(std::span<const std::byte> head) {
  uint32_t magic = 0;
  std::memcpy(&magic, head.data(), sizeof magic);
  return magic == kMagic;
}

}  // namespace

std::string Address::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Address> parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  auto bad = [&] {
    return invalid("bad address '" + std::string(text.substr(0, 300)) + "', expected HOST:PORT");
  };
  if (colon == std::string_view::npos || text.size() > 300) return bad();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad();
  }
  Address address{std::string(host), 0};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (host.empty() || digits.empty() || error != std::errc{} ||
      end != digits.data() + digits.size() ||
      host.find_first_of(std::string_view("\0[]", 3)) != std::string_view::npos) {
    return bad();
  }
  return address;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000));
}

bool wait_for(int fd, bool write, Clock::time_point deadline) {
  pollfd entry{fd, static_cast<short>(write ? POLLOUT : POLLIN), 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<Socket> connect(const Address& address, std::chrono::milliseconds timeout,
                       const std::atomic<bool>* cancel) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  const auto deadline = Clock::now() + timeout;
  const auto writable = [&](int fd) {
    if (cancel == nullptr) return wait_for(fd, true, deadline);
    while (!*cancel && Clock::now() < deadline) {
      if (wait_for(fd, true, std::min(deadline, Clock::now() + kLook))) return true;
    }
    return false;
  };
  TANDEM_ASSIGN(const AddressList list, resolve(address, false));
  int error = EHOSTUNREACH;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    Socket socket(::socket(info->ai_family, info->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
      error = errno;
      continue;
    }
    tune(socket.fd());
    error = ::connect(socket.fd(), info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (!writable(socket.fd())) {
        if (cancel != nullptr && *cancel) return Error{ErrorKind::kCancelled, "stopped"};
        error = ETIMEDOUT;
        continue;
      }
      socklen_t length = sizeof error;
      ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return socket;
  }
  return Error{ErrorKind::kPeer, "can't connect to " + address.text() + ": " + system_error(error)};
}

Result<Socket> dial_tcp(const std::string& address, std::chrono::milliseconds timeout) {
  TANDEM_ASSIGN(const Address parsed, parse_address(address));
  return connect(parsed, timeout);
}

Result<Listener> Listener::open(const Address& address) {
  TANDEM_ASSIGN(const AddressList list, resolve(address, true));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    Listener listener;
    listener.socket_ =
        Socket(::socket(info->ai_family, info->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int fd = listener.socket_.fd();
    if (fd < 0) {
      error = errno;
      continue;
    }
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(fd, info->ai_addr, info->ai_addrlen) != 0 || ::listen(fd, 512) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length);
    listener.address_ = {address.host, address_of(bound).port};
    return listener;
  }
  return Error{ErrorKind::kIo, "can't listen on " + address.text() + ": " + system_error(error)};
}

Result<std::optional<Socket>> Listener::accept() {
  for (;;) {
    Socket client(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) {
      tune(client.fd());
      return std::optional<Socket>(std::move(client));
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return std::optional<Socket>();
    if (error == EINTR || error == ECONNABORTED || error == EPROTO) continue;
    return Error{ErrorKind::kIo, "can't accept a connection: " + system_error(error)};
  }
}

Wake::Wake() : socket_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Wake::wake() const {
  const uint64_t one = 1;
  // Full means that a wake is already there.
  [[maybe_unused]] const ssize_t written = ::write(socket_.fd(), &one, sizeof one);
}

void Wake::clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(socket_.fd(), &count, sizeof count);
}

Connection::Place Connection::to_payload(const Header& header) {
  if (payload_.capacity() > (64u << 10) && header.length < payload_.capacity() / 4) {
    payload_ = {};  // a large message's memory is not kept for the small ones after it
  }
  payload_.resize(header.length);
  return {std::span(payload_), {}};
}

Result<ssize_t> Connection::receive_plain(std::span<std::byte> first, std::span<std::byte> second) {
  std::array<iovec, 2> parts{iovec{first.data(), first.size()},
                             iovec{second.data(), second.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = second.empty() ? 1 : 2;
  for (;;) {
    const ssize_t got = ::recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
    if (got >= 0) {
      bytes_in_.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
      return got;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return ssize_t{-1};
    if (errno != EINTR) {
      return Error{ErrorKind::kPeer, "the connection broke: " + system_error(errno)};
    }
  }
}

bool Connection::readable() const {
  pollfd entry{fd(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

Result<ssize_t> Connection::receive(std::span<std::byte> first, std::span<std::byte> second) {
  return channel_ == nullptr ? receive_plain(first, second) : receive_sealed(first, second);
}

Result<Connection::Step> Connection::read(const Placer& placer) {
  while (have_ < kHeaderBytes) {
    TANDEM_ASSIGN(const ssize_t got, receive(std::span(head_).subspan(have_), {}));
    if (got < 0) return Step::kNothing;
    if (got == 0) {
      if (have_ == 0) return Step::kClosed;
      return closed().in("in the middle of a frame");
    }
    have_ += static_cast<size_t>(got);
    if (have_ < kHeaderBytes) continue;
    // What does not even begin like a frame is no damaged one, but somebody else.
    const bool first = !known_;
    if (channel_ == nullptr && !intact_header(head_) && (!first || looks_like_frame(head_))) {
      return damaged();
    }
    TANDEM_ASSIGN(header_, decode_header(head_));
    known_ = true;
    TANDEM_ASSIGN(place_, placer(header_));
  }
  const size_t total = kHeaderBytes + header_.length;
  while (have_ < total) {
    const size_t done = have_ - kHeaderBytes;
    std::span<std::byte> first;
    std::span<std::byte> second = place_[1];
    if (done < place_[0].size()) {
      first = place_[0].subspan(done);
    } else {
      first = second.subspan(done - place_[0].size());
      second = {};
    }
    TANDEM_ASSIGN(const ssize_t got, receive(first, second));
    if (got < 0) return Step::kNothing;
    if (got == 0) return closed().in("in the middle of a frame");
    have_ += static_cast<size_t>(got);
  }
  have_ = 0;
  if (channel_ == nullptr) {
    const size_t first = std::min<size_t>(header_.length, place_[0].size());
    if (!intact(head_, place_[0].first(first), place_[1].first(header_.length - first))) {
      return damaged();
    }
  }
  return Step::kFrame;
}

Status Connection::send(Header header, std::span<const std::byte> first,
                        std::span<const std::byte> second) {
  header.length = static_cast<uint32_t>(first.size() + second.size());
  auto head = encode(header);
  // Outside the lock: a large frame takes a while. A channel is there from the beginning, or not.
  if (channel_ == nullptr && checked(header.type)) seal(head, first, second);
  const size_t total = head.size() + header.length;
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr) {
    if (queue_.size() - sent_ > kMaxPending) return does_not_read();
    bytes_out_.fetch_add(total, std::memory_order_relaxed);
    return encrypt(head, first, second);
  }
  size_t written = 0;
  if (sent_ == queue_.size()) {
    // sendmsg() reads only; the casts are POSIX's.
    std::array<iovec, 3> parts{iovec{const_cast<std::byte*>(head.data()), head.size()},
                               iovec{const_cast<std::byte*>(first.data()), first.size()},
                               iovec{const_cast<std::byte*>(second.data()), second.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    ssize_t got = 0;
    do {
      got = ::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      return Error{ErrorKind::kPeer, "the connection broke: " + system_error(errno)};
    }
    if (got > 0) written = static_cast<size_t>(got);
    queue_.clear();
    sent_ = 0;
  } else if (queue_.size() - sent_ > kMaxPending) {
    return does_not_read();
  }
  bytes_out_.fetch_add(total, std::memory_order_relaxed);
  if (written == total) return {};
  for (const std::span<const std::byte> part : {std::span<const std::byte>(head), first, second}) {
    const size_t skip = std::min(written, part.size());
    written -= skip;
    const auto rest = part.subspan(skip);
    queue_.insert(queue_.end(), rest.begin(), rest.end());
  }
  pending_.store(true, std::memory_order_release);
  return {};
}

Status Connection::flush() {
  const std::lock_guard lock(mutex_);
  while (sent_ < queue_.size()) {
    const ssize_t got = ::send(socket_.fd(), queue_.data() + sent_, queue_.size() - sent_,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got >= 0) {
      sent_ += static_cast<size_t>(got);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return {};
    } else if (errno != EINTR) {
      return Error{ErrorKind::kPeer, "the connection broke: " + system_error(errno)};
    }
  }
  queue_ = {};
  sent_ = 0;
  pending_.store(false, std::memory_order_release);
  return {};
}

Status Connection::send_until(Clock::time_point deadline, Header header,
                              std::span<const std::byte> first, std::span<const std::byte> second) {
  TANDEM_TRY(send(header, first, second));
  while (pending()) {
    if (!wait_for(fd(), true, deadline)) {
      return Error{ErrorKind::kPeer, "the peer does not read"};
    }
    TANDEM_TRY(flush());
  }
  return {};
}

Result<Header> Connection::receive_until(Clock::time_point deadline, uint32_t limit) {
  for (;;) {
    TANDEM_ASSIGN(const Step step, read([&](const Header& header) -> Result<Place> {
                    if (header.length > limit) {
                      return invalid("unexpected " + std::string(name(header.type)) + " frame of " +
                                     std::to_string(header.length) + " bytes");
                    }
                    return to_payload(header);
                  }));
    if (step == Step::kFrame) return header_;
    if (step == Step::kClosed) return closed();
    if (!wait_for(fd(), false, deadline)) return Error{ErrorKind::kPeer, "no answer in time"};
  }
}

void Connection::acknowledge() const {
  set_option(fd(), IPPROTO_TCP, TCP_QUICKACK, 1);
  set_option(fd(), IPPROTO_TCP, TCP_QUICKACK, 0);
}

Error Connection::does_not_read() const {
  return Error{ErrorKind::kPeer,
               "the peer does not read: " + std::to_string(queue_.size() - sent_) + " bytes wait"};
}

void Connection::shutdown() const {
  ::shutdown(socket_.fd(), SHUT_RDWR);
}

std::string Connection::peer() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(socket_.fd(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return "an unknown address";
  }
  if (storage.ss_family == AF_UNIX) return "a relay";
  return address_of(storage).text();
}

}  // namespace tandem::wire
