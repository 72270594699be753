#include "cli/answer.h"

#include <algorithm>
#include <cmath>

#include "ring/plan.h"

namespace tandem::cli {

void SamplingFlags::add(Flags& flags) {
  flags.add("--seed", "S", seed, "seed of the answer (default: 0)");
  flags.add("--temperature", "T", parameters.temperature,
            "0 takes the best token always (default); up to 100");
  flags.add("--top-k", "K", top_k, 0, UINT32_MAX, "keep the K best tokens (default: all)");
  flags.add("--top-p", "P", parameters.top_p, "keep the best tokens that hold this share");
  flags.add("--min-p", "P", parameters.min_p, "keep tokens of this share of the best one's");
  flags.add("--repetition-penalty", "R", parameters.repetition_penalty,
            "above 1: tokens that were there become less likely");
  flags.add("--max-tokens", "N", max_tokens, 1, 10'000'000,
            "longest answer (default: " + std::to_string(max_tokens) + ")");
}

Result<decode::SamplerParameters> SamplingFlags::checked() const {
  decode::SamplerParameters checked = parameters;
  checked.top_k = top_k;
  TANDEM_TRY(decode::check(checked, UINT32_MAX));
  return checked;
}

std::vector<StageLine> stage_lines(Session& session, double head_ms) {
  std::vector<StageLine> lines;
  for (const ring::StageReport& stage : session.ring().stages()) {
    lines.push_back({stage.peer, ring::text(stage.layers), stage.weight_bytes, stage.ms_per_pass,
                     stage.hop_ms});
  }
  lines.push_back({"host", "head", session.ends().bytes(), head_ms, 0});
  return lines;
}

std::string report(const ring::Answer& answer, const std::vector<StageLine>& lines) {
  std::vector<std::vector<std::string>> rows{{"device", "layers", "ms a pass", "ms a hop"}};
  double computing = 0;
  for (const StageLine& line : lines) {
    computing += line.ms_per_pass;
    rows.push_back({line.peer, line.layers, number(line.ms_per_pass, 2),
                    line.peer == "host" ? "" : number(line.hop_ms, 2)});
  }
  std::string text = "\n";
  if (answer.decode_passes > 0) text += table(rows, {false, false, true, true});
  text += "prompt " + std::to_string(answer.prompt_tokens) + " tokens";
  if (answer.reused_tokens > 0) text += " (" + std::to_string(answer.reused_tokens) + " reused)";
  text += ", " + number(answer.prefill_tokens_per_second(), 0) + " tokens/s; answer " +
          std::to_string(answer.tokens.size()) + " tokens";
  if (answer.decode_passes > 0) {
    text += ", " + number(answer.decode_tokens_per_second(), 1) + " tokens/s; a pass " +
            number(answer.pass_ms, 2) + " ms, of which " + number(computing, 2) + " ms computing";
  }
  return text + "\n";
}

nlohmann::ordered_json events_json(const std::vector<ring::Event>& events) {
  auto list = nlohmann::ordered_json::array();
  for (const ring::Event& event : events) {
    list.push_back({{"at_ms", std::round(event.at_ms)},
                    {"kind", std::string(name(event.kind))},
                    {"peer", event.peer},
                    {"text", event.text}});
  }
  return list;
}

ring::Listener event_notes(bool quiet) {
  if (quiet || !on_terminal()) return {};
  // On lines of their own: the answer's text may be in the middle of one.
  return [](const ring::Event& event) {
    note("\n" + styled(Style::kDim, "[" + event.text + "]") + "\n");
  };
}

uint32_t context_for(const ModelFlags& flags, uint64_t prompt_tokens, uint32_t max_tokens) {
  if (flags.context != 0) return flags.context;
  const uint64_t wanted = std::max<uint64_t>(4096, prompt_tokens + max_tokens);
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, UINT32_MAX));
}

}  // namespace tandem::cli
