// What a command writes: answers to standard output, everything else to standard error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::cli {

/// Set by the first Ctrl-C (or SIGTERM), and when standard output is closed. The second Ctrl-C ends
/// the process at once.
std::atomic<bool>& cancel_flag();
/// Forgets the Ctrl-C that ended one answer of several.
void clear_cancel();
/// Makes Ctrl-C and SIGTERM set the flag, and a closed pipe an error of the write alone.
void install_signals();

/// Writes all of it to standard output. False, and cancel_flag() set, if that is closed or full.
bool write_out(std::string_view text);
/// True once write_out() failed because nobody reads any more.
bool output_closed();
/// Writes to standard error, whatever becomes of it.
void note(std::string_view text);

/// Standard error is a terminal.
bool on_terminal();
/// Text in a colour or weight if standard error is a terminal and NO_COLOR is not set.
enum class Style : uint8_t { kBold, kDim, kRed, kGreen };
std::string styled(Style style, std::string_view text);

/// "44.1 MB", "1.2 GB": powers of 1000, as disks and memory bandwidth are given.
std::string bytes_text(uint64_t bytes);
/// "12.3", with so many digits after the point.
std::string number(double value, int digits);

/// Columns as wide as their widest cell; numbers to the right. The first row is the heading.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& right);

/// A line of progress that is written over itself; silent if standard error is no terminal.
/// Any thread may call it, one at a time.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  /// Shows `text` with a bar of `done` of `total`, at most twenty times a second.
  void show(std::string_view text, uint64_t done, uint64_t total);
  void clear();

 private:
  std::chrono::steady_clock::time_point last_{};
  bool visible_ = false;
};

/// Reports an error of `command` in one line, or as the JSON object {"error": …} on standard
/// output, with `events` beside it, a JSON array, if there are. Returns the exit code: kInterrupted
/// for kCancelled, else kFailure.
int fail(std::string_view command, const Error& error, bool json = false,
         const std::string& events = {});

/// Standard input up to its end, at most `limit` bytes. Errors: kIo, kInvalid, kCancelled.
Result<std::string> read_input(uint64_t limit);

}  // namespace tandem::cli
