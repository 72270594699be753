// Multicast DNS on the network: a hub's answers, and the search for hubs.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "hub/mdns.h"
#include "wire/tcp.h"

namespace tandem::hub {
namespace {

constexpr const char* kGroup = "224.0.0.251";
constexpr size_t kMaxPacket = 9000;
constexpr int kMaxAnswersASecond = 20;

sockaddr_in group_address() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kMdnsPort);
  ::inet_pton(AF_INET, kGroup, &address.sin_addr);
  return address;
}

Error failed(const char* what) {
  return {ErrorKind::kIo, std::string("multicast DNS: ") + what + ": " + std::strerror(errno)};
}

in_addr interface_of(const std::string& text) {
  in_addr address{};
  if (text.empty() || ::inet_pton(AF_INET, text.c_str(), &address) != 1) {
    address.s_addr = htonl(INADDR_ANY);
  }
  return address;
}

void send_to(int fd, const std::string& message, const sockaddr_in& to) {
  // Lost packets are part of the protocol: whoever asked asks again.
  (void)::sendto(fd, message.data(), message.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                 sizeof(to));
}

/// IPv4 addresses of all interfaces that are up.
std::vector<in_addr> interfaces() {
  std::vector<in_addr> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0) continue;
    addresses.push_back(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr);
  }
  ::freeifaddrs(list);
  return addresses;
}

}  // namespace

struct MdnsResponder::State {
  MdnsHub hub;
  wire::Socket socket;
  wire::Wake stop;
  std::thread thread;

  void run() const {
    const sockaddr_in group = group_address();
    send_to(socket.fd(), make_mdns_answer(hub, 0), group);  // those who listen hear of it at once
    auto second = std::chrono::steady_clock::now();
    int answers = 0;
    std::array<char, kMaxPacket> buffer{};
    for (;;) {
      std::array<pollfd, 2> entries{{{socket.fd(), POLLIN, 0}, {stop.fd(), POLLIN, 0}}};
      if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
      if (entries[1].revents != 0) return;
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      const ssize_t count = ::recvfrom(socket.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT,
                                       reinterpret_cast<sockaddr*>(&from), &length);
      if (count <= 0) continue;
      const auto message = parse_mdns({buffer.data(), static_cast<size_t>(count)});
      if (!message.ok() || !asks_for(*message, hub)) continue;
      const auto now = std::chrono::steady_clock::now();
      if (now - second > std::chrono::seconds(1)) {
        second = now;
        answers = 0;
      }
      if (++answers > kMaxAnswersASecond) continue;  // no amplifier for forged questions
      const bool legacy = ntohs(from.sin_port) != kMdnsPort;
      send_to(socket.fd(), make_mdns_answer(hub, legacy ? message->id : 0), legacy ? from : group);
    }
  }
};

MdnsResponder::MdnsResponder(std::unique_ptr<State> state) : state_(std::move(state)) {}

MdnsResponder::~MdnsResponder() {
  state_->stop.wake();
  state_->thread.join();
}

Result<std::unique_ptr<MdnsResponder>> MdnsResponder::start(MdnsHub hub,
                                                            const std::string& interface) {
  auto state = std::make_unique<State>();
  state->hub = std::move(hub);
  state->socket = wire::Socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int fd = state->socket.fd();
  if (fd < 0) return failed("no socket");
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  sockaddr_in any = group_address();
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) {
    return failed("can't use port 5353");
  }
  ip_mreq membership{};
  membership.imr_multiaddr = group_address().sin_addr;
  membership.imr_interface = interface_of(interface);
  if (::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) != 0) {
    return failed("can't join the group");
  }
  if (!interface.empty()) {
    ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &membership.imr_interface,
                 sizeof(membership.imr_interface));
  }
  const int hops = 255;
  ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof(hops));
  State& running = *state;
  state->thread = std::thread([&running] { running.run(); });
  return std::unique_ptr<MdnsResponder>(new MdnsResponder(std::move(state)));
}

Result<std::vector<HubAddress>> find_hubs(std::chrono::milliseconds patience) {
  const wire::Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return failed("no socket");
  const sockaddr_in group = group_address();
  const std::string question = make_mdns_question();
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + patience;
  auto next_question = begin;
  std::vector<HubAddress> hubs;
  std::array<char, kMaxPacket> buffer{};
  for (auto now = begin; now < end; now = std::chrono::steady_clock::now()) {
    if (now >= next_question) {
      for (const in_addr& interface : interfaces()) {
        ::setsockopt(socket.fd(), IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof(interface));
        send_to(socket.fd(), question, group);
      }
      next_question = now + std::chrono::milliseconds(500);
    }
    if (!wire::wait_for(socket.fd(), false, std::min(end, next_question))) continue;
    const ssize_t count = ::recv(socket.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) continue;
    const auto message = parse_mdns({buffer.data(), static_cast<size_t>(count)});
    if (!message.ok()) continue;
    const auto hub = read_mdns_answer(*message);
    if (!hub.ok()) continue;
    const bool known = std::any_of(
        hubs.begin(), hubs.end(), [&](const HubAddress& one) { return one.text() == hub->text(); });
    if (!known && hubs.size() < 64) hubs.push_back(*hub);
  }
  return hubs;
}

}  // namespace tandem::hub
