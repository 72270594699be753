#include "cli/doctor_checks.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "cli/cache.h"
#include "kernels/self_test.h"
#include "ring/system_memory.h"

namespace tandem::cli {
namespace {

using State = Check::State;
namespace fs = std::filesystem;

/// The first number of a text, or nothing ("max", "-1").
std::optional<uint64_t> first_number(const std::string& text) {
  std::istringstream stream(text);
  int64_t value = 0;
  if (!(stream >> value) || value < 0) return std::nullopt;
  return static_cast<uint64_t>(value);
}

/// A file of this process's control group, of version 2 or 1: in its own folder or the nearest one
/// above that has it; a container may see its own as the root.
std::string group_file(const System& system, const std::string& controller,
                       const std::string& name) {
  std::istringstream lines(system.file("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string base;
    if (controllers.empty()) {
      base = "/sys/fs/cgroup";
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      base = "/sys/fs/cgroup/" + controller;
    } else {
      continue;
    }
    for (fs::path path = line.substr(second + 1);; path = path.parent_path()) {
      const std::string text = system.file(base + (path == "/" ? "" : path.string()) + "/" + name);
      if (!text.empty()) return text;
      if (path == path.parent_path()) break;
    }
  }
  return "";
}

/// Cores that the control group lets this process use at a time.
std::optional<double> quota(const System& system) {
  const std::string text = group_file(system, "cpu", "cpu.max");
  std::istringstream stream(text);
  double most = 0;
  double period = 0;
  if (stream >> most >> period && period > 0) return most / period;
  const auto old = first_number(group_file(system, "cpu", "cpu.cfs_quota_us"));
  const auto old_period = first_number(group_file(system, "cpu", "cpu.cfs_period_us"));
  if (old && old_period && *old > 0 && *old_period > 0) {
    return static_cast<double>(*old) / static_cast<double>(*old_period);
  }
  return std::nullopt;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "no limit" : bytes_text(limit);
}

}  // namespace

std::string System::file(const std::string& path) const {
  constexpr size_t kMost = 65536;
  std::ifstream stream(root + path);
  std::string text(kMost, '\0');
  stream.read(text.data(), kMost);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  return text;
}

std::vector<Check> check_processor(const System& system, uint32_t threads) {
  std::vector<Check> checks;
  const auto most = quota(system);
  if (most && *most + 0.01 < threads) {
    checks.push_back({"cores", State::kWarning,
                      std::to_string(threads) + " threads, and a control group that allows " +
                          number(*most, 1) + " cores",
                      "give --threads " +
                          std::to_string(std::max<int64_t>(1, std::llround(std::floor(*most)))) +
                          ": threads that are held back hold up all others"});
  } else {
    checks.push_back({"cores", State::kOk, std::to_string(threads) + " threads", ""});
  }
  const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
  const std::string governor = system.file(folder + "scaling_governor");
  const auto allowed = first_number(system.file(folder + "scaling_max_freq"));
  const auto possible = first_number(system.file(folder + "cpuinfo_max_freq"));
  const auto ghz = [](uint64_t khz) { return number(static_cast<double>(khz) * 1e-6, 1) + " GHz"; };
  if (allowed && possible && *allowed < *possible) {
    checks.push_back({"clock rate", State::kWarning,
                      "limited to " + ghz(*allowed) + " of " + ghz(*possible),
                      "raise scaling_max_freq, or choose another power profile"});
  } else if (governor.starts_with("powersave") && !allowed) {
    checks.push_back({"clock rate", State::kWarning, "the governor is powersave",
                      "choose performance or schedutil for the time of answers"});
  } else {
    checks.push_back({"clock rate", State::kOk,
                      allowed ? "up to " + ghz(*allowed) : "the system sets no limit", ""});
  }
  return checks;
}

std::vector<Check> check_kernels() {
  std::string good;
  std::string bad;
  for (const kernels::SelfTestReport& report : kernels::self_test_reports()) {
    std::string& list = report.ok() ? good : bad;
    list += (list.empty() ? "" : ", ") + report.isa;
  }
  std::vector<Check> checks;
  if (!bad.empty()) {
    checks.push_back({"kernels", State::kProblem, "wrong answers from " + bad,
                      "'tandem verify' shows which; the set is not used. Suspect memory or "
                      "processor, or an overclock"});
  }
  const bool slow = good == "scalar";
  checks.push_back(
      {"instruction sets", slow ? State::kWarning : State::kOk,
       good.empty() ? "none" : good + (slow ? " only" : ", all with the right bits"),
       slow ? "this processor has none that Tandem is fast on (AVX2, AVX-512, NEON)" : ""});
  return checks;
}

std::vector<Check> check_memory(const System& system, uint64_t needed) {
  std::vector<Check> checks;
  const auto limit =
      first_number(group_file(system, "memory", "memory.max"))
          .value_or(first_number(group_file(system, "memory", "memory.limit_in_bytes"))
                        .value_or(UINT64_MAX));
  // Version 1 says "no limit" with a number near 2^63.
  const bool grouped = limit < (uint64_t{1} << 60);
  uint64_t available = ring::available_memory();
  if (grouped) available = std::min(available, limit);
  const std::string found = bytes_text(available) + " can be had" +
                            (grouped ? ", the control group allows " + bytes_text(limit) : "");
  if (needed > available && available > 0) {
    checks.push_back({"memory", State::kProblem,
                      found + "; the model needs " + bytes_text(needed) + " here",
                      "give layers to workers, take --weights 4 or a shorter --context, or raise "
                      "the limit"});
  } else {
    checks.push_back({"memory", State::kOk,
                      found + (needed > 0 ? "; the model needs " + bytes_text(needed) : ""), ""});
  }
  rlimit limits{};
  ::getrlimit(RLIMIT_AS, &limits);
  if (limits.rlim_cur != RLIM_INFINITY) {
    // Mapped weights count, read or not.
    const bool short_of = needed > 0 && limits.rlim_cur < needed;
    checks.push_back({"address space", short_of ? State::kProblem : State::kWarning,
                      "limited to " + limit_text(limits.rlim_cur) + " (ulimit -v)",
                      "ulimit -v unlimited: mapped weights count in full"});
  }
  ::getrlimit(RLIMIT_MEMLOCK, &limits);
  checks.push_back({"locked memory", State::kOk, limit_text(limits.rlim_cur) + " (ulimit -l)", ""});
  ::getrlimit(RLIMIT_NOFILE, &limits);
  constexpr rlim_t kFewFiles = 256;
  const bool few = limits.rlim_cur < kFewFiles;
  checks.push_back({"open files", few ? State::kWarning : State::kOk,
                    std::to_string(limits.rlim_cur) + " (ulimit -n)",
                    few ? "ulimit -n 1024: a worker needs a few for each host" : ""});
  return checks;
}

std::vector<Check> check_huge_pages(const System& system) {
  const std::string text = system.file("/sys/kernel/mm/transparent_hugepage/enabled");
  if (text.empty()) return {};
  if (text.find("[never]") == std::string::npos) {
    const auto begin = text.find('[');
    const auto end = text.find(']');
    const bool marked = begin != std::string::npos && end != std::string::npos && end > begin;
    return {{"huge pages", State::kOk,
             marked ? text.substr(begin + 1, end - begin - 1) : std::string("on"), ""}};
  }
  return {{"huge pages", State::kWarning, "off",
           "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): large models "
           "are read faster"}};
}

std::vector<Check> check_cache(const std::string& flag, uint64_t needed) {
  const auto opened = open_cache(flag, true);
  if (!opened.ok()) {
    return {{"cache", State::kProblem, opened.error().message, "see docs/cache.md"}};
  }
  if (*opened == nullptr) {
    return {{"cache", State::kWarning, "none",
             "weights are quantized at each start; give --cache or set TANDEM_CACHE"}};
  }
  const fs::path folder = (*opened)->options().folder;
  // Its nearest folder that is there, since it is made only when something is stored.
  fs::path there = folder;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_parent_path() && there != there.parent_path()) {
    there = there.parent_path();
  }
  const bool is_folder = fs::is_directory(there, error);
  if (!is_folder || ::access(there.c_str(), W_OK | X_OK) != 0) {
    return {{"cache", State::kProblem,
             folder.string() + (is_folder ? ": this user may not write there"
                                          : ": " + there.string() + " is no folder"),
             "give --cache DIR, or set TANDEM_CACHE"}};
  }
  struct statvfs disk {};
  if (::statvfs(there.c_str(), &disk) != 0) return {};
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  const auto usage = (*opened)->usage();
  const uint64_t limit = (*opened)->options().limit;
  const std::string found = folder.string() + ": " + bytes_text(usage.bytes) + " of " +
                            bytes_text(limit) + " used, the disk has " + bytes_text(free) + " free";
  constexpr uint64_t kLittle = uint64_t{256} << 20;
  if (free < std::max(needed, kLittle)) {
    return {{"cache", State::kWarning, found,
             "free some: 'tandem models --clear-cache', or another folder with --cache"}};
  }
  if (needed > limit) {
    return {{"cache", State::kWarning, found + "; the model has " + bytes_text(needed),
             "raise TANDEM_CACHE_LIMIT"}};
  }
  return {{"cache", State::kOk, found, ""}};
}

std::vector<Check> check_home(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    return {{"home folder", State::kOk,
             folder.string() + " is not there yet; the first command that talks to a hub makes it",
             ""}};
  }
  std::vector<Check> checks;
  const auto look = [&](const fs::path& path, mode_t wrong, const char* mode) {
    struct stat one {};
    if (::stat(path.c_str(), &one) != 0) return;
    if (one.st_uid != ::geteuid()) {
      checks.push_back({"home folder", State::kProblem, path.string() + " belongs to another user",
                        "set TANDEM_HOME to a folder of this user's"});
    } else if ((one.st_mode & wrong) != 0) {
      checks.push_back(
          {"home folder", State::kProblem, path.string() + ": others can read it",
           std::string("chmod ") + mode + " " + path.string() + ", and consider its keys known"});
    }
  };
  look(folder, S_IRWXG | S_IRWXO, "700");
  for (const char* name : {"identity.pem", "hubs.json"})
    look(folder / name, S_IRWXG | S_IRWXO, "600");
  if (checks.empty()) {
    checks.push_back({"home folder", State::kOk, folder.string() + ", this user's alone", ""});
  }
  return checks;
}

}  // namespace tandem::cli
