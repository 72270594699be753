// tandem settings: what a device lends, and when.
#include "hub/settings.h"

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/output.h"
#include "room/device_folder.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMaxFile = 1 << 20;

struct Changes {
  uint64_t memory = 0;
  std::string hours;
  std::string time_zone;
  std::string kinds;
  uint32_t battery = 0;
  uint32_t temperature = 0;
  bool pause = false;
  bool resume = false;
  std::string file;
};

/// What the flags that were given make of the settings so far.
Result<hub::OwnerSettings> changed(const Flags& flags, const Changes& changes,
                                   hub::OwnerSettings settings) {
  if (!changes.file.empty()) {
    TANDEM_ASSIGN(const std::string text, hub::read_small_file(changes.file, kMaxFile, false));
    auto parsed = hub::parse_settings_toml(text);
    if (!parsed.ok()) return parsed.error().in(changes.file);
    settings = std::move(*parsed);
  }
  if (flags.given("--memory")) settings.memory = changes.memory;
  if (changes.pause) settings.paused = true;
  if (changes.resume) settings.paused = false;
  if (flags.given("--time-zone")) settings.time_zone = changes.time_zone;
  if (flags.given("--battery")) settings.battery = changes.battery;
  if (flags.given("--temperature")) settings.temperature = changes.temperature;
  if (flags.given("--kinds")) {
    settings.probe = settings.stage = false;
    for (const std::string& kind : split_commas(changes.kinds)) {
      if (kind == "probe") settings.probe = true;
      if (kind == "stage") settings.stage = true;
      if (kind != "probe" && kind != "stage" && kind != "none") {
        return invalid("--kinds: expected probe, stage or none, found '" + kind + "'");
      }
    }
  }
  if (flags.given("--hours")) {
    settings.hours.clear();
    if (changes.hours != "always") {
      for (const std::string& part : split_commas(changes.hours)) {
        TANDEM_ASSIGN(const hub::Hours hours, hub::parse_hours(part));
        settings.hours.push_back(hours);
      }
    }
  }
  return settings;
}

std::string lines_of(const Json& settings) {
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    const bool size = key == "memory" && value.is_number_unsigned();
    const std::string shown = size && value != 0 ? bytes_text(value.get<uint64_t>()) : value.dump();
    text.append(key).append(key.size() < 12 ? 12 - key.size() : 1, ' ').append(shown).append("\n");
  }
  return text;
}

/// The folder of a worker's device on this machine; empty for the device that asks for answers, if
/// no worker was named and none ever joined a room. Error: kNotFound.
Result<std::filesystem::path> worker_folder(const std::string& name) {
  const auto folder = room::DeviceFolder::of(hub::Home::usual_folder(), name, machine_name());
  std::error_code error;
  if (std::filesystem::exists(folder / "hubs.json", error)) return folder;
  if (name.empty()) return std::filesystem::path();
  return Error{ErrorKind::kNotFound, "no worker called " + name + " ever joined a room here"};
}

}  // namespace

int settings_command(Arguments arguments) {
  std::string address;
  std::string key;
  std::string device = "me";
  std::string name;
  bool json = false;
  Changes changes;
  Flags flags(
      "settings", "[--hub URL] [FLAGS]",
      "Shows what this device lends at a hub, or changes it: the flags that are given. The\n"
      "device hears of it with its next heartbeat, within 15 s.");
  flags.add("--hub", "URL", address, kHubHelp);
  flags.add("--name", "NAME", name,
            "the worker of that name on this machine (default: its first, if there is one)");
  flags.add("--device", "ID", device, "another device of the organization (needs --key)");
  flags.add("--key", "@FILE", key, "an owner's or admin's API key; '-' reads standard input");
  flags.add_size("--memory", changes.memory, "most memory for weights and KV caches");
  flags.add("--pause", changes.pause, "take no work until --resume");
  flags.add("--resume", changes.resume, "take work again");
  flags.add("--hours", "LIST", changes.hours,
            "when it takes work: 22:00-06:00, 'mon-fri 18:00-8:00,sat-sun 0:00-0:00', always");
  flags.add("--time-zone", "NAME", changes.time_zone, "of the hours, such as Europe/Berlin");
  flags.add("--kinds", "LIST", changes.kinds, "kinds of jobs: probe,stage or none");
  flags.add("--battery", "PERCENT", changes.battery, 0, 100, "no work below it; 0: no limit");
  flags.add("--temperature", "C", changes.temperature, 0, 200, "no work above it; 0: no limit");
  flags.add("--file", "FILE", changes.file, "take all settings from a TOML file first");
  flags.add("--json", json, "one JSON object: settings, settings_version");
  flags.add_example("tandem settings --memory 8G --hours 22:00-06:00 --time-zone Europe/Berlin");
  if (const auto code = flags.parse(arguments)) return *code;
  if (changes.pause && changes.resume)
    return flags.wrong_use("--pause and --resume exclude each other");
  const auto folder = worker_folder(name);
  if (!folder.ok()) return fail("settings", folder.error(), json);
  const bool own = key.empty() && device == "me";
  auto access = open_hub(address, key, own ? *folder : std::filesystem::path());
  if (!access.ok()) return fail("settings", access.error(), json);
  auto answer = access->client.device(device);
  if (!answer.ok()) return fail("settings", answer.error(), json);
  bool change = changes.pause || changes.resume;
  for (const char* flag :
       {"--memory", "--hours", "--time-zone", "--kinds", "--battery", "--temperature", "--file"}) {
    change = change || flags.given(flag);
  }
  if (change) {
    const auto before = hub::parse_settings(
        answer->contains("settings") ? (*answer)["settings"].dump() : std::string("{}"));
    if (!before.ok()) return fail("settings", before.error(), json);
    const auto wanted = changed(flags, changes, *before);
    if (!wanted.ok()) return fail("settings", wanted.error(), json);
    answer = access->client.change_settings(device, Json::parse(hub::settings_json(*wanted)));
    if (!answer.ok()) return fail("settings", answer.error(), json);
  }
  const Json result{{"settings", (*answer)["settings"]},
                    {"settings_version", (*answer)["settings_version"]}};
  write_out(json ? result.dump() + "\n" : lines_of(result["settings"]));
  return kSuccess;
}

}  // namespace tandem::cli
