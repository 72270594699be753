// What an owner lends of a device, and when: set at the hub and delivered with each heartbeat, or
// written in a local file of TOML. The same keys in both:
//
//   memory = 8589934592           # bytes at most for weights and KV caches; 0 or missing: no limit
//   paused = false
//   kinds = ["probe", "stage"]    # kinds of jobs that it takes
//   time_zone = "Europe/Berlin"   # of the hours; an IANA name, UTC if missing
//   battery = 20                  # no work below so many percent unless plugged in; 0: no limit
//   temperature = 90              # no work above so many degrees Celsius; 0: no limit
//   [[hours]]                     # none: at any time
//   days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]   # missing: all
//   from = "22:00"
//   to = "06:00"                  # not after `from`: ends on the next day
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::hub {

struct Hours {
  uint8_t days = 127;  ///< bit 0 is Monday
  uint16_t from = 0;   ///< minutes after midnight, 0 to 1439
  uint16_t to = 0;     ///< as above; at most `from`: of the next day
};

struct OwnerSettings {
  uint64_t memory = 0;
  bool paused = false;
  bool probe = true;  ///< takes probe jobs
  bool stage = true;  ///< takes stage jobs
  std::string time_zone = "UTC";
  uint32_t battery = 0;
  uint32_t temperature = 0;
  std::vector<Hours> hours;
};

/// Of JSON: missing keys have their defaults, unknown ones are errors. Error: kInvalid.
Result<OwnerSettings> parse_settings(std::string_view json);
/// Of a TOML file's text. Error: kInvalid (with the line).
Result<OwnerSettings> parse_settings_toml(std::string_view toml);
/// All keys, as JSON in one line.
std::string settings_json(const OwnerSettings& settings);
/// "mon-fri 22:00-06:00", "8:00-18:00": one entry of hours as the command line takes it. Error:
/// kInvalid.
Result<Hours> parse_hours(std::string_view text);

/// What a device last said of itself.
struct Condition {
  std::optional<double> battery;  ///< percent; nothing: plugged in, or it has none
  std::optional<double> temperature;
};
/// Why a device takes no job of that kind ("probe" or "stage") at a time (ms since 1970), for a
/// user to read; empty if it does.
std::string why_no_work(const OwnerSettings& settings, std::string_view kind,
                        const Condition& condition, int64_t now_ms);

}  // namespace tandem::hub
