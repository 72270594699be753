// Settings of a file of TOML, on their way to those of JSON.
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <toml.hpp>

#include "hub/settings.h"

namespace tandem::hub {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxFile = 65536;
/// Brackets, braces and dots in the file: each may be a level of nesting, which costs the library
/// stack. 64 entries of hours have 258 of them.
constexpr ptrdiff_t kMaxNesting = 512;

Error wrong(size_t line, const std::string& what) {
  return invalid("settings: line " + std::to_string(line) + ": " + what);
}

/// A value as JSON; null for what JSON has no form of (times, infinities).
Json to_json(const toml::value& value) {
  switch (value.type()) {
    case toml::value_t::table: {
      Json object = Json::object();
      for (const auto& [key, one] : value.as_table()) object[key] = to_json(one);
      return object;
    }
    case toml::value_t::array: {
      Json list = Json::array();
      for (const auto& one : value.as_array()) list.push_back(to_json(one));
      return list;
    }
    case toml::value_t::string:
      return value.as_string().str;
    case toml::value_t::boolean:
      return value.as_boolean();
    case toml::value_t::floating:
      return value.as_floating();
    case toml::value_t::integer: {
      // JSON tells numbers that can't be negative apart.
      const int64_t number = value.as_integer();
      return number >= 0 ? Json(static_cast<uint64_t>(number)) : Json(number);
    }
    default:
      return nullptr;
  }
}

/// The first line of the library's report, which also draws the place in the file.
std::string first_line(std::string_view report) {
  constexpr std::string_view kMark = "[error] ";
  if (report.starts_with(kMark)) report.remove_prefix(kMark.size());
  return std::string(report.substr(0, report.find('\n')));
}

}  // namespace

Result<OwnerSettings> parse_settings_toml(std::string_view toml) {
  if (toml.size() > kMaxFile) {
    return invalid("settings: " + std::to_string(toml.size()) + " bytes; expected 65536 at most");
  }
  // No setting needs more than ASCII, and no text here can then be half a character.
  const auto foreign = std::find_if(toml.begin(), toml.end(), [](unsigned char c) {
    return c >= 127 || (c < 32 && c != '\n' && c != '\r' && c != '\t');
  });
  if (foreign != toml.end()) {
    return wrong(1 + static_cast<size_t>(std::count(toml.begin(), foreign, '\n')),
                 "expected ASCII characters only");
  }
  if (std::count_if(toml.begin(), toml.end(),
                    [](char c) { return c == '[' || c == '{' || c == '.'; }) > kMaxNesting) {
    return invalid("settings: expected at most 512 of the characters [, { and .");
  }
  // The library reports with exceptions; they end here.
  try {
    std::istringstream stream{std::string(toml)};
    return parse_settings(to_json(toml::parse(stream)).dump());
  } catch (const toml::exception& error) {
    return wrong(error.location().line(), first_line(error.what()));
  } catch (const std::exception& error) {
    return invalid(std::string("settings: ") + first_line(error.what()));
  }
}

}  // namespace tandem::hub
