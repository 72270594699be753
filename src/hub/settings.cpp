#include "hub/settings.h"

#include <unicode/timezone.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

namespace tandem::hub {
namespace {

using Json = nlohmann::json;
constexpr std::array<std::string_view, 7> kDays{"mon", "tue", "wed", "thu", "fri", "sat", "sun"};
constexpr size_t kMaxHours = 64;
constexpr int64_t kMinute = 60000;
constexpr int64_t kDay = 1440;

Result<uint16_t> parse_time(std::string_view text) {
  const Error wrong =
      invalid("the time is '" + std::string(text.substr(0, 16)) + "'; expected HH:MM");
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon > 2 || text.size() != colon + 3) {
    return wrong;
  }
  unsigned hour = 0;
  unsigned minute = 0;
  const auto a = std::from_chars(text.data(), text.data() + colon, hour);
  const auto b = std::from_chars(text.data() + colon + 1, text.data() + text.size(), minute);
  if (a.ec != std::errc() || a.ptr != text.data() + colon || b.ec != std::errc() ||
      b.ptr != text.data() + text.size() || hour > 24 || minute > 59 ||
      (hour == 24 && minute != 0)) {
    return wrong;
  }
  return static_cast<uint16_t>((hour * 60 + minute) % kDay);
}

Result<uint8_t> parse_day(std::string_view text) {
  const auto found = std::find(kDays.begin(), kDays.end(), text);
  if (found == kDays.end()) {
    return invalid("the day is '" + std::string(text.substr(0, 16)) + "'; expected mon to sun");
  }
  return static_cast<uint8_t>(found - kDays.begin());
}

std::unique_ptr<icu::TimeZone> zone_of(const std::string& name) {
  std::unique_ptr<icu::TimeZone> zone(
      icu::TimeZone::createTimeZone(icu::UnicodeString::fromUTF8(name)));
  if (zone == nullptr || *zone == icu::TimeZone::getUnknown()) return nullptr;
  return zone;
}

Status read_number(const Json& value, const char* key, uint64_t limit, uint64_t& number) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > limit) {
    return invalid(std::string("settings: '") + key + "' has to be a whole number from 0 to " +
                   std::to_string(limit));
  }
  number = value.get<uint64_t>();
  return {};
}

Result<Hours> read_hours(const Json& entry) {
  if (!entry.is_object() || !entry.contains("from") || !entry.contains("to") ||
      !entry["from"].is_string() || !entry["to"].is_string()) {
    return invalid("settings: each entry of 'hours' needs 'from' and 'to'");
  }
  Hours hours;
  TANDEM_ASSIGN(hours.from, parse_time(entry["from"].get<std::string>()));
  TANDEM_ASSIGN(hours.to, parse_time(entry["to"].get<std::string>()));
  for (const auto& [key, value] : entry.items()) {
    if (key == "from" || key == "to") continue;
    if (key != "days") return invalid("settings: unknown key '" + key + "' in 'hours'");
    if (!value.is_array() || value.empty()) return invalid("settings: 'days' has to be a list");
    hours.days = 0;
    for (const Json& day : value) {
      if (!day.is_string()) return invalid("settings: 'days' has to be a list of names");
      TANDEM_ASSIGN(const uint8_t index, parse_day(day.get<std::string>()));
      hours.days = static_cast<uint8_t>(hours.days | (1U << index));
    }
  }
  return hours;
}

Status read_key(const std::string& key, const Json& value, OwnerSettings& settings) {
  uint64_t number = 0;
  if (key == "memory") return read_number(value, "memory", uint64_t{1} << 60, settings.memory);
  if (key == "battery") {
    TANDEM_TRY(read_number(value, "battery", 100, number));
    settings.battery = static_cast<uint32_t>(number);
  } else if (key == "temperature") {
    TANDEM_TRY(read_number(value, "temperature", 200, number));
    settings.temperature = static_cast<uint32_t>(number);
  } else if (key == "paused") {
    if (!value.is_boolean()) return invalid("settings: 'paused' has to be true or false");
    settings.paused = value.get<bool>();
  } else if (key == "kinds") {
    if (!value.is_array()) return invalid("settings: 'kinds' has to be a list");
    settings.probe = settings.stage = false;
    for (const Json& kind : value) {
      if (kind == "probe") {
        settings.probe = true;
      } else if (kind == "stage") {
        settings.stage = true;
      } else {
        return invalid("settings: 'kinds' has to be a list of \"probe\" and \"stage\"");
      }
    }
  } else if (key == "time_zone") {
    if (!value.is_string() || value.get<std::string>().size() > 64 ||
        zone_of(value.get<std::string>()) == nullptr) {
      return invalid("settings: 'time_zone' is unknown; expected a name such as Europe/Berlin");
    }
    settings.time_zone = value.get<std::string>();
  } else if (key == "hours") {
    if (!value.is_array() || value.size() > kMaxHours) {
      return invalid("settings: 'hours' has to be a list of at most 64 entries");
    }
    settings.hours.clear();
    for (const Json& entry : value) {
      TANDEM_ASSIGN(const Hours hours, read_hours(entry));
      settings.hours.push_back(hours);
    }
  } else {
    return invalid("settings: unknown key '" + key.substr(0, 32) + "'");
  }
  return {};
}

