// Reading JSON that came from other devices: what is missing or of another type is empty or 0, and
// no text may move a terminal's cursor.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem::room {

using Json = nlohmann::json;

/// Of an object's member, without control characters and cut to 400 bytes; empty if it is no text.
inline std::string text_of(const Json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return "";
  std::string text = found->get<std::string>().substr(0, 400);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

inline int64_t number_of(const Json& object, const char* name) {
  if (!object.is_object()) return 0;
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

/// 0 also for what is negative.
inline uint64_t size_of(const Json& object, const char* name) {
  const int64_t value = number_of(object, name);
  return value < 0 ? 0 : static_cast<uint64_t>(value);
}

/// An object's member; null if it has none of that name.
inline const Json& part_of(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

inline std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::room
