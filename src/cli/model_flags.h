// The flags that say which model a command works on, and where its layers lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/observe.h"

namespace tandem::model {
enum class WeightBits : uint8_t;
}

namespace tandem::cli {

class Flags;

/// What --isa takes.
std::vector<std::string> isa_names();

/// What a value of --weights stands for: 16, 8 or 4, which flags have checked.
model::WeightBits weight_bits(const std::string& weights);

/// Of --experts-memory.
inline constexpr const char* kExpertsMemoryHelp =
    "experts held in memory, the others on disk (default: all of them)";

/// Which model, and where its layers lie.
struct ModelFlags {
  std::string model;
  std::string workers;
  std::string room;         ///< link or code, @FILE or -; empty: no room
  std::string room_memory;  ///< that this device lends to a room's answer; empty: what it has
  std::string key;          ///< file of the room's key, "-" for standard input, or empty
  std::string identity;     ///< file of this device's certificate, or empty: a new one each time
  std::string split;
  std::string plan = "even";  ///< or "auto": what was measured decides
  uint32_t local = 0;         ///< worker processes to start; 0 is none
  std::string weights = "8";
  std::string kv = "16";
  uint32_t threads = 0;  ///< 0: as many as there are cores
  std::string isa = "best";
  uint32_t context = 0;        ///< 0: what the command needs
  std::string experts_memory;  ///< a size, or empty: all experts are in memory
  std::string cache;           ///< folder of quantized weights, "off", or empty for the usual one
  bool steady = false;         ///< weights come from the cache as they will lie in the long run
  std::string spares;          ///< workers with the layers that they are ready to take over
  bool recover = false;        ///< the command lets an answer go on without a worker that leaves
  bool no_recovery = false;    ///< its user does not want that
  bool no_spares = false;      ///< nor devices of a room that stand by
  std::string objective;       ///< of a room's plan; empty: as the room was made
  bool quiet = false;
  bool table = true;     ///< show who holds what, unless quiet
  ObserveFlags observe;  ///< what run and chat are asked to show of themselves

  void add_model(Flags& flags);  ///< -m
  void add_all(Flags& flags);    ///< -m and all others but
  void add_room(Flags& flags);   ///< --room, and --memory for it; and
  /// --spares and --no-recovery, for commands that answer.
  void add_recovery(Flags& flags);
  /// Threads of this process.
  [[nodiscard]] uint32_t host_threads() const;
  /// Threads of each process that --local starts.
  [[nodiscard]] uint32_t local_threads() const;
  /// kInvalid if the flags contradict each other.
  [[nodiscard]] Status check() const;
  /// kInvalid if a --state file is given with flags that it does not go together with.
  [[nodiscard]] Status check_state(const std::string& state) const;
};

/// --key and --identity.
void add_key_flags(Flags& flags, std::string& key, std::string& identity);

/// Cores that this process may run on.
uint32_t cores();

}  // namespace tandem::cli
