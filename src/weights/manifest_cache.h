// Manifests that were computed before, kept on disk so that a model is hashed once.
#pragma once

#include <filesystem>
#include <optional>

#include "weights/checkpoint.h"
#include "weights/manifest.h"

namespace tandem::weights {

/// manifests in cache_folder() (packed_cache.h); empty if that is.
std::filesystem::path manifest_cache_folder();

/// The manifest kept for exactly the files of this checkpoint, if there is one that can be trusted.
std::optional<Manifest> load_manifest(const Checkpoint& checkpoint);

/// Keeps a manifest whose hashing began at `started_ns` (time since 1970). Does nothing if a file
/// was written to so shortly before that another write could have left the same time. Failing is
/// not an error: it costs time at the next start.
void store_manifest(const Checkpoint& checkpoint, const Manifest& manifest, int64_t started_ns);

}  // namespace tandem::weights
