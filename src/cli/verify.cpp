// tandem verify: the gate that every kernel passes at start-up, with a report.
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "kernels/self_test.h"

namespace tandem::cli {

int verify_command(Arguments arguments) {
  bool json = false;
  Flags flags(
      "verify", "[--json]",
      "Runs every set of kernels that this machine has on known cases and compares the bits\n"
      "with stored answers. A set that fails is never used.");
  flags.add("--json", json, "print one JSON object");
  flags.add_example("tandem verify");
  if (const auto code = flags.parse(arguments)) return *code;

  const auto start = std::chrono::steady_clock::now();
  const auto reports = kernels::self_test_reports();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  bool all = !reports.empty();
  std::vector<std::vector<std::string>> rows{{"kernels", "cases", "differ", "verdict"}};
  nlohmann::ordered_json object;
  object["kernels"] = nlohmann::ordered_json::array();
  std::string details;
  for (const kernels::SelfTestReport& report : reports) {
    all = all && report.ok();
    rows.push_back({report.isa, std::to_string(report.steps), std::to_string(report.differs.size()),
                    report.ok() ? "same bits" : "WRONG"});
    for (const std::string& step : report.differs) {
      details += report.isa + ": " + step + " differs from its known answer\n";
    }
    object["kernels"].push_back({{"isa", report.isa},
                                 {"cases", report.steps},
                                 {"differs", report.differs},
                                 {"ok", report.ok()}});
  }
  object["ok"] = all;
  if (json) {
    write_out(object.dump() + "\n");
  } else {
    write_out(table(rows, {false, true, true, false}));
    note(details);
    note("verified in " + number(time.count(), 0) + " ms\n");
  }
  return all ? kSuccess : kFailure;
}

}  // namespace tandem::cli
