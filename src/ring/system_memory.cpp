#include "ring/system_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tandem::ring {
namespace {

/// The number in a file that holds nothing else; 0 for "max" or no such file.
uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : 0;
}

/// Bytes that the control group (version 2) leaves; 0 if it has no limit.
uint64_t group_leaves() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3);
    const uint64_t limit = number_in(folder + "/memory.max");
    if (limit == 0) return 0;
    return std::max<uint64_t>(1, limit - std::min(limit, number_in(folder + "/memory.current")));
  }
  return 0;
}

}  // namespace

uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t value = 0;
  std::string unit;
  while (file >> name >> value) {
    std::getline(file, unit);
    if (name != "MemAvailable:") continue;
    const uint64_t available = value * 1024;
    const uint64_t group = group_leaves();
    return group == 0 ? available : std::min(available, group);
  }
  return 0;
}

}  // namespace tandem::ring
