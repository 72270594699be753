// Which layers on which device: the best split under a model of what passes, hops and memory cost.
// Everything is a value; nothing here measures, loads or connects.
//
// A device holds at most one consecutive run of layers, on one of its backends. A lap at width w
// costs what the host does itself (embedding, head, draft), plus for each stage
//   pass_ms + sum of work * layer_ms(w) over its layers,
// plus for each hop, the host's first and last ones included,
//   rtt / 2 + bytes of w hidden states / throughput,
// where two devices without a link reach each other through the host. docs/planning.md says when
// the result is proved to be the optimum.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ring/plan.h"

namespace tandem::ring {

/// Tokens in the passes that devices are measured with.
inline constexpr std::array<uint32_t, 4> kProbeWidths = {1, 4, 16, 64};
inline constexpr size_t kMaxPlanDevices = 256;
inline constexpr size_t kMaxPlanLayers = 4096;
/// A phone that nothing is known of counts so many times slower than a usual computer of the room.
inline constexpr double kUnmeasuredPhone = 20;

enum class DeviceKind : uint8_t { kComputer, kPhone };
enum class DeviceState : uint8_t {
  kReady,
  kPaused,  ///< by its owner, or outside the hours lent
  kLate,    ///< joined after this deal; gets layers at the next one
};
enum class Objective : uint8_t {
  kFastest,     ///< the shortest lap: the fastest answer
  kThroughput,  ///< the least slowest stage or link, then the shortest lap
  kMemory,      ///< devices filled in proportion to what they lend, then the shortest lap
};
std::string_view name(Objective objective);
/// "fastest", "throughput", "memory". Error: kInvalid.
Result<Objective> parse_objective(std::string_view text);

struct PlanLayer {
  uint64_t weight_bytes = 0;
  uint64_t weight_bytes_4 = 0;  ///< with 4-bit weights, for advice; 0: not known
  uint64_t state_bytes = 0;     ///< keys and values, recurrent state, checkpoints at the context
  double work = 1;              ///< of a pass, relative to the layers that were measured
};

/// What the layers' states need at a smaller context, for advice.
struct ContextOption {
  uint32_t context = 0;
  std::vector<uint64_t> state_bytes;  ///< of each layer
};

struct PlanModel {
  std::vector<PlanLayer> layers;
  uint32_t hidden_size = 0;
  uint32_t context = 0;
  uint64_t ends_bytes = 0;   ///< embedding and output head, on the host
  uint64_t draft_bytes = 0;  ///< of a draft model, on the host
  uint64_t load_bytes = 0;   ///< scratch while loading: the largest tensor. Free again before use
  double host_ms = 0;        ///< embedding, head and draft of a lap at PlanInput::width
  double host_token_ms = 0;  ///< embedding of one token of a prompt
  std::vector<ContextOption> smaller;  ///< in falling order
};

struct PlanBackend {
  std::string name = "cpu";
  uint64_t memory = 0;       ///< bytes lent for layers, their states and scratch
  uint64_t fixed_bytes = 0;  ///< of them gone before any layer
  double pass_ms = 0;        ///< of every pass, whatever it holds
  /// Milliseconds of one layer at kProbeWidths; none: not measured.
  std::optional<std::array<double, kProbeWidths.size()>> layer_ms;
};

struct PlanDevice {
  std::string id;
  DeviceKind kind = DeviceKind::kComputer;
  DeviceState state = DeviceState::kReady;
  std::vector<PlanBackend> backends;  ///< 1 to 8; the host's ends lie in the first one's memory
  uint64_t could_lend = 0;            ///< bytes that it has in all; 0: not known
  double load_bytes_per_second = 0;   ///< at which it gets weights that it lacks; 0: not counted
  std::vector<LayerRange> cached;     ///< layers whose weights it has already
};

/// Between two devices, both ways.
struct PlanLink {
  uint32_t a = 0;  ///< index of a device
  uint32_t b = 0;
  double rtt_ms = 0;
  double bytes_per_second = 0;
};

struct PlanInput {
  PlanModel model;
  std::vector<PlanDevice> devices;
  std::vector<PlanLink> links;
  uint32_t host = 0;  ///< index of a device
  Objective objective = Objective::kFastest;
  uint32_t width = 1;     ///< tokens of a lap while answering
  uint32_t prompt = 512;  ///< tokens of the prompt that prefill is predicted for
  /// Laps over which loading is counted: a lap's cost rises by load time / this. It only decides
  /// between splits of nearly the same speed.
  uint32_t laps_per_load = 10000;
  /// The user's own ranges, in rising order: (device, layers). Layers that none has are the host's.
  /// Empty: the plan is free.
  std::vector<std::pair<uint32_t, LayerRange>> manual;
};

struct PlanStage {
  uint32_t device = 0;
  uint32_t backend = 0;
  LayerRange layers;
  uint64_t weight_bytes = 0;
  uint64_t state_bytes = 0;
  double ms = 0;      ///< of a pass at PlanInput::width
  double hop_ms = 0;  ///< of the hop that leads to it; 0 where it is the host's own
};

enum class LeftOut : uint8_t { kUnneeded, kTooSmall, kUnmeasured, kUnreachable, kPaused, kLate };
std::string_view name(LeftOut reason);

struct Short {
  uint32_t layers_held = 0;
  uint32_t layers_needed = 0;
  uint64_t bytes_short = 0;  ///< what the layers that nobody can hold need
  /// The host's ends alone don't fit into what it lends.
  bool host_too_small = false;
  struct Lender {
    uint32_t device = 0;
    uint64_t bytes = 0;   ///< that it could lend beyond what it does
    bool enough = false;  ///< with them alone the model would fit
  };
  std::vector<Lender> could_lend;
  uint32_t context_fits = 0;  ///< the largest context of PlanModel::smaller that fits; 0: none
  bool four_bits_fit = false;
};

struct Plan {
  std::vector<PlanStage> stages;  ///< in the order of the layers
  double lap_ms = 0;              ///< at PlanInput::width
  double slowest_ms = 0;          ///< the slowest stage, link, or the host's own part
  double load_seconds = 0;        ///< of the device that loads longest
  double decode_tokens_per_second = 0;
  double prefill_tokens_per_second = 0;
  /// The split is proved to be the optimum of its objective. Otherwise the lap is at most
  /// `beyond_ms` longer than the optimum's; for the other objectives than kFastest the greatest
  /// load may also be up to `beyond_load` times the optimum's.
  bool proved = false;
  double beyond_ms = 0;
  double beyond_load = 1;
  /// A split over fewer devices than the objective or the user asked for would answer faster: the
  /// whole model on this one, at so many tokens/s.
  std::optional<uint32_t> faster_alone;
  double alone_tokens_per_second = 0;
  std::vector<std::pair<uint32_t, LeftOut>> left_out;
  std::optional<Short> shortage;  ///< then there are no stages
};

/// Plans. Errors (kInvalid) name the device, layer or link whose value is not a number, zero,
/// absurd or twice there, and manual ranges that are malformed or don't fit.
Result<Plan> plan(const PlanInput& input);

/// What a given split costs: stages of `input.manual`, for measured values of today. The split that
/// runs is worth replacing (`redeal`) once plan() beats it by `gain`, say 1.15, in the objective.
Result<bool> worth_redeal(const PlanInput& input, double gain);

/// What-if: the input without a device (not the host). Error: kInvalid, no such device.
Result<PlanInput> without(const PlanInput& input, std::string_view id);
/// What-if: the input with one more computer that lends `bytes` and takes `layer_ms` for a layer at
/// width 1 (wider passes as the host's), linked as the best linked device is, or at 1 ms and
/// 100 MB/s if there is none.
Result<PlanInput> with(const PlanInput& input, uint64_t bytes, double layer_ms);

/// Milliseconds at `width`, between the measured widths by straight lines; beyond the widest in
/// proportion to what the last two say.
double at_width(const std::array<double, kProbeWidths.size()>& ms, double width);

}  // namespace tandem::ring
