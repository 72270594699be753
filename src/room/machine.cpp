#include "room/machine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "base/hash.h"

namespace tandem::room {
namespace {

constexpr size_t kMostAddresses = 16;

std::string line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string mark(const std::string& text) {
  return hex(sha256("tandem machine " + text)).substr(0, 16);
}

std::string numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  } else {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&six)) return "";
    bytes = &six;
  }
  const bool good = ::inet_ntop(address.sa_family, bytes, text.data(), text.size()) != nullptr;
  return good ? text.data() : "";
}

}  // namespace

std::vector<std::string> own_addresses() {
  std::vector<std::string> outside;
  std::vector<std::string> loopback;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_UP) == 0) continue;
      const std::string text = numeric(*one->ifa_addr);
      if (text.empty()) continue;
      ((one->ifa_flags & IFF_LOOPBACK) == 0 ? outside : loopback).push_back(text);
    }
  }
  ::freeifaddrs(list);
  outside.insert(outside.end(), loopback.begin(), loopback.end());
  outside.resize(std::min(outside.size(), kMostAddresses));
  return outside;
}

std::string machine_mark() {
  return mark(line_of("/proc/sys/kernel/random/boot_id"));
}

std::string loopback_mark() {
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return mark(line_of("/proc/sys/kernel/random/boot_id") + " " +
              std::string(space.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))));
}

std::optional<double> battery_percent() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/power_supply", error)) {
    if (line_of(entry.path() / "type") != "Battery") continue;
    if (line_of(entry.path() / "scope") == "Device") continue;  // of a mouse, say
    if (line_of(entry.path() / "status") != "Discharging") continue;
    const std::string percent = line_of(entry.path() / "capacity");
    if (!percent.empty()) return std::clamp(std::atof(percent.c_str()), 0.0, 100.0);
  }
  return std::nullopt;
}

std::optional<double> temperature() {
  std::optional<double> hottest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/thermal", error)) {
    if (!entry.path().filename().string().starts_with("thermal_zone")) continue;
    const std::string type = line_of(entry.path() / "type");
    if (type.find("pkg") == std::string::npos && type.find("cpu") == std::string::npos &&
        type.find("soc") == std::string::npos) {
      continue;
    }
    const std::string value = line_of(entry.path() / "temp");
    if (value.empty()) continue;
    const double celsius = std::atof(value.c_str()) / 1000;
    if (!hottest || celsius > *hottest) hottest = celsius;
  }
  return hottest;
}

}  // namespace tandem::room
