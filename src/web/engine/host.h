// What the module asks of the JavaScript that holds it.
#pragma once

#include <cstdint>

namespace tandem::web {

extern "C" {

/// Copies `length` bytes at `offset` of file `file` (a number that the host gave it) to `bytes`.
/// 0 if all were there. Called on the engine's thread only, while it loads.
__attribute__((import_module("tandem"), import_name("read"))) int32_t tandem_host_read(
    uint32_t file, double offset, void* bytes, uint32_t length);

/// Bytes of tensors quantized so far and in all. Not 0: stop loading.
__attribute__((import_module("tandem"), import_name("progress"))) int32_t tandem_host_progress(
    double done, double total);

}  // extern "C"

}  // namespace tandem::web