Result<OwnerSettings> read_object(const Json& object) {
  if (!object.is_object()) return invalid("settings: expected an object");
  OwnerSettings settings;
  for (const auto& [key, value] : object.items()) TANDEM_TRY(read_key(key, value, settings));
  return settings;
}

std::string time_text(uint16_t minutes) {
  std::string text = "00:00";
  text[0] = static_cast<char>('0' + minutes / 600);
  text[1] = static_cast<char>('0' + minutes / 60 % 10);
  text[3] = static_cast<char>('0' + minutes % 60 / 10);
  text[4] = static_cast<char>('0' + minutes % 10);
  return text;
}

Json hours_json(const Hours& hours) {
  Json days = Json::array();
  for (size_t day = 0; day < kDays.size(); ++day) {
    if ((hours.days >> day & 1) != 0) days.push_back(kDays[day]);
  }
  return {{"days", days}, {"from", time_text(hours.from)}, {"to", time_text(hours.to)}};
}

bool within(const Hours& hours, int64_t weekday, int64_t minute) {
  const auto on = [&](int64_t day) { return (hours.days >> ((day + 7) % 7) & 1) != 0; };
  if (hours.from < hours.to) return on(weekday) && minute >= hours.from && minute < hours.to;
  return (on(weekday) && minute >= hours.from) || (on(weekday - 1) && minute < hours.to);
}

bool within_hours(const OwnerSettings& settings, int64_t now_ms) {
  if (settings.hours.empty()) return true;
  const auto zone = zone_of(settings.time_zone);
  int32_t raw = 0;
  int32_t saving = 0;
  UErrorCode status = U_ZERO_ERROR;
  if (zone != nullptr) zone->getOffset(static_cast<UDate>(now_ms), 0, raw, saving, status);
  const int64_t minutes = (now_ms + raw + saving) / kMinute;
  const int64_t weekday = (minutes / kDay + 3) % 7;  // 1 January 1970 was a Thursday
  return std::any_of(settings.hours.begin(), settings.hours.end(),
                     [&](const Hours& hours) { return within(hours, weekday, minutes % kDay); });
}

}  // namespace

Result<OwnerSettings> parse_settings(std::string_view json) {
  return read_object(Json::parse(json, nullptr, false));
}

std::string settings_json(const OwnerSettings& settings) {
  Json kinds = Json::array();
  if (settings.probe) kinds.push_back("probe");
  if (settings.stage) kinds.push_back("stage");
  Json hours = Json::array();
  for (const Hours& one : settings.hours) hours.push_back(hours_json(one));
  return Json{{"memory", settings.memory},
              {"paused", settings.paused},
              {"kinds", kinds},
              {"time_zone", settings.time_zone},
              {"battery", settings.battery},
              {"temperature", settings.temperature},
              {"hours", hours}}
      .dump();
}

Result<Hours> parse_hours(std::string_view text) {
  Hours hours;
  const auto space = text.find(' ');
  if (space != std::string_view::npos) {
    const std::string_view days = text.substr(0, space);
    text.remove_prefix(space + 1);
    const auto dash = days.find('-');
    TANDEM_ASSIGN(const uint8_t first, parse_day(days.substr(0, dash)));
    uint8_t last = first;
    if (dash != std::string_view::npos) {
      TANDEM_ASSIGN(last, parse_day(days.substr(dash + 1)));
    }
    hours.days = 0;
    for (unsigned day = first;; day = (day + 1) % 7) {
      hours.days = static_cast<uint8_t>(hours.days | (1U << day));
      if (day == last) break;
    }
  }
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) {
    return invalid("the hours are '" + std::string(text.substr(0, 32)) +
                   "'; expected FROM-TO such as 22:00-06:00, with or without days before it");
  }
  TANDEM_ASSIGN(hours.from, parse_time(text.substr(0, dash)));
  TANDEM_ASSIGN(hours.to, parse_time(text.substr(dash + 1)));
  return hours;
}

std::string why_no_work(const OwnerSettings& settings, std::string_view kind,
                        const Condition& condition, int64_t now_ms) {
  if (settings.paused) return "paused by its owner";
  if ((kind == "probe" && !settings.probe) || (kind == "stage" && !settings.stage)) {
    return "its owner does not lend it for " + std::string(kind) + " jobs";
  }
  if (!within_hours(settings, now_ms)) return "outside its owner's hours";
  if (settings.battery > 0 && condition.battery.has_value() &&
      *condition.battery < settings.battery) {
    return "its battery is below " + std::to_string(settings.battery) + " %";
  }
  if (settings.temperature > 0 && condition.temperature.has_value() &&
      *condition.temperature > settings.temperature) {
    return "it is hotter than " + std::to_string(settings.temperature) + " degrees";
  }
  return "";
}

}  // namespace tandem::hub
