// What happened, one JSON object a line, for programs to read: when, what kind, with whom, and
// numbers. Never a prompt, an answer, a token or a key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/result.h"

namespace tandem::observe {

/// A number or a short text of an event.
using Field = std::pair<std::string_view, std::variant<int64_t, double, std::string_view>>;

/// Any thread. A default one writes nothing.
class EventLog {
 public:
  EventLog() = default;
  /// Appends to a file that only its owner can read if it has to be made; "-" is standard error.
  /// Error: kIo.
  static Result<EventLog> open(const std::string& file);

  /// {"time": "2026-01-31T12:00:00.123Z", "kind": kind, "peer": peer, …}. `peer`: a device, an
  /// address, or empty.
  void write(std::string_view kind, std::string_view peer,
             std::initializer_list<Field> fields = {}) const;
  explicit operator bool() const { return file_ != nullptr; }

 private:
  struct File;
  std::shared_ptr<File> file_;
};

}  // namespace tandem::observe
