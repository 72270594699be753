// The cache of pulled models, as commands see it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem::cli {

/// $TANDEM_MODELS_LIMIT in bytes, else 200 GiB. Error: kInvalid.
Result<uint64_t> models_limit();
/// The folder of a pulled model "ORG/NAME[@REV]", if there is one.
std::optional<std::filesystem::path> pulled_model(const std::string& name);
/// `name` could be that of a model to pull, with an organization.
bool pullable(const std::string& name);
/// `tandem models` without a path: what is pulled, and how much of it.
int list_pulled(bool json);
/// `tandem models --remove NAME`.
int remove_pulled(const std::string& name, bool json);

}  // namespace tandem::cli
