#include "ring/worker.h"

#include <filesystem>
#include <utility>

#include "ring/worker_engine.h"

namespace tandem::ring {

Result<std::unique_ptr<Worker>> Worker::start(WorkerOptions options) {
  if (options.threads < 1 || options.threads > 256) {
    return invalid("a worker of " + std::to_string(options.threads) +
                   " threads, expected 1 to 256");
  }
  TANDEM_ASSIGN(const wire::Address address, wire::parse_address(options.listen));
  std::optional<weights::ModelLibrary> library;
  if (!options.models.empty()) {
    TANDEM_ASSIGN(library, weights::ModelLibrary::open(options.models));
  }
  TANDEM_ASSIGN(wire::Listener listener, wire::Listener::open(address));
  return std::unique_ptr<Worker>(new Worker(
      std::make_unique<WorkerEngine>(std::move(options), std::move(listener), std::move(library))));
}

Worker::Worker(std::unique_ptr<WorkerEngine> engine) : engine_(std::move(engine)) {}
Worker::~Worker() = default;
const std::string& Worker::address() const {
  return engine_->address();
}
void Worker::adopt(wire::Socket client) {
  engine_->adopt(std::move(client));
}
void Worker::stop() {
  engine_->stop();
}
void Worker::serve() {
  engine_->serve();
}
uint64_t Worker::shared_bytes() const {
  return engine_->shared_bytes();
}

uint64_t Worker::memory_used() const {
  return engine_->cache().used();
}
size_t Worker::stages() const {
  return engine_->cache().stages();
}
std::string Worker::metrics() const {
  return engine_->metrics();
}
size_t Worker::sessions() const {
  return engine_->sessions();
}

uint64_t Worker::memory_limit() const {
  return engine_->memory_limit();
}

void Worker::set_memory(uint64_t limit) {
  engine_->set_memory(limit);
}
std::vector<wire::Fingerprint> Worker::hosts() const {
  return engine_->hosts();
}

std::string listening_line(const std::string& address) {
  return "tandem worker listening on " + address;
}

}  // namespace tandem::ring
