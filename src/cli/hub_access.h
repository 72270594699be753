// What commands that talk to a hub share.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "hub/client.h"

namespace tandem::cli {

inline constexpr const char* kHubHelp =
    "the hub's address as it prints it (default: the one hub known here)";

/// Secrets stay out of the process list: "@FILE" stands for a file's text, "-" for standard input,
/// anything else for itself; without the white space around it. Errors: kNotFound, kIo, kInvalid.
Result<std::string> secret_argument(const std::string& given);

/// This machine's name, as its device is called unless told otherwise.
std::string machine_name();

/// The folder of this user's device, and a client of the hub that is named, or of the only one
/// known if none is. `key`: an organization's key (see secret_argument); the client then speaks
/// with it, or empty.
struct HubAccess {
  hub::Home home;
  hub::Client client;
};
/// `folder`: of another device of this user than the one that asks for answers, or empty.
Result<HubAccess> open_hub(const std::string& address, const std::string& key,
                           const std::filesystem::path& folder = {});

}  // namespace tandem::cli
