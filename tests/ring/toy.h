// A stage that computes a made-up function of everything before a token and of its layers' weights,
// on which faults can be switched on; and a model made of random tensors for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/stage.h"
#include "ring/host.h"
#include "ring/worker.h"
#include "weights/manifest.h"

namespace tandem::toy {

/// Faults and costs of all toy stages made by one loader; may change while they run.
struct Behaviour {
  std::atomic<uint32_t> pass_us{0};    ///< computed (not slept) per pass
  std::atomic<uint32_t> token_us{0};   ///< and per token
  std::atomic<bool> hang{false};       ///< a pass waits until this is false again
  std::atomic<bool> not_finite{false};
  std::atomic<bool> wrong_size{false};
  std::atomic<bool> fail{false};       ///< "the toy broke"
  std::atomic<uint32_t> load_ms{0};    ///< slept per tensor
  std::atomic<uint32_t> loads{0};      ///< tensors loaded so far
};

ring::StageLoader loader(std::shared_ptr<Behaviour> behaviour = std::make_shared<Behaviour>());

/// A small Llama's config.json.
std::string config_json(uint32_t layers = 6, uint32_t hidden = 64, uint32_t context = 1024);

/// All layers' tensors with random contents.
class Model final : public weights::TensorSource {
 public:
  explicit Model(uint32_t layers = 6, uint32_t hidden = 64, uint32_t context = 1024);
  const weights::TensorInfo* find(std::string_view tensor) const override;
  Result<weights::TensorData> read(std::string_view tensor) override;

  std::string json;
  model::ModelConfig config;
  weights::Manifest manifest;
  std::map<std::string, std::vector<std::byte>, std::less<>> contents;
  std::map<std::string, uint64_t, std::less<>> reads;  ///< how often each was read
  std::mutex mutex;
};

/// Some hidden states that depend on `seed`.
model::HiddenStates input(const Model& model, uint32_t tokens, uint32_t seed = 1);
/// Rows [first, first + count).
model::HiddenStates rows(const model::HiddenStates& hidden, uint32_t first, uint32_t count);

/// Options of a ring over `workers`, with the toy for the host's own layers.
ring::RingOptions options(Model& model, std::vector<ring::RingWorker> workers);

/// A worker in this process that runs toy stages.
std::unique_ptr<ring::Worker> worker(std::shared_ptr<Behaviour> behaviour, uint64_t memory = 0);

}  // namespace tandem::toy
