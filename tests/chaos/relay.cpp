#include "chaos/relay.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

namespace tandem::chaos {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostWaiting = 4u << 20;

uint16_t port_of(int fd, bool peer) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  const int failed = peer ? ::getpeername(fd, raw, &length) : ::getsockname(fd, raw, &length);
  return failed != 0 || address.sin_family != AF_INET ? 0 : ntohs(address.sin_port);
}

/// Whether the other end of an accepted connection is a socket of this process.
bool is_own(int client) {
  const uint16_t theirs = port_of(client, true);
  const uint16_t ours = port_of(client, false);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096));
  for (int fd = 3; fd < most; ++fd) {
    if (fd != client && port_of(fd, false) == theirs && port_of(fd, true) == ours) return true;
  }
  return false;
}

/// The inode of the socket at the other end of a connection that was accepted here; 0: not found.
uint64_t inode_of_peer(int client) {
  const uint16_t theirs = port_of(client, true);
  const uint16_t ours = port_of(client, false);
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    unsigned local = 0;
    unsigned remote = 0;
    unsigned long long inode = 0;
    // Number, addresses and ports in hexadecimal, state, queues, timers, user, time-out, inode.
    const int found =
        std::sscanf(line.c_str(), " %*d: %*x:%x %*x:%x %*x %*x:%*x %*x:%*x %*x %*u %*u %llu",
                    &local, &remote, &inode);
    if (found == 3 && local == theirs && remote == ours) return inode;
  }
  return 0;
}

/// Which of these processes has the socket; 0: none.
pid_t owner_of(uint64_t inode, const std::set<pid_t>& processes) {
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  for (const pid_t process : processes) {
    std::error_code error;
    const std::string folder = "/proc/" + std::to_string(process) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      if (std::filesystem::read_symlink(entry.path(), error) == wanted) return process;
    }
  }
  return 0;
}

wire::Listener listen_or_die(const wire::Address& address) {
  auto listener = wire::Listener::open(address);
  if (!listener.ok()) {
    std::fprintf(stderr, "relay: %s\n", listener.error().message.c_str());
    std::abort();
  }
  return std::move(*listener);
}

}  // namespace

Relay::Relay(const wire::Address& listen, wire::Address target, uint64_t seed)
    : listener_(listen_or_die(listen)),
      target_(std::move(target)),
      random_(seed),
      thread_([this] { loop(); }) {}

Relay::~Relay() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
}

void Relay::delay(std::chrono::microseconds fixed, std::chrono::microseconds jitter) {
  const std::lock_guard lock(mutex_);
  delay_ = fixed;
  jitter_ = jitter;
}

void Relay::stall(Which which) {
  const std::lock_guard lock(mutex_);
  (which == Which::kAll    ? stall_all_
   : which == Which::kHost ? stall_host_
                           : stall_neighbour_) = true;
}

void Relay::stall(pid_t process) {
  const std::lock_guard lock(mutex_);
  stalled_.insert(process);
}

void Relay::target(const wire::Address& target) {
  const std::lock_guard lock(mutex_);
  target_ = target;
}

void Relay::know(pid_t process) {
  const std::lock_guard lock(mutex_);
  known_.insert(process);
}

void Relay::host(pid_t process) {
  know(process);
  const std::lock_guard lock(mutex_);
  host_ = process;
}

void Relay::heal() {
  {
    const std::lock_guard lock(mutex_);
    stalled_.clear();
    stall_all_ = stall_host_ = stall_neighbour_ = false;
    rate_ = 0;
  }
  wake_.wake();
}

void Relay::abort(Way& way) {
  // No FIN, but a RST: what a device sends that knows nothing of the connection.
  const linger now{1, 0};
  for (const wire::Socket* socket : {&way.client, &way.worker}) {
    ::setsockopt(socket->fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  way.client = {};
  way.worker = {};
  way.dead = true;
}

void Relay::reset(Which which) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& way : ways_) {
      if (!way->dead && matches(*way, which)) abort(*way);
    }
  }
  wake_.wake();
}

bool Relay::corrupt(Which which) {
  const std::lock_guard lock(mutex_);
  std::vector<Way*> fitting;
  for (const auto& way : ways_) {
    if (!way->dead && matches(*way, which)) fitting.push_back(way.get());
  }
  if (fitting.empty()) return false;
  fitting[random_() % fitting.size()]->flip = true;
  return true;
}

bool Relay::stalled(const Way& way) const {
  return stall_all_ || stalled_.contains(way.owner) ||
         (way.kind == Which::kNeighbour ? stall_neighbour_ : stall_host_);
}

