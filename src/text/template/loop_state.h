// What `loop` knows inside a loop.
#pragma once

#include <memory>
#include <optional>

#include "text/template/value.h"

namespace tandem::text::jinja {

struct LoopState {
  std::shared_ptr<const List> items;
  size_t index = 0;  ///< from 0
  int64_t depth = 1;
  std::optional<List> last_changed;
};

/// `loop.name`; undefined if `loop` has no such member.
Value loop_member(const std::shared_ptr<LoopState>& loop, std::string_view name);

}  // namespace tandem::text::jinja
