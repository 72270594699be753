// The self-test: every set of this machine gives the stored answers, and names are checked.
#include "kernels/self_test.h"

#include <gtest/gtest.h>

#include "kernels/kernels.h"

namespace tandem::kernels {
namespace {

TEST(SelfTest, EverySetGivesTheStoredAnswers) {
  const std::vector<SelfTestReport> reports = self_test_reports();
  const CpuFeatures features = cpu_features();
  EXPECT_EQ(reports.size(),
            1U + (features.avx2 ? 1 : 0) + (features.avx512 ? 1 : 0) + (features.simd128 ? 1 : 0));
  for (const SelfTestReport& report : reports) {
    EXPECT_EQ(report.steps, 12U);
    for (const std::string& step : report.differs) ADD_FAILURE() << report.isa << ": " << step;
    EXPECT_TRUE(self_test(report.isa).ok());
  }
}

TEST(SelfTest, UnknownSetsAreRefusedByName) {
  const Status status = self_test("sse9");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(status.error().message.find("sse9"), std::string::npos);
}

TEST(Dispatch, MakesEverySetOfThisMachineAndRefusesTheRest) {
  for (const SelfTestReport& report : self_test_reports()) {
    const Result<std::unique_ptr<Backend>> backend =
        make_cpu_backend(report.isa, std::make_shared<ThreadPool>(1));
    ASSERT_TRUE(backend.ok()) << backend.error().message;
    EXPECT_EQ(backend.value()->isa(), report.isa);
  }
  const auto pool = std::make_shared<ThreadPool>(2);
  EXPECT_TRUE(make_cpu_backend("best", pool).ok());
  EXPECT_EQ(make_cpu_backend("neon", pool).error().kind, ErrorKind::kInvalid);
}

}  // namespace
}  // namespace tandem::kernels
