// Any text as the target and the range of a request to a hub.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hub/server/http.h"

using namespace tandem::hub;

namespace {

void check(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const uint64_t length = uint64_t{data[0]} * 1000;
    const auto range = parse_range(text, length);
    if (!range.ok() || !range->has_value()) return 0;
    const auto [offset, count] = **range;
    if (count == 0 || offset >= length || count > length - offset) std::abort();
    return 0;
  }
  Request request;
  if (!parse_target(text, request).ok()) return 0;
  for (const auto& segment : request.path) check(segment);
  for (const auto& [name, value] : request.query) {
    check(name);
    check(value);
    if (query_number(request, name, 0, 60) > 60) std::abort();
  }
  return 0;
}
