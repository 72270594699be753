// Regular expressions over UTF-8. Only regex.cpp includes PCRE2.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"

namespace tandem::text {

/// A compiled pattern, in the common syntax of Oniguruma and Perl, with Unicode classes. Immutable
/// and thread-safe.
class Regex {
 public:
  /// Fails with the pattern's error and its offset.
  static Result<Regex> compile(std::string_view pattern);

  /// Walks over the matches in one text, from left to right, without overlaps.
  class Matches {
   public:
    /// `text` must be valid UTF-8 and outlive this object.
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    Matches(const Matches&) = delete;
    Matches& operator=(const Matches&) = delete;

    /// Sets the next match's begin and end and returns true; false after the last. Fails if the
    /// pattern backtracks too much.
    Result<bool> next(size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace tandem::text