void Relay::accept() {
  auto client = listener_.accept();
  if (!client.ok() || !client->has_value()) return;
  auto way = std::make_unique<Way>();
  way->client = std::move(**client);
  const auto [target, host, known] = [&] {
    const std::lock_guard lock(mutex_);
    return std::tuple(target_, host_, known_);
  }();
  if (!known.empty()) way->owner = owner_of(inode_of_peer(way->client.fd()), known);
  const bool of_host = host == 0 ? is_own(way->client.fd()) : way->owner == host;
  way->kind = of_host ? Which::kHost : Which::kNeighbour;
  // On the machine itself this takes no time, or is refused at once.
  auto worker = wire::connect(target, 1s);
  if (!worker.ok()) return abort(*way);
  way->worker = std::move(*worker);
  const std::lock_guard lock(mutex_);
  ways_.push_back(std::move(way));
}

void Relay::read(Way& way, Pipe& pipe, int from) {
  std::array<std::byte, 16384> buffer;
  const uint64_t rate = rate_;
  const size_t most = rate == 0 ? buffer.size() : std::min<size_t>(buffer.size(), rate / 50 + 1);
  const ssize_t got = ::recv(from, buffer.data(), most, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got < 0) return abort(way);
  if (got == 0) {
    pipe.ended = true;
    return;
  }
  const auto now = wire::Clock::now();
  auto due = now + delay_;
  if (jitter_.count() > 0) due += std::chrono::microseconds(random_() % jitter_.count());
  due = std::max(due, pipe.last_due);
  if (rate != 0) due += std::chrono::microseconds(static_cast<uint64_t>(got) * 1000000 / rate);
  pipe.last_due = due;
  Chunk chunk{due, {buffer.begin(), buffer.begin() + got}, 0};
  if (way.flip) {
    way.flip = false;
    ++corrupted_;
    chunk.bytes[random_() % chunk.bytes.size()] ^= std::byte{1} << (random_() % 8);
  }
  pipe.waiting += static_cast<size_t>(got);
  pipe.chunks.push_back(std::move(chunk));
}

void Relay::write(Way& way, Pipe& pipe, int to) {
  pipe.full = false;
  while (!pipe.chunks.empty() && pipe.chunks.front().due <= wire::Clock::now()) {
    Chunk& chunk = pipe.chunks.front();
    const ssize_t got = ::send(to, chunk.bytes.data() + chunk.sent, chunk.bytes.size() - chunk.sent,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      pipe.full = true;
      return;
    }
    if (got < 0) return abort(way);
    chunk.sent += static_cast<size_t>(got);
    pipe.waiting -= static_cast<size_t>(got);
    if (chunk.sent == chunk.bytes.size()) pipe.chunks.pop_front();
  }
  if (pipe.ended && pipe.chunks.empty() && !pipe.closed) {
    pipe.closed = true;
    ::shutdown(to, SHUT_WR);
  }
}

void Relay::loop() {
  while (!stopping_) {
    std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    std::vector<Way*> order;
    auto next = wire::Clock::now() + 1s;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(
          ways_, [](const auto& way) { return way->dead || (way->up.closed && way->down.closed); });
      for (const auto& way : ways_) {
        if (stalled(*way)) continue;
        auto events = [&](const Pipe& in, const Pipe& out) {
          short wanted = 0;
          if (!in.ended && in.waiting < kMostWaiting) wanted |= POLLIN;
          if (out.full) wanted |= POLLOUT;
          return wanted;
        };
        auto poll_end = [&](const wire::Socket& socket, short wanted) {
          polled.push_back({wanted == 0 ? -1 : socket.fd(), wanted, 0});
        };
        poll_end(way->client, events(way->up, way->down));
        poll_end(way->worker, events(way->down, way->up));
        order.push_back(way.get());
        for (const Pipe* pipe : {&way->up, &way->down}) {
          if (!pipe->chunks.empty() && !pipe->full) {
            next = std::min(next, pipe->chunks.front().due);
          }
        }
      }
    }
    const auto left = std::max(next - wire::Clock::now(), wire::Clock::duration::zero());
    const timespec timeout{left / 1s, static_cast<long>((left % 1s) / 1ns)};
    (void)::ppoll(polled.data(), polled.size(), &timeout, nullptr);
    if (polled[0].revents != 0) wake_.clear();
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < order.size(); ++i) {
        Way& way = *order[i];
        if (way.dead || stalled(way)) continue;
        if (polled[2 + 2 * i].revents != 0) read(way, way.up, way.client.fd());
        if (!way.dead && polled[3 + 2 * i].revents != 0) read(way, way.down, way.worker.fd());
        if (!way.dead) write(way, way.up, way.worker.fd());
        if (!way.dead) write(way, way.down, way.client.fd());
      }
    }
    if (polled[1].revents != 0) accept();
  }
}

}  // namespace tandem::chaos
