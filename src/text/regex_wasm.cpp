// Regular expressions without PCRE2: none. The patterns of the known tokenizers have scanners of
// their own (scanner.h); a tokenizer with another pattern is refused by name.
#include <string>

#include "text/regex.h"
#include "text/unicode.h"

namespace tandem::text {

struct Regex::Code {};
struct Regex::Matches::State {};

Result<Regex> Regex::compile(std::string_view pattern) {
  return unsupported("the pattern \"" + to_valid_utf8(pattern.substr(0, 200)) +
                     "\", which has no scanner of its own: WebAssembly builds have no other way");
}

Regex::Matches::Matches(const Regex&, std::string_view) {}
Regex::Matches::~Matches() = default;

Result<bool> Regex::Matches::next(size_t&, size_t&) {
  return false;
}

}  // namespace tandem::text
