// Devices, models and links for the planner's tests, in few words.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "ring/planner.h"

namespace tandem::ring::planner_test {

/// Milliseconds of a layer at the widths that are measured.
inline std::array<double, 4> ms(double one) {
  return {one, one * 1.5, one * 4, one * 12};
}

inline PlanDevice device(const std::string& id, uint64_t memory, double layer_ms) {
  PlanDevice device;
  device.id = id;
  device.backends.push_back({"cpu", memory, 0, 0, ms(layer_ms)});
  return device;
}

inline PlanModel model(uint32_t layers, uint64_t weight_bytes = 100, uint64_t state_bytes = 10) {
  PlanModel model;
  model.hidden_size = 64;
  model.context = 4096;
  model.layers.assign(layers, {weight_bytes, weight_bytes * 6 / 10, state_bytes, 1});
  model.ends_bytes = 50;
  model.host_ms = 0.5;
  return model;
}

inline void link_all(PlanInput& input, double rtt_ms, double bytes_per_second = 1e9) {
  for (uint32_t a = 0; a < input.devices.size(); ++a) {
    for (uint32_t b = a + 1; b < input.devices.size(); ++b) {
      input.links.push_back({a, b, rtt_ms, bytes_per_second});
    }
  }
}

}  // namespace tandem::ring::planner_test
