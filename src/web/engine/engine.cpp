#include "web/engine/engine.h"

#include <utility>

#include "web/engine/host.h"

namespace tandem::web {
namespace {

bool progress(uint64_t done, uint64_t total) {
  return tandem_host_progress(static_cast<double>(done), static_cast<double>(total)) == 0;
}

Error not_loaded(std::string_view what) {
  return invalid(std::string(what) + " not loaded yet");
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::make(std::string_view config, const Options& options) {
  std::unique_ptr<Engine> engine(new Engine);
  TANDEM_ASSIGN(engine->config_, model::parse_config(config));
  engine->options_ = options;
  engine->pool_ = std::make_shared<ThreadPool>(options.threads);
  return engine;
}

model::StageOptions Engine::stage_options(uint32_t first, uint32_t last) const {
  model::StageOptions options;
  options.first_layer = first;
  options.last_layer = last;
  options.weights = options_.weights;
  options.threads = options_.threads;
  options.isa = options_.isa;
  options.pool = pool_;
  return options;
}

void Engine::find_prefix() {
  model::resolve_prefix(config_,
                        [&](std::string_view name) { return source_.find(name) != nullptr; });
}

Status Engine::load_layers(uint32_t first, uint32_t last) {
  sequences_.clear();
  stage_.reset();  // two stages might not fit
  find_prefix();
  TANDEM_ASSIGN(stage_, model::Stage::load(config_, stage_options(first, last), source_, progress));
  return {};
}

Status Engine::load_ends() {
  ends_.reset();
  find_prefix();
  TANDEM_ASSIGN(ends_, model::Ends::load(config_, stage_options(0, 0), source_, progress));
  return {};
}

Result<uint32_t> Engine::new_sequence() {
  if (stage_ == nullptr) return not_loaded("layers are");
  const uint32_t id = next_sequence_++;
  sequences_.emplace(id, stage_->new_sequence());
  return id;
}

Status Engine::free_sequence(uint32_t id) {
  if (sequences_.erase(id) == 0) return invalid("no sequence " + std::to_string(id));
  return {};
}

Result<model::Sequence*> Engine::sequence(uint32_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return invalid("no sequence " + std::to_string(id));
  return found->second.get();
}

Status Engine::embed(std::span<const uint32_t> tokens, uint32_t position) {
  if (ends_ == nullptr) return not_loaded("the embedding is");
  TANDEM_TRY(resize_hidden(static_cast<uint32_t>(tokens.size())));
  TANDEM_ASSIGN(hidden_, ends_->embed(tokens, position));
  return {};
}

Status Engine::resize_hidden(uint32_t tokens) {
  if (tokens > kMaxPass) {
    return invalid("a pass of " + std::to_string(tokens) + " tokens; at most " +
                   std::to_string(kMaxPass));
  }
  hidden_.resize(tokens, config_.hidden_size);
  return {};
}

Status Engine::run(uint32_t id, uint32_t position) {
  if (stage_ == nullptr) return not_loaded("layers are");
  TANDEM_ASSIGN(model::Sequence * own, sequence(id));
  return stage_->run(*own, position, hidden_);
}

Status Engine::compute_logits(uint32_t first, uint32_t count) {
  if (ends_ == nullptr) return not_loaded("the output head is");
  // A vector's size is 32 bits wide here.
  if (uint64_t{count} * config_.vocab > UINT32_MAX / 8) {
    return Error{ErrorKind::kMemory, "logits of " + std::to_string(count) + " tokens at once"};
  }
  return ends_->logits(hidden_, first, count, logits_);
}

uint64_t Engine::bytes() const {
  return (stage_ != nullptr ? stage_->bytes() : 0) + (ends_ != nullptr ? ends_->bytes() : 0);
}

}  // namespace tandem::web
