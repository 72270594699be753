// How long a plan takes: 64 devices and 128 layers unless told otherwise, over uniform links,
// links of sites, and links that were measured (no two alike); every objective.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "ring/planner.h"

namespace {

using tandem::ring::Objective;

tandem::ring::PlanInput room(uint32_t devices, uint32_t layers, uint32_t sites, double noise,
                             bool same_layers) {
  tandem::ring::PlanInput input;
  std::mt19937_64 random(devices + layers + sites);
  auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  input.model.hidden_size = 4096;
  input.model.ends_bytes = 500'000'000;
  input.model.host_ms = 2;
  for (uint32_t i = 0; i < layers; ++i) {
    const bool full = same_layers || i % 4 == 3;
    input.model.layers.push_back({100'000'000, 0, full ? 32'000'000u : 4'000'000u, 1});
  }
  for (uint32_t i = 0; i < devices; ++i) {
    tandem::ring::PlanDevice device;
    device.id = "device-" + std::to_string(i);
    const double ms = between(0.5, 8);
    device.backends.push_back({"cpu",
                               static_cast<uint64_t>(between(1.2, 5) * layers / devices * 132e6) +
                                   (i == 0 ? 600'000'000u : 0u),
                               0,
                               0.05,
                               {{ms, ms * 1.3, ms * 3, ms * 10}}});
    input.devices.push_back(std::move(device));
  }
  for (uint32_t a = 0; a < devices; ++a) {
    for (uint32_t b = a + 1; b < devices; ++b) {
      const double rtt = a % sites == b % sites ? 0.3 : 8.0 + 3 * (a % sites + b % sites);
      input.links.push_back({a, b, rtt * between(1 - noise, 1 + noise), 1e8});
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  const auto devices = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 64);
  const auto layers = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 128);
  struct Case {
    const char* name;
    uint32_t sites;
    double noise;
    bool same_layers;
  };
  for (const Case& one :
       {Case{"uniform links", 1, 0, true}, Case{"4 sites", 4, 0, true}, Case{"8 sites", 8, 0, true},
        Case{"4 sites, measured", 4, 0.1, true}, Case{"4 sites, hybrid model", 4, 0, false}}) {
    for (const auto objective : {Objective::kFastest, Objective::kThroughput, Objective::kMemory}) {
      auto input = room(devices, layers, one.sites, one.noise, one.same_layers);
      input.objective = objective;
      std::vector<double> times;
      tandem::Result<tandem::ring::Plan> plan = tandem::invalid("");
      for (int i = 0; i < 9; ++i) {
        const auto start = std::chrono::steady_clock::now();
        plan = tandem::ring::plan(input);
        times.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
      }
      if (!plan.ok()) {
        std::fprintf(stderr, "%s\n", plan.error().message.c_str());
        return 1;
      }
      std::sort(times.begin(), times.end());
      std::printf("%-22s %-10s %6.1f ms, %zu stages, lap %.1f ms, %s\n", one.name,
                  std::string(name(objective)).c_str(), times[times.size() / 2],
                  plan->stages.size(), plan->lap_ms,
                  plan->shortage ? "short"
                  : plan->proved ? "the optimum"
                                 : ("at most " + std::to_string(plan->beyond_ms) + " ms and " +
                                    std::to_string(plan->beyond_load) + " times the load from it")
                                       .c_str());
    }
  }
  return 0;
}
