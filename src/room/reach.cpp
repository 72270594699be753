#include "room/reach.h"

#include <thread>
#include <vector>

#include "wire/tcp.h"

namespace tandem::room {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 4s;

Status answers(const std::string& where, const wire::Fingerprint& pin, const wire::Tls& tls) {
  const auto deadline = wire::Clock::now() + kPatience;
  TANDEM_ASSIGN(const wire::Address address, wire::parse_address(where));
  TANDEM_ASSIGN(wire::Socket socket, wire::connect(address, kPatience));
  wire::Connection connection(std::move(socket), tls.connecting(pin));
  const Status secured = connection.secure_until(deadline);
  return secured.ok() ? secured : secured.error().in(where);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]");
}

}  // namespace

Result<std::string> reach(const Member& member, const wire::Tls& tls, const std::string& loopback) {
  std::vector<std::string> ways;
  for (const std::string& address : member.addresses) {
    if (!is_loopback(address) || member.loopback == loopback) ways.push_back(address);
  }
  if (ways.empty() || !member.certificate) {
    return Error{ErrorKind::kPeer, "it has no address that could be reached from here"};
  }
  std::vector<Status> results(ways.size());
  std::vector<std::thread> threads;
  threads.reserve(ways.size());
  for (size_t i = 0; i < ways.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = answers(ways[i], *member.certificate, tls); });
  }
  for (std::thread& thread : threads) thread.join();
  std::string why;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (results[i].ok()) return ways[i];
    why += (why.empty() ? "" : "; ") + results[i].error().message;
  }
  return Error{ErrorKind::kPeer, "can't be reached: " + why};
}

}  // namespace tandem::room
