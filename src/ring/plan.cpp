#include "ring/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

namespace tandem::ring {
namespace {

bool parse_number(std::string_view text, uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::string text(const LayerRange& range) {
  if (range.count() == 0) return "none";
  return std::to_string(range.first) + "-" + std::to_string(range.last - 1);
}

uint32_t frame_tokens(uint32_t tokens, uint32_t stages) {
  if (stages <= 1) return kMostTokensChosen;
  // The time of (tokens / n + stages - 1) steps of (n + c) tokens each is least near
  // n = sqrt(c tokens / (stages - 1)), where a pass's fixed cost is that of c = 4 tokens.
  const double best = std::sqrt(4.0 * tokens / (stages - 1));
  return std::clamp(static_cast<uint32_t>(best) / 4 * 4, 16U, kMostTokensChosen);
}

Status check_split(const std::vector<LayerRange>& ranges, uint32_t layers) {
  uint32_t end = 0;
  const LayerRange* previous = nullptr;
  for (const LayerRange& range : ranges) {
    if (range.first >= range.last) {
      return invalid("empty layer range at layer " + std::to_string(range.first));
    }
    if (range.last > layers) {
      return invalid("layers " + text(range) + " are out of range: the model has layers 0-" +
                     std::to_string(layers - 1));
    }
    if (range.first < end) {
      return invalid("layers " + text(range) +
                     (range.last <= previous->first ? " are out of order: they come after "
                                                    : " overlap with ") +
                     text(*previous));
    }
    end = range.last;
    previous = &range;
  }
  return {};
}

Result<std::vector<LayerRange>> parse_split(std::string_view split, uint32_t layers,
                                            uint32_t workers) {
  std::vector<LayerRange> ranges;
  std::string_view rest = split;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = rest.substr(0, comma);
    if (more) rest.remove_prefix(comma + 1);
    const auto dash = part.find('-');
    uint32_t first = 0;
    uint32_t last = 0;
    bool good = parse_number(part.substr(0, dash), first);
    if (dash == std::string_view::npos) {
      last = first;
    } else {
      good = good && parse_number(part.substr(dash + 1), last);
    }
    const std::string shown(part.substr(0, 64));
    if (!good) {
      return invalid("bad layer range '" + shown + "' in --split, expected FIRST-LAST like 0-3");
    }
    if (last < first) {
      return invalid("layer range '" + shown + "' ends before it starts");
    }
    if (last >= layers) {
      return invalid("layer range '" + shown + "' is out of range: the model has layers 0-" +
                     std::to_string(layers - 1));
    }
    ranges.push_back({first, last + 1});
    if (ranges.size() > workers) break;
  }
  if (ranges.size() != workers) {
    return invalid("--split '" + std::string(split.substr(0, 200)) + "' names " +
                   (ranges.size() > workers ? "more" : "fewer") +
                   " ranges than there are workers (" + std::to_string(workers) + ")");
  }
  TANDEM_TRY(check_split(ranges, layers));
  return ranges;
}

Result<std::vector<LayerRange>> split_evenly(uint32_t layers, uint32_t workers) {
  if (workers == 0) return invalid("no workers to share the layers");
  if (workers > layers) {
    return invalid("the model has " + std::to_string(layers) + " layers, too few for " +
                   std::to_string(workers) + " workers");
  }
  std::vector<LayerRange> ranges;
  uint32_t first = 0;
  for (uint32_t i = 0; i < workers; ++i) {
    const uint32_t count = layers / workers + (i < layers % workers ? 1 : 0);
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

}  // namespace tandem::ring
