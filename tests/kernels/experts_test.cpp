// A mixture of experts on the CPU backend: its bits are those of the definitions, token by token,
// whatever the instruction set, the threads, and the tokens of a pass.
#include "experts_support.h"
#include "kernels/self_test.h"

namespace tandem::kernels::mixture {
namespace {

TEST(Experts, BitsAreTheDefinitionsHoweverTokensAreGrouped) {
  const Model model;
  const Inputs in = inputs(kTokens);
  for (const Way& way : ways()) {
    const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
    for (const SelfTestReport& report : self_test_reports()) {
      for (const uint32_t threads : {1U, 3U}) {
        Block block(model, report.isa, threads, way);
        for (const uint32_t width : {1U, 2U, 7U, kTokens}) {
          std::vector<float> all;
          for (uint32_t t = 0; t < kTokens; t += width) {
            Status status;
            const auto part = block.run(in, t, std::min(width, kTokens - t), way, &status);
            ASSERT_TRUE(status.ok()) << status.error().message;
            all.insert(all.end(), part.begin(), part.end());
          }
          ASSERT_EQ(cpu::bits(all), expected) << report.isa << " " << threads << " " << width;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::mixture
