// A model in a folder, and rings over it.
#pragma once

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "ring/host.h"
#include "weights/checkpoint.h"
#include "weights/manifest.h"

namespace tandem::toy {

/// Outlives the rings that are opened with its options. Ends the program if there is no such model.
struct StoredModel {
  explicit StoredModel(const std::filesystem::path& folder)
      : checkpoint(*weights::Checkpoint::open(folder)),
        config(*model::parse_config(checkpoint->config_json())),
        manifest(*weights::make_manifest(*checkpoint, 1, {})) {}

  [[nodiscard]] ring::RingOptions options(std::vector<ring::RingWorker> workers) const {
    ring::RingOptions options;
    options.config_json = checkpoint->config_json();
    options.config = config;
    options.manifest = &manifest;
    options.source = checkpoint.get();
    options.workers = std::move(workers);
    return options;
  }

  std::unique_ptr<weights::Checkpoint> checkpoint;
  model::ModelConfig config;
  weights::Manifest manifest;
};

}  // namespace tandem::toy
