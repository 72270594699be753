#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/output.h"

namespace tandem::cli {

struct Flags::Parser {
  CLI::App app;
};

Result<uint64_t> parse_size(std::string_view text) {
  const Error wrong =
      invalid("'" + std::string(text) + "' is no size; expected one like 8G or 512M");
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  if (digits == 0 || digits > 20) return wrong;
  double number = 0;
  try {
    size_t used = 0;
    number = std::stod(std::string(text.substr(0, digits)), &used);
    if (used != digits) return wrong;
  } catch (const std::exception&) {
    return wrong;
  }
  std::string unit(text.substr(digits));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (unit.size() > 1 && unit.ends_with("IB")) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with("B")) {
    unit.resize(unit.size() - 1);
  }
  constexpr std::string_view kUnits = "KMGT";
  if (!unit.empty()) {
    const auto power = kUnits.find(unit);
    if (unit.size() != 1 || power == std::string_view::npos) return wrong;
    number *= std::ldexp(1.0, static_cast<int>(10 * (power + 1)));
  }
  if (number < 1 || number >= 9e18) return wrong;
  return static_cast<uint64_t>(number);
}

Result<std::optional<uint64_t>> parse_limit(const std::string& text, const char* flag) {
  if (text.empty()) return std::optional<uint64_t>();
  if (text == "0") return std::optional<uint64_t>(0);  // parse_size() has no such size
  auto size = parse_size(text);
  if (!size.ok()) return size.error().in(flag);
  return std::optional<uint64_t>(*size);
}

std::string nearest(std::string_view wrong, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(wrong.size() / 2, 3);
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= wrong.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t replace = diagonal + (wrong[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

Flags::Flags(std::string command, std::string usage, std::string summary)
    : command_(std::move(command)),
      usage_(std::move(usage)),
      summary_(std::move(summary)),
      parser_(std::make_unique<Parser>()) {
  parser_->app.set_help_flag("-h,--help", "");
  // The last one counts, so that a flag can be added to a stored command line.
  parser_->app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  parser_->app.allow_extras();  // unexpected() says more than the parser does
  long_names_.emplace_back("--help");
}

Flags::~Flags() = default;

void Flags::remember(const std::string& names, const std::string& type, const std::string& help) {
  std::string shown;
  for (const std::string& name : split_commas(names)) {
    if (name.starts_with("--")) long_names_.push_back(name);
    if (!shown.empty()) shown += ", ";
    shown += name;
  }
  if (!type.empty()) shown += " " + type;
  rows_.push_back({shown, help});
}

void Flags::add(const std::string& names, bool& value, const std::string& help) {
  remember(names, "", help);
  parser_->app.add_flag(names, value);
}

void Flags::add(const std::string& names, const std::string& type, std::string& value,
                const std::string& help) {
  remember(names, type, help);
  parser_->app.add_option(names, value);
}

void Flags::add(const std::string& names, const std::string& type,
                std::optional<std::string>& value, const std::string& help) {
  remember(names, type, help);
  parser_->app.add_option_function<std::string>(
      names, [&value](const std::string& text) { value = text; });
}

void Flags::add(const std::string& names, const std::string& type, double& value,
                const std::string& help) {
  remember(names, type, help);
  parser_->app.add_option(names, value);
}

void Flags::add(const std::string& names, const std::string& type, uint64_t& value,
                const std::string& help) {
  remember(names, type, help);
  const std::string last = split_commas(names).back();
  parser_->app.add_option_function<std::string>(names, [&value, last](const std::string& text) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw CLI::ValidationError(last + " is '" + text + "'; expected a whole number from 0 to " +
                                 std::to_string(UINT64_MAX));
    }
  });
}

void Flags::add(const std::string& names, const std::string& type, uint32_t& value, uint32_t low,
                uint32_t high, const std::string& help) {
  remember(names, type, help);
  const std::string last = split_commas(names).back();
  parser_->app.add_option_function<std::string>(
      names, [&value, low, high, last](const std::string& text) {
        uint64_t number = 0;
        const bool digits = !text.empty() && text.size() <= 10 &&
                            text.find_first_not_of("0123456789") == std::string::npos;
        if (digits) number = std::stoull(text);
        if (!digits || number < low || number > high) {
          throw CLI::ValidationError(last + " is '" + text + "'; expected a whole number from " +
                                     std::to_string(low) + " to " + std::to_string(high));
        }
        value = static_cast<uint32_t>(number);
      });
}

void Flags::add_size(const std::string& names, uint64_t& bytes, const std::string& help) {
  remember(names, "SIZE", help);
  const std::string last = split_commas(names).back();
  parser_->app.add_option_function<std::string>(names, [&bytes, last](const std::string& text) {
    const auto size = parse_size(text);
    if (!size.ok()) throw CLI::ValidationError(last + ": " + size.error().message);
    bytes = *size;
  });
}

void Flags::add_choice(const std::string& names, const std::string& type, std::string& value,
                       std::vector<std::string> choices, const std::string& help) {
  remember(names, type, help);
  const std::string last = split_commas(names).back();
  parser_->app.add_option_function<std::string>(
      names, [&value, choices = std::move(choices), last](const std::string& text) {
        if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
          std::string all;
          for (const std::string& choice : choices) all += (all.empty() ? "" : ", ") + choice;
          throw CLI::ValidationError(last + " is '" + text + "'; expected one of " + all);
        }
        value = text;
      });
}

