#include "cli/profile_report.h"

#include "cli/output.h"

namespace tandem::cli {
namespace {

/// One part's figures, a token of the pass each.
struct Figures {
  double ms = 0;
  double time_share = 0;
  double bytes = 0;
  double multiply_adds = 0;
  double bandwidth_share = 0;
  double peak_share = 0;
};

double total_seconds(const kernels::PassTimes& times) {
  double sum = 0;
  for (const kernels::PartTimes& part : times.parts) sum += part.seconds;
  return sum;
}

Figures figures(const kernels::PartTimes& part, const kernels::PassTimes& times,
                const ProfileReport& report) {
  const auto tokens = static_cast<double>(std::max<uint64_t>(times.tokens, 1));
  const auto bytes = static_cast<double>(part.bytes);
  const auto multiply_adds = static_cast<double>(part.multiply_adds);
  Figures result;
  result.ms = 1e3 * part.seconds / tokens;
  result.bytes = bytes / tokens;
  result.multiply_adds = multiply_adds / tokens;
  if (part.seconds > 0) {
    result.time_share = part.seconds / total_seconds(times);
    if (report.bandwidth > 0) result.bandwidth_share = bytes / part.seconds / report.bandwidth;
    if (report.peak > 0) result.peak_share = multiply_adds / part.seconds / report.peak;
  }
  return result;
}

nlohmann::ordered_json to_json(const kernels::PassTimes& times, const ProfileReport& report) {
  nlohmann::ordered_json object;
  object["passes"] = times.passes;
  object["tokens"] = times.tokens;
  object["parts"] = nlohmann::ordered_json::array();
  for (const kernels::PartTimes& part : times.parts) {
    const Figures one = figures(part, times, report);
    object["parts"].push_back({{"part", part.part},
                               {"ms_per_token", one.ms},
                               {"time_share", one.time_share},
                               {"bytes_per_token", one.bytes},
                               {"multiply_adds_per_token", one.multiply_adds},
                               {"bandwidth_share", one.bandwidth_share},
                               {"peak_share", one.peak_share}});
  }
  return object;
}

std::string to_text(const char* title, const kernels::PassTimes& times,
                    const ProfileReport& report) {
  if (times.passes == 0) return "";
  std::vector<std::vector<std::string>> rows{
      {title, "us a token", "time", "MB a token", "of reading", "M multiply-adds", "of the peak"}};
  const auto cell = [](bool there, double value, int digits, const char* unit) {
    return there ? number(value, digits) + unit : std::string();
  };
  for (const kernels::PartTimes& part : times.parts) {
    const Figures one = figures(part, times, report);
    const bool peak = part.multiply_adds != 0 && report.peak > 0;
    rows.push_back({"  " + part.part, number(1e3 * one.ms, 1),
                    number(100 * one.time_share, 1) + " %",
                    cell(part.bytes != 0, one.bytes * 1e-6, 2, ""),
                    cell(part.bytes != 0, 100 * one.bandwidth_share, 0, " %"),
                    cell(part.multiply_adds != 0, one.multiply_adds * 1e-6, 1, ""),
                    cell(peak, 100 * one.peak_share, 0, " %")});
  }
  const double per_token = total_seconds(times) / static_cast<double>(times.tokens);
  rows.push_back({"  all", number(1e6 * per_token, 1), "", "", "", "", ""});
  return "\n" + table(rows, {false, true, true, true, true, true, true});
}

}  // namespace

nlohmann::ordered_json profile_json(const ProfileReport& report) {
  return {{"read_bandwidth_bytes_per_second", report.bandwidth},
          {"peak_multiply_adds_per_second", report.peak},
          {"decode", to_json(report.decode, report)},
          {"prefill", to_json(report.prefill, report)}};
}

std::string profile_text(const ProfileReport& report) {
  std::string text;
  if (report.peak > 0) {
    text = "computing  " + number(report.peak * 1e-9, 0) +
           " G multiply-adds/s of 8 and 16 bits done by these cores from registers\n";
  }
  return text + to_text("decode", report.decode, report) +
         to_text("prefill", report.prefill, report);
}

}  // namespace tandem::cli
