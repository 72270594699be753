// Any text as what a hub's client reads: links, codes, answers' headers, settings.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hub/http_client.h"
#include "hub/link.h"
#include "hub/secret.h"
#include "hub/settings.h"

using namespace tandem::hub;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: {
      const auto link = parse_link(text);
      if (!link.ok()) return 0;
      const auto again = parse_link(link->text());
      if (!again.ok() || again->text() != link->text()) std::abort();
      return 0;
    }
    case 1: {
      const auto answer = parse_answer_header(text);
      if (answer.ok()) (void)body_length(*answer).ok();
      return 0;
    }
    case 2: {
      const auto settings = parse_settings(text);
      if (!settings.ok()) return 0;
      const std::string once = settings_json(*settings);
      const auto again = parse_settings(once);
      if (!again.ok() || settings_json(*again) != once) std::abort();
      return 0;
    }
    case 3: {
      const auto settings = parse_settings_toml(text);
      if (settings.ok() && !parse_settings(settings_json(*settings)).ok()) std::abort();
      return 0;
    }
    default: {
      const auto bytes = from_base64url(text);
      if (bytes.has_value() && base64url(*bytes) != text) std::abort();
      return 0;
    }
  }
}