void Flags::add_positional(const std::string& type, std::optional<std::string>& value,
                           const std::string& help, bool required) {
  rows_.push_back({type, help});
  auto* option = parser_->app.add_option_function<std::string>(
      type, [&value](const std::string& text) { value = text; });
  if (required) option->required();
}

void Flags::add_example(std::string example) {
  examples_.push_back(std::move(example));
}

std::string Flags::help() const {
  std::string text = summary_ + "\n\nUsage: tandem " + command_ + " " + usage_ + "\n\n";
  size_t width = 0;
  for (const Row& row : rows_) width = std::max(width, row.names.size());
  const auto add_row = [&](const Row& row) {
    text += "  " + row.names + std::string(width - row.names.size() + 2, ' ') + row.help + "\n";
  };
  for (const Row& row : rows_) add_row(row);
  if (!examples_.empty()) text += "\nExamples:\n";
  for (const std::string& example : examples_) text += "  " + example + "\n";
  return text;
}

int Flags::wrong_use(std::string_view problem) const {
  note("tandem " + command_ + ": " + std::string(problem) + "\n");
  note("See 'tandem " + command_ + " --help'.\n");
  return kWrongUse;
}

int Flags::unexpected(const std::vector<std::string>& rest) const {
  for (const std::string& argument : rest) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string flag = argument.substr(0, argument.find('='));
    const std::string guess = nearest(flag, long_names_);
    return wrong_use("unknown flag " + flag +
                     (guess.empty() ? "" : "; did you mean " + guess + "?"));
  }
  return wrong_use("unexpected argument '" + rest.front() +
                   "'; text with spaces goes in quotes, text that begins with a dash after --");
}

std::optional<int> Flags::parse(std::span<const std::string> arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    parser_->app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    write_out(help());
    return kSuccess;
  } catch (const CLI::RequiredError& error) {
    const auto rest = parser_->app.remaining();
    if (!rest.empty()) return unexpected(rest);
    return wrong_use(error.what());
  } catch (const CLI::ParseError& error) {
    return wrong_use(error.what());
  } catch (const std::exception& error) {
    return wrong_use(error.what());
  }
  if (const auto rest = parser_->app.remaining(); !rest.empty()) return unexpected(rest);
  return std::nullopt;
}

bool Flags::given(const std::string& name) const {
  const CLI::Option* option = parser_->app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

}  // namespace tandem::cli
