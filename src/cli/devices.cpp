// tandem devices: who is known at a hub, and what each lends.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/output.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

int64_t number_of(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_number() ? object[name].get<int64_t>() : 0;
}

std::string ago(int64_t ms) {
  const int64_t seconds = std::max<int64_t>(ms, 0) / 1000;
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 7200) return std::to_string(seconds / 60) + " min";
  return std::to_string(seconds / 3600) + " h";
}

/// Names come from other devices: nothing of them may move a terminal's cursor.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

std::string table_of(const Json& devices) {
  std::vector<std::vector<std::string>> rows{{"name", "device", "kind", "lends", "heard", "state"}};
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  for (const Json& device : devices) {
    if (!device.is_object()) continue;
    const Json settings =
        device.contains("settings") && device["settings"].is_object() ? device["settings"] : Json();
    const auto lent = static_cast<uint64_t>(number_of(settings, "memory"));
    const std::string why = printable(text_of(device, "why"));
    rows.push_back({printable(text_of(device, "name")), printable(text_of(device, "device")),
                    printable(text_of(device, "kind")), lent == 0 ? "all" : bytes_text(lent),
                    ago(now - number_of(device, "seen")), why.empty() ? "takes work" : why});
  }
  return table(rows, {false, false, false, true, true, false});
}

}  // namespace

int devices_command(Arguments arguments) {
  std::string address;
  std::string key;
  bool json = false;
  Flags flags("devices", "[--hub URL] [FLAGS]",
              "Lists this device and those of its organization as the hub knows them: what each\n"
              "lends, when it was heard of, and why it takes no work if it does not.");
  flags.add("--hub", "URL", address, kHubHelp);
  flags.add("--key", "@FILE", key, "ask with an organization's API key; '-' reads standard input");
  flags.add("--json", json, "one JSON object: devices");
  flags.add_example("tandem devices");
  flags.add_example("tandem devices --hub https://hub.example.org --key @owner.key");
  if (const auto code = flags.parse(arguments)) return *code;
  auto access = open_hub(address, key);
  if (!access.ok()) return fail("devices", access.error(), json);
  const auto devices = access->client.devices();
  if (!devices.ok()) return fail("devices", devices.error(), json);
  if (json) {
    write_out(devices->dump() + "\n");
  } else {
    write_out(table_of(devices->contains("devices") ? (*devices)["devices"] : Json::array()));
  }
  return kSuccess;
}

}  // namespace tandem::cli
