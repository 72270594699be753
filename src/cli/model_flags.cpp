#include "cli/model_flags.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "cli/cache.h"
#include "cli/flags.h"
#include "model/stage.h"

namespace tandem::cli {

uint32_t cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<uint32_t>(std::clamp(CPU_COUNT(&set), 1, 256));
  }
  return std::clamp(std::thread::hardware_concurrency(), 1U, 256U);
}

model::WeightBits weight_bits(const std::string& weights) {
  if (weights == "4") return model::WeightBits::k4;
  return weights == "16" ? model::WeightBits::k16 : model::WeightBits::k8;
}

void ModelFlags::add_model(Flags& flags) {
  flags.add("-m,--model", "PATH", model,
            "folder or GGUF file (default: $TANDEM_MODEL or storyteller)");
}

void add_key_flags(Flags& flags, std::string& key, std::string& identity) {
  flags.add("--key", "FILE", key, "file of the room's key, or -: TLS, and only with who has it");
  flags.add("--identity", "FILE", identity,
            "file of this device's certificate (default: a new one)");
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const model::Isa isa : model::kIsas) names.emplace_back(model::name(isa));
  return names;
}

void ModelFlags::add_all(Flags& flags) {
  add_model(flags);
  flags.add("--workers", "HOST:PORT,...", workers, "workers that hold layers, in their order");
  flags.add("--local", "N", local, 1, 64, "start N worker processes on this machine");
  flags.add("--split", "0-3,4-7,...", split,
            "layers of each worker; others run here (default: even shares)");
  add_key_flags(flags, key, identity);
  flags.add_choice("--plan", "even|auto", plan, {"even", "auto"},
                   "share layers evenly, or measure first and plan for the fastest answer");
  flags.add_choice("--weights", "16|8|4", weights, {"16", "8", "4"},
                   "bits of a weight (default: 8)");
  flags.add_choice("--kv", "16|8", kv, {"16", "8"},
                   "bits of a key's or value's channel in the KV cache (default: 16)");
  flags.add("--threads", "N", threads, 1, 256,
            "threads (default: one a core; with --local the cores shared out)");
  flags.add_choice("--isa", "SET", isa, isa_names(),
                   "instruction set of the kernels (default: best); the answer is the same");
  flags.add("--experts-memory", "SIZE", experts_memory, kExpertsMemoryHelp);
  add_cache_flag(flags, cache);
  flags.add("-q,--quiet", quiet, "say nothing but the answer and errors");
}

void ModelFlags::add_room(Flags& flags) {
  flags.add("--room", "LINK", room,
            "a room's devices hold layers: link, code, @FILE, or - (standard input)");
  flags.add("--memory", "SIZE", room_memory,
            "with --room: memory lent here (default: what there is); 0: no layers");
  flags.add_choice("--objective", "WHAT", objective, {"fastest", "throughput", "memory"},
                   "with --room: which split (default: as the room was made)");
  flags.add("--no-spares", no_spares, "with --room: devices without layers don't stand by");
}

void ModelFlags::add_recovery(Flags& flags) {
  recover = true;
  flags.add("--spares", "HOST:PORT=0-3", spares,
            "comma list of workers that load these layers too, and take over");
  flags.add("--no-recovery", no_recovery,
            "end the answer when a worker leaves, instead of going on without it");
}

uint32_t ModelFlags::host_threads() const {
  return threads != 0 ? threads : cores();
}

uint32_t ModelFlags::local_threads() const {
  return threads != 0 ? threads : std::max(1U, cores() / std::max(1U, local));
}

Status ModelFlags::check_state(const std::string& state) const {
  if (state.empty() || (local == 0 && workers.empty() && room.empty())) return {};
  return invalid("--state does not go together with workers yet");
}

Status ModelFlags::check() const {
  if (local != 0 && !workers.empty()) {
    return invalid("--local and --workers exclude each other: --local starts its own workers");
  }
  if (!room.empty()) {
    for (const auto& [flag, given] :
         {std::pair("--workers", !workers.empty()), std::pair("--local", local != 0),
          std::pair("--key", !key.empty()), std::pair("--split", !split.empty()),
          std::pair("--plan", plan != "even")}) {
      if (given) return invalid(std::string(flag) + " and --room exclude each other");
    }
  } else if (!room_memory.empty()) {
    return invalid("--memory needs --room");
  } else if (!objective.empty()) {
    return invalid("--objective needs --room");
  } else if (no_spares) {
    return invalid("--no-spares needs --room");
  }
  if (!split.empty() && local == 0 && workers.empty()) {
    return invalid("--split needs --workers or --local: without them all layers run here");
  }
  if (!key.empty() && local != 0) {
    return invalid("--key needs --workers: workers of --local are this program's own");
  }
  if (!spares.empty() && local == 0 && workers.empty()) {
    return invalid("--spares needs --workers: there is nobody to take over from");
  }
  if (!spares.empty() && no_recovery) {
    return invalid("--spares and --no-recovery exclude each other");
  }
  if (key.empty() && !identity.empty()) return invalid("--identity needs --key");
  if (plan == "auto" && !split.empty()) {
    return invalid("--plan auto and --split exclude each other: --split is a plan");
  }
  TANDEM_TRY(parse_limit(experts_memory, "--experts-memory"));
  return {};
}

}  // namespace tandem::cli
