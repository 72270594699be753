// The commands of `tandem`. Each takes what follows its name and returns the exit code.
#pragma once

#include <span>
#include <string>

namespace tandem::cli {

using Arguments = std::span<const std::string>;

int run_command(Arguments arguments);
int chat_command(Arguments arguments);
int worker_command(Arguments arguments);
int logits_command(Arguments arguments);
int perplexity_command(Arguments arguments);
int tokenize_command(Arguments arguments);
int bench_command(Arguments arguments);
int verify_command(Arguments arguments);
int models_command(Arguments arguments);
int pull_command(Arguments arguments);
int hub_command(Arguments arguments);  ///< if built with TANDEM_HUB
int room_command(Arguments arguments);
int join_command(Arguments arguments);
int devices_command(Arguments arguments);
int settings_command(Arguments arguments);
int org_command(Arguments arguments);
int doctor_command(Arguments arguments);
int probe_command(Arguments arguments);
int plan_command(Arguments arguments);

}  // namespace tandem::cli
