// tandem: one model, split by layers over several processes, the same answer however it is split.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "ring/worker.h"

namespace tandem::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(Arguments);
};

constexpr Command kCommands[] = {
    {"run", "answer one prompt", run_command},
    {"chat", "talk with a model", chat_command},
    {"worker", "lend this machine's memory and cores to hosts", worker_command},
#if defined(TANDEM_HUB)
    {"hub", "run the hub that rooms and devices meet at", hub_command},
#endif
    {"room", "make a room for others to join, or show one", room_command},
    {"join", "join a room, to ask it for answers", join_command},
    {"devices", "list devices at a hub", devices_command},
    {"settings", "show or change what a device lends", settings_command},
    {"org", "an organization at a hub: its members and keys", org_command},
    {"pull", "fetch a model, or some of its layers", pull_command},
    {"models", "show what a model needs, without loading it", models_command},
    {"probe", "measure devices and the ways between them", probe_command},
    {"plan", "show which layers would lie where, and how fast that is", plan_command},
    {"logits", "write a model's logits for given tokens, and their hash", logits_command},
    {"perplexity", "measure how well a model predicts a text", perplexity_command},
    {"tokenize", "show the tokens of a text", tokenize_command},
    {"bench", "measure the speed of a model here", bench_command},
    {"doctor", "find out what is wrong here, and what to do", doctor_command},
    {"verify", "check this machine's kernels against the reference", verify_command},
};

std::string help() {
  std::string text =
      "Tandem runs one language model split by layers over several devices. The answer depends on\n"
      "the model, the prompt and the seed, and on nothing else.\n\n"
      "Usage: tandem COMMAND [FLAGS]\n\n";
  for (const Command& command : kCommands) {
    const std::string name = command.name;
    text += "  " + name + std::string(12 - name.size(), ' ') + command.summary + "\n";
  }
  text +=
      "\n'tandem COMMAND --help' shows a command's flags and examples. Begin with\n"
      "  tandem run --local 3 \"Tell me a story about a fox.\"\n";
  return text;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    note(help());
    return kWrongUse;
  }
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") {
    write_out(help());
    return kSuccess;
  }
  if (first == "--version") {
    write_out(ring::software_version() + ", arithmetic contract " +
              std::to_string(ring::contract_version()) + "\n");
    return kSuccess;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (first == command.name) return command.run(Arguments(arguments).subspan(1));
    names.emplace_back(command.name);
  }
  const std::string guess = nearest(first, names);
  note("tandem: unknown command '" + first + "'" +
       (guess.empty() ? "" : "; did you mean '" + guess + "'?") + "\nSee 'tandem --help'.\n");
  return kWrongUse;
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  tandem::cli::install_signals();
  try {
    return tandem::cli::dispatch({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) {
    tandem::cli::note("tandem: out of memory\n");
  } catch (const std::exception& error) {
    tandem::cli::note(std::string("tandem: ") + error.what() + "\n");
  }
  return tandem::cli::kFailure;
}
