// The self-test: every set of this machine gives the stored answers, and names are checked.
#include "kernels/self_test.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/kernels.h"

namespace tandem::kernels {
namespace {

TEST(SelfTest, EverySetGivesTheStoredAnswers) {
  const std::vector<SelfTestReport> reports = self_test_reports();
  const CpuFeatures features = cpu_features();
  const size_t sets = 1U + features.avx2 + features.avx512 + features.amx + features.neon +
                      features.dotprod + features.i8mm + features.simd128;
  EXPECT_EQ(reports.size(), sets);
  for (const SelfTestReport& report : reports) {
    EXPECT_EQ(report.steps, 16U);
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

// Where whoever runs the tests knows the processor (an emulated one), TANDEM_EXPECTED_SETS names
// its sets: a set that is not found would otherwise pass every test.
TEST(Dispatch, FindsTheSetsThatThisMachineIsKnownToHave) {
  const char* expected = std::getenv("TANDEM_EXPECTED_SETS");
  if (expected == nullptr) GTEST_SKIP() << "TANDEM_EXPECTED_SETS is not set";
  std::string found;
  for (const SelfTestReport& report : self_test_reports()) {
    found += (found.empty() ? "" : ",") + report.isa;
  }
  EXPECT_EQ(found, expected);
  auto best = make_cpu_backend("best", std::make_shared<ThreadPool>(1));
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best.value()->isa(), found.substr(found.rfind(',') + 1));
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
  EXPECT_EQ(make_cpu_backend("sse9", pool).error().kind, ErrorKind::kInvalid);
  // A set of the other processor family is known, but not here.
  const bool arm = cpu_features().neon;
  EXPECT_EQ(make_cpu_backend(arm ? "avx2" : "neon", pool).error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace tandem::kernels
