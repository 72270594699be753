// What a hop costs: laps of one token through real workers over loopback, whose stages do nothing,
// so that all that is measured is the ring.
//
//   hop_bench [WORKERS] [WIDTH] [LAPS] [tls]        defaults 2, 4096, 5000, without TLS
//
// Prints the median and 99th percentile of a lap and the median of one of its WORKERS + 1 hops.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "ring/host.h"
#include "ring/worker.h"
#include "weights/manifest.h"

namespace {

using namespace tandem;

class Nothing final : public model::Sequence {
 public:
  uint32_t length() const override { return length_; }
  uint64_t bytes() const override { return 0; }
  Status rollback(uint32_t length) override {
    length_ = length;
    return {};
  }
  uint32_t length_ = 0;
};

class Pass final : public model::Stage {
 public:
  explicit Pass(const model::StageOptions& options) : options_(options) {}
  std::unique_ptr<model::Sequence> new_sequence(uint32_t) override {
    return std::make_unique<Nothing>();
  }
  Status run(model::Sequence& sequence, uint32_t, model::HiddenStates& hidden) override {
    dynamic_cast<Nothing&>(sequence).length_ += hidden.tokens();
    return {};
  }
  const model::StageOptions& options() const override { return options_; }
  uint64_t bytes() const override { return 0; }

 private:
  model::StageOptions options_;
};

Result<std::unique_ptr<model::Stage>> load(const model::ModelConfig&,
                                           const model::StageOptions& options,
                                           weights::TensorSource&, const model::LoadProgress&) {
  return std::unique_ptr<model::Stage>(std::make_unique<Pass>(options));
}

class Empty final : public weights::TensorSource {
 public:
  const weights::TensorInfo* find(std::string_view) const override { return nullptr; }
  Result<weights::TensorData> read(std::string_view) override {
    return Error{ErrorKind::kNotFound, "none"};
  }
};

double at(std::vector<double>& times, double share) {
  const auto place =
      times.begin() + static_cast<long>(share * static_cast<double>(times.size() - 1));
  std::nth_element(times.begin(), place, times.end());
  return *place;
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t count = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 2;
  const uint32_t width = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 4096;
  const uint32_t laps = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 5000;
  const bool secure = argc > 4 && std::string_view(argv[4]) == "tls";
  auto device = [&]() -> Result<std::shared_ptr<const wire::Tls>> {
    if (!secure) return std::shared_ptr<const wire::Tls>();
    TANDEM_ASSIGN(auto identity, wire::Identity::create());
    return wire::Tls::create(std::move(identity), wire::RoomKey{});
  };
  ring::RingOptions options;
  options.config_json =
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",)"
      R"("num_hidden_layers":)" +
      std::to_string(count) + R"(,"hidden_size":)" + std::to_string(width) +
      R"(,"intermediate_size":)" + std::to_string(width) +
      R"(,"num_attention_heads":16,"num_key_value_heads":1,"vocab_size":128,)"
      R"("max_position_embeddings":100000,"rms_norm_eps":1e-5,"rope_theta":10000.0})";
  auto config = model::parse_config(options.config_json);
  if (!config.ok()) return fail(config.error());
  options.config = *config;
  weights::Manifest manifest;
  manifest.config = sha256(options.config_json);
  for (const auto& tensor : model::layer_tensors(*config, 0, count)) {
    manifest.tensors.push_back({tensor, {}});
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.info.name < b.info.name; });
  Empty source;
  options.manifest = &manifest;
  options.source = &source;
  std::vector<std::unique_ptr<ring::Worker>> workers;
  for (uint32_t i = 0; i < count; ++i) {
    ring::WorkerOptions worker;
    worker.load = load;
    auto tls = device();
    if (!tls.ok()) return fail(tls.error());
    worker.tls = *tls;
    auto started = ring::Worker::start(worker);
    if (!started.ok()) return fail(started.error());
    options.workers.push_back({(*started)->address(), {i, i + 1}});
    workers.push_back(std::move(*started));
  }
  auto tls = device();
  if (!tls.ok()) return fail(tls.error());
  options.tls = *tls;
  auto ring = ring::Ring::open(options);
  if (!ring.ok()) return fail(ring.error());
  std::vector<double> times;
  for (uint32_t lap = 0; lap < laps; ++lap) {
    model::HiddenStates hidden;
    hidden.resize(1, width);
    const auto start = std::chrono::steady_clock::now();
    const auto result = (*ring)->forward(std::move(hidden), lap, 1);
    if (!result.ok()) return fail(result.error());
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  const double median = at(times, 0.5);
  std::printf("%u workers%s, %u values a token: lap %.1f us (99 %%: %.1f us), hop %.1f us\n", count,
              secure ? " over TLS" : "", width, median, at(times, 0.99), median / (count + 1));
  return 0;
}
