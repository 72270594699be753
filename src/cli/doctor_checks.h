// What `tandem doctor` looks at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"

namespace tandem::cli {

struct Check {
  enum class State : uint8_t { kOk, kWarning, kProblem };
  std::string name;
  State state = State::kOk;
  std::string found;
  std::string advice;  ///< what to do; empty if nothing is
};

/// Where /proc and /sys are: "" for this machine's own.
struct System {
  std::string root;
  [[nodiscard]] std::string file(const std::string& path) const;  ///< its text, or nothing
};

/// Cores, quotas, clock limits of the processor.
std::vector<Check> check_processor(const System& system, uint32_t threads);
/// Kernels against stored answers.
std::vector<Check> check_kernels();
/// What the system, control group and user limits leave, against `needed` bytes (0: not known).
std::vector<Check> check_memory(const System& system, uint64_t needed);
std::vector<Check> check_huge_pages(const System& system);
/// The folder of quantized weights, which may have to hold `needed` bytes more.
std::vector<Check> check_cache(const std::string& flag, uint64_t needed);
/// The folder of this device's identity and keys.
std::vector<Check> check_home(const std::filesystem::path& folder);

/// Whether this process could listen there.
Check check_listen(const std::string& listen, bool asked);
/// Whether a worker answers, with the same versions and key.
std::vector<Check> check_worker(const ring::RingWorker& worker,
                                const std::shared_ptr<const wire::Tls>& tls);
/// Whether a hub answers, with the certificate that is known of it, and whether the clocks agree.
/// Registers nothing.
std::vector<Check> check_hub(const std::string& address, const std::filesystem::path& home);
/// Whether a hub is heard by multicast.
Check check_mdns();

}  // namespace tandem::cli
