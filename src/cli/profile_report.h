// What `tandem bench --profile` says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/profile.h"

namespace tandem::cli {

struct ProfileReport {
  kernels::PassTimes decode;   ///< passes of one token
  kernels::PassTimes prefill;  ///< of several
  double bandwidth = 0;        ///< bytes a second that this machine reads
  double peak = 0;             ///< multiply-adds a second that it does; 0 if not known
};

nlohmann::ordered_json profile_json(const ProfileReport& report);
std::string profile_text(const ProfileReport& report);

}  // namespace tandem::cli
