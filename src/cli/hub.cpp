// tandem hub: the meeting point of rooms and devices.
#include "hub/server/hub.h"

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/observe.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "hub/client.h"
#include "hub/mdns.h"

namespace tandem::cli {

int hub_command(Arguments arguments) {
  hub::HubOptions options;
  options.listen = "127.0.0.1:" + std::to_string(hub::kDefaultHubPort);
  std::string data = (hub::Home::usual_folder() / "hub").string();
  std::string models;
  ObserveFlags observe;
  bool no_mdns = false;
  bool find = false;
  Flags flags("hub", "[--listen HOST:PORT] [FLAGS]",
              "Runs the hub that devices find each other through: rooms, jobs, files, a relay. It\n"
              "sees nothing of a conversation. Prints its address once it listens.");
  flags.add("--listen", "HOST:PORT", options.listen,
            "address to listen at (default: 127.0.0.1:7443); port 0 chooses one");
  flags.add("--data", "DIR", data, "folder of its store and certificate");
  flags.add("--store", "URL", options.store,
            "postgresql://USER@HOST/NAME: one for several hubs (default: SQLite in --data)");
  flags.add("--tls", "CERT,KEY", options.tls,
            "its certificate and key as PEM, or 'self' (default): one of its own");
  flags.add("--models", "DIR", models, "serve the files of the models in DIR to devices");
  observe.add(flags, false);
  flags.add("--no-mdns", no_mdns, "don't answer those who look for a hub on the local network");
  flags.add("--find", find,
            "look for hubs on the local network instead, and print their addresses");
  flags.add_example("tandem hub");
  flags.add_example("tandem hub --listen 0.0.0.0:7443 --models ~/models");
  if (const auto code = flags.parse(arguments)) return *code;
  if (find) {
    const auto hubs = hub::find_hubs(std::chrono::milliseconds(1500));
    if (!hubs.ok()) return fail("hub", hubs.error());
    for (const hub::HubAddress& one : *hubs) write_out(one.text() + "\n");
    if (hubs->empty()) note("no hub answers on the local network\n");
    return hubs->empty() ? kFailure : kSuccess;
  }
  options.data = data;
  options.models = models;
  options.mdns = !no_mdns;
  options.log = [](const std::string& line) { note("hub: " + line + "\n"); };
  auto events = observe.open_log();
  if (!events.ok()) return fail("hub", events.error());
  options.events = *events;
  EndSignals end_signals;
  auto running = hub::Hub::start(std::move(options));
  if (!running.ok()) return fail("hub", running.error());
  events->write("listening", (*running)->address().authority(),
                {{"store", std::string_view((*running)->store_name())}});
  write_out("hub listening at " + (*running)->address().text() + "\n");
  end_signals.wait();
  events->write("stopped", (*running)->address().authority());
  return kSuccess;
}

}  // namespace tandem::cli
