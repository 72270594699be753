// Writes src/text/unicode_table.cpp to standard output from the ICU that this program is linked
// with.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "text/unicode.h"
#include "text/unicode_table.h"

namespace {

using namespace tandem::text;

uint32_t bits_of(uint32_t code_point) {
  uint32_t bits = CharClasses::get().of(code_point);
  if (is_assigned_by(code_point, 15)) bits |= kAssignedBit;
  if (is_nonspacing_mark(code_point)) bits |= kNonspacingBit;
  if (is_word(code_point)) bits |= kWordBit;
  return bits;
}

}  // namespace

int main() {
  std::vector<uint32_t> runs;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const uint32_t bits = bits_of(c);
    if (runs.empty() || (runs.back() & 2047U) != bits) runs.push_back(c << 11 | bits);
  }
  std::printf(
      "// Made by tools/unicode_table: do not edit.\n"
      "#include \"text/unicode_table.h\"\n\n"
      "namespace tandem::text {\n\n"
      "namespace {\n\n"
      "// clang-format off\n"
      "constexpr uint32_t kRuns[] = {");
  for (size_t i = 0; i < runs.size(); ++i) {
    std::printf("%s0x%x,", i % 9 == 0 ? "\n  " : " ", runs[i]);
  }
  std::printf(
      "\n};\n// clang-format on\n\n"
      "}  // namespace\n\n"
      "std::span<const uint32_t> unicode_runs() {\n  return kRuns;\n}\n\n"
      "}  // namespace tandem::text\n");
  return 0;
}
