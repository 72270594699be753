// Loading a stage for a host: what it asked for is checked, found or fetched, and loaded.
#pragma once

#include <memory>

#include "ring/worker.h"
#include "ring/worker_session.h"

namespace tandem::weights {
class ModelLibrary;
}

namespace tandem::ring {

/// Runs on a thread of its own: answers the session's Load with kReady or kRefusal, and returns
/// early once the session is gone. `library` may be null.
void load_session(Session& session, StageCache& cache, const WorkerOptions& options,
                  const weights::ModelLibrary* library);

/// The IO thread's side of the tensor inbox: where the next chunk's bytes go. Error: kInvalid if no
/// chunk of that size is expected.
Result<wire::Connection::Place> place_chunk(TensorInbox& inbox, uint32_t length);
/// A chunk that was placed is complete.
void chunk_arrived(TensorInbox& inbox, uint32_t length);
/// The host can't give the tensor, or left.
void fail_inbox(TensorInbox& inbox, Error error);

}  // namespace tandem::ring
