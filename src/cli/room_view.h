// What `tandem room LINK` shows: a room's devices, what they hold, and what they do now.
#pragma once

#include <string>

#include "room/json.h"

namespace tandem::cli {

/// Of a room as the hub shows it (docs/api.md), for programs; one line.
std::string room_json(const room::Json& room);
/// For people.
std::string room_text(const room::Json& room);

}  // namespace tandem::cli
