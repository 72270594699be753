// Asking for an answer and reporting on it: what `run` and `chat` share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/session.h"
#include "decode/sampler.h"
#include "ring/generate.h"

namespace tandem::cli {

/// How to choose tokens, from the command line.
struct SamplingFlags {
  decode::SamplerParameters parameters;
  uint64_t seed = 0;
  uint32_t top_k = 0;
  uint32_t max_tokens = 512;

  void add(Flags& flags);
  /// The parameters, checked as far as that goes without a vocabulary. kInvalid otherwise.
  Result<decode::SamplerParameters> checked() const;
};

/// One line of a report: a device and what it holds.
struct StageLine {
  std::string peer;
  std::string layers;  ///< "0-3", or "head" for the host's embedding and output head
  uint64_t bytes = 0;  ///< weights
  double ms_per_pass = 0;
  double hop_ms = 0;
};
/// All stages in the order of a pass, the host's ends last, so that ms_per_pass adds up to all
/// computing of a decode pass.
std::vector<StageLine> stage_lines(Session& session, double head_ms);

/// Speeds, and the time of each stage and hop, for people.
std::string report(const ring::Answer& answer, const std::vector<StageLine>& lines);

/// What happened to the ring, as JSON; for `events` of an answer.
nlohmann::ordered_json events_json(const std::vector<ring::Event>& events);
/// Says on a terminal what happens to the ring, unless `quiet`.
ring::Listener event_notes(bool quiet);

/// The reserve of positions for a prompt and its answer: at least 4,096 where the model has them.
uint32_t context_for(const ModelFlags& flags, uint64_t prompt_tokens, uint32_t max_tokens);

}  // namespace tandem::cli
