// What a device says of the machine that it runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::room {

/// Numeric addresses of this machine's interfaces that are up, those that others may reach before
/// the loopback's; without IPv6 ones of a link. At most 16.
std::vector<std::string> own_addresses();
/// The same for all processes of one machine until it restarts, and nothing that tells which it is.
std::string machine_mark();
/// The same for all that reach each other by the loopback address.
std::string loopback_mark();

/// Percent that a battery in use holds; nothing if it is plugged in or has none.
std::optional<double> battery_percent();
/// Of the hottest sensor of the processor, in degrees Celsius; nothing if there is none.
std::optional<double> temperature();

}  // namespace tandem::room
