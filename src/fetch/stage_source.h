// A stage's tensors, fetched one by one into the cache of models and checked against the manifest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "fetch/folder.h"
#include "fetch/pull.h"
#include "fetch/shelf.h"
#include "fetch/source.h"
#include "weights/manifest.h"
#include "weights/source.h"

namespace tandem::fetch {

struct StageSourceOptions {
  ModelName model;                               ///< its revision may be a commit
  std::vector<std::unique_ptr<Source>> sources;  ///< as PullOptions has them
  std::shared_ptr<Shelf> shelf;                  ///< of the store that is fetched into
  std::string slot;                              ///< stage_folder()'s
  std::chrono::milliseconds patience{10000};     ///< for another load that fetches into the folder
  std::string mark;                              ///< left in the folder (Shelf::read()); or empty
  uint64_t limit = 0;                            ///< of the store, in bytes
  const weights::Manifest* manifest = nullptr;   ///< outlives the source
  std::string config_json;                       ///< that the manifest names, or empty: not known
  std::vector<std::string> tensors;              ///< that will be asked for
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(uint64_t done, uint64_t total)> progress;  ///< bytes fetched; may be empty
  std::function<void(const std::string&)> notice;
  /// What the first go brought, by source; may be empty.
  std::function<void(const std::string& source, uint64_t bytes)> fetched;
};

/// Takes the store's folder of that model and revision if what it has of the tensors is the
/// manifest's; else, if a source knows the model's files, one of files that is named by the
/// manifest's hash; else one of tensors alone (shelf.h), for which `config_json` is needed. Fetches
/// what is missing of the tensors in one go, neighbours together; what can't be had so is tried
/// again when its tensor is read. A tensor that the files hold in another type or shape than the
/// manifest names is kNotFound. Errors: those of Pull::describe() and Store::make_room(); kPeer:
/// another process is fetching.
Result<std::unique_ptr<weights::TensorSource>> open_stage_source(StageSourceOptions options);

}  // namespace tandem::fetch
