// What people and monitoring look at: the status page, health, metrics. Numbers only.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "hub/server/core.h"
#include "hub/server/signals.h"

namespace tandem::hub {
namespace {

constexpr int64_t kOnlineMs = 45000;

struct Counts {
  int64_t devices = 0;
  int64_t rooms = 0;
  int64_t members = 0;
  int64_t waiting = 0;
  int64_t queued = 0;
  int64_t leased = 0;
  int64_t file_bytes = 0;
};

Result<Counts> count_all(Core& core) {
  Counts counts;
  const Status counted = core.database->reading([&](Connection& connection) -> Status {
    const auto one = [&](const char* sql, int64_t& value) -> Status {
      TANDEM_ASSIGN(const Rows rows, connection.run(sql, {}));
      value = number_of(rows.at(0), 0);
      return {};
    };
    TANDEM_TRY(one("SELECT count(*) FROM devices", counts.devices));
    TANDEM_TRY(one("SELECT count(*) FROM rooms", counts.rooms));
    TANDEM_TRY(one("SELECT count(*) FROM room_members WHERE state = 'in'", counts.members));
    TANDEM_TRY(one("SELECT count(*) FROM room_members WHERE state = 'waiting'", counts.waiting));
    TANDEM_TRY(one("SELECT count(*) FROM jobs WHERE state = 'queued'", counts.queued));
    TANDEM_TRY(one("SELECT count(*) FROM jobs WHERE state = 'leased'", counts.leased));
    return one("SELECT COALESCE(SUM(size), 0) FROM files", counts.file_bytes);
  });
  if (!counted.ok()) return counted.error();
  return counts;
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// True for names that a page of somebody else's can't make a browser send here: addresses,
/// localhost, this machine's own name. Others may have been pointed here by their owner.
bool own_host(const Core& core, std::string host) {
  if (host.starts_with('[')) return true;
  host = host.substr(0, host.find(':'));
  const bool address = !host.empty() && host.find_first_not_of("0123456789.") == std::string::npos;
  return address || host == "localhost" || host == core.machine || host == core.machine + ".local";
}

}  // namespace

Response status_page(Call& call) {
  if (!own_host(call.core, call.request.host)) {
    return refusal(421, "invalid", "ask for this page by the machine's address or own name");
  }
  const auto counts = count_all(call.core);
  if (!counts.ok()) return refusal(503, "io", "the hub's store does not answer");
  const int64_t now = now_ms();
  const auto row = [](const char* name, int64_t value) {
    return std::string("<tr><td>") + name + "</td><td>" + std::to_string(value) + "</td></tr>\n";
  };
  Response response;
  response.content_type = "text/html; charset=utf-8";
  response.fields = {{"Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"},
                     {"X-Frame-Options", "DENY"},
                     {"Referrer-Policy", "no-referrer"}};
  response.body =
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Tandem hub</title>\n"
      "<style>body{font:16px sans-serif;margin:3em}td{padding:.2em 2em .2em 0}</style>\n"
      "<h1>Tandem hub</h1>\n<table>\n" +
      row("devices online", static_cast<int64_t>(call.core.presence.count_since(now - kOnlineMs))) +
      row("devices known", counts->devices) + row("rooms", counts->rooms) +
      row("members of rooms", counts->members) + row("waiting in lobbies", counts->waiting) +
      row("jobs queued", counts->queued) + row("jobs under way", counts->leased) +
      row("bytes of files", counts->file_bytes) +
      row("seconds since the start", (now - call.core.started) / 1000) +
      "</table>\n<p>A room's link is opened with <code>tandem join</code>.</p>\n</html>\n";
  return response;
}

Response health(Call& call) {
  // Says "ok" only if the store answers: a hub that can't do anything is not healthy.
  Response response = respond_reading(call.core, [](Connection& connection) -> Result<Response> {
    TANDEM_TRY(connection.run("SELECT value FROM counters WHERE name = 'fence'", {}));
    return reply({{"status", "ok"}, {"now", now_ms()}, {"api", kHubApi}});
  });
  return response;
}

Response metrics(Call& call) {
  const auto counts = count_all(call.core);
  if (!counts.ok()) return refusal(503, "io", "the hub's store does not answer");
  const ServerFigures& figures = *call.core.figures;
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, uint64_t value) {
    text += std::string("# HELP tandem_hub_") + name + " " + help + "\n# TYPE tandem_hub_" + name +
            " " + type + "\ntandem_hub_" + name + " " + std::to_string(value) + "\n";
  };
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    add(name, "gauge", help, static_cast<uint64_t>(value));
  };
  gauge("devices_online", "Devices heard of within 45 s.",
        static_cast<int64_t>(call.core.presence.count_since(now_ms() - kOnlineMs)));
  gauge("devices", "Devices known.", counts->devices);
  gauge("rooms", "Rooms open.", counts->rooms);
  gauge("room_members", "Members of rooms.", counts->members);
  gauge("lobby_waiting", "Devices that wait in lobbies.", counts->waiting);
  gauge("jobs_queued", "Jobs that wait for their device.", counts->queued);
  gauge("jobs_leased", "Jobs under way.", counts->leased);
  gauge("file_bytes", "Bytes of files for jobs.", counts->file_bytes);
  gauge("waiting_requests", "Requests that wait for events.",
        static_cast<int64_t>(call.core.signals->waiting()));
  gauge("relays", "Relayed pairs of streams.", static_cast<int64_t>(figures.relays_now.load()));
  gauge("connections", "Connections open.", static_cast<int64_t>(figures.connections_now.load()));
  gauge("resident_bytes", "Memory of the process.", static_cast<int64_t>(resident_bytes()));
  gauge("uptime_seconds", "Seconds since the start.", (now_ms() - call.core.started) / 1000);
  add("connections_total", "counter", "Connections accepted.", figures.connections_all);
  add("connections_refused_total", "counter", "Connections over a limit.",
      figures.connections_refused);
  add("requests_total", "counter", "Requests.", figures.requests);
  add("requests_4xx_total", "counter", "Requests refused.", figures.failures_4xx);
  add("requests_5xx_total", "counter", "Requests that the hub failed.", figures.failures_5xx);
  add("request_microseconds_total", "counter", "Time in handlers, waits left out.",
      figures.request_us);
  add("relay_bytes_total", "counter", "Bytes relayed.", figures.relay_bytes);
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = std::move(text);
  return response;
}

}  // namespace tandem::hub
