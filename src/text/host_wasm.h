// What src/text asks of the JavaScript that holds the module.
#pragma once

#include <cstdint>

namespace tandem::text {

extern "C" {

/// `length` bytes of UTF-8 in the normal form ("NFC", "NFD", "NFKC", "NFKD": 0 to 3), as
/// String.prototype.normalize gives it, or in full upper case (4) or lower case (5): the address of
/// a 32-bit length and as many bytes, to be given to free(); null if memory is exhausted.
__attribute__((import_module("tandem"), import_name("transform"))) void* tandem_host_transform(
    uint32_t form, const char* text, uint32_t length);

}  // extern "C"

}  // namespace tandem::text
