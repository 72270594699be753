// The flags of one command: declared with their help, parsed from the command line, checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::cli {

/// Exit codes of every command.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;        ///< it could not be done; one line says why
inline constexpr int kWrongUse = 2;       ///< the command line itself is wrong
inline constexpr int kInterrupted = 130;  ///< ended by Ctrl-C

/// Bytes of "8G", "512M", "1.5G", "1000000": powers of 1024, with or without a "B" or "iB" behind.
Result<uint64_t> parse_size(std::string_view text);
/// What a flag says that takes a size or 0; nothing if it was not given. Its errors name it.
Result<std::optional<uint64_t>> parse_limit(const std::string& text, const char* flag);
/// The candidate closest to `wrong` by edit distance, or nothing if none is close.
std::string nearest(std::string_view wrong, const std::vector<std::string>& candidates);
/// Splits at commas. Empty parts are kept.
std::vector<std::string> split_commas(std::string_view text);

class Flags {
 public:
  /// `usage` is what follows "tandem COMMAND " in the help's first line.
  Flags(std::string command, std::string usage, std::string summary);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// `names` as "-m,--model"; the variable's present value is the default. The variables must live
  /// until parse() is done.
  void add(const std::string& names, bool& value, const std::string& help);
  void add(const std::string& names, const std::string& type, std::string& value,
           const std::string& help);
  void add(const std::string& names, const std::string& type, std::optional<std::string>& value,
           const std::string& help);
  void add(const std::string& names, const std::string& type, double& value,
           const std::string& help);
  void add(const std::string& names, const std::string& type, uint64_t& value,
           const std::string& help);
  /// Refuses values outside [low, high].
  void add(const std::string& names, const std::string& type, uint32_t& value, uint32_t low,
           uint32_t high, const std::string& help);
  void add_size(const std::string& names, uint64_t& bytes, const std::string& help);
  void add_choice(const std::string& names, const std::string& type, std::string& value,
                  std::vector<std::string> choices, const std::string& help);
  /// An argument without a name. Required unless `value` holds something already.
  void add_positional(const std::string& type, std::optional<std::string>& value,
                      const std::string& help, bool required);
  void add_example(std::string example);

  /// Parses. Returns the exit code if the command must end here: help was asked for and written to
  /// standard output, or something is wrong, and standard error says what.
  std::optional<int> parse(std::span<const std::string> arguments);
  /// Says on standard error what is wrong with the command line, and where help is. kWrongUse.
  int wrong_use(std::string_view problem) const;
  /// True if the flag ("--threads") stood on the command line.
  [[nodiscard]] bool given(const std::string& name) const;

  [[nodiscard]] const std::string& command() const { return command_; }
  [[nodiscard]] std::string help() const;

 private:
  struct Parser;
  struct Row {
    std::string names;
    std::string help;
  };
  void remember(const std::string& names, const std::string& type, const std::string& help);
  int unexpected(const std::vector<std::string>& rest) const;

  std::string command_;
  std::string usage_;
  std::string summary_;
  std::vector<Row> rows_;
  std::vector<std::string> examples_;
  std::vector<std::string> long_names_;
  std::unique_ptr<Parser> parser_;
};

}  // namespace tandem::cli
