// When a frame is looked for instead of waited for.
#include "ring/expectation.h"

#include <gtest/gtest.h>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;
using Time = wire::Clock::time_point;

/// Laps of `gap`, one after the other.
Time laps(Expectation& expectation, int count, wire::Clock::duration gap, uint32_t tokens = 1) {
  Time now{1h};
  for (int i = 0; i < count; ++i) {
    expectation.sent(tokens, now);
    now += gap;
    expectation.came(now);
  }
  return now;
}

TEST(Expectation, KnowsNothingBeforeFourLaps) {
  Expectation expectation;
  const Time now = laps(expectation, 3, 10ms);
  expectation.sent(1, now);
  EXPECT_FALSE(expectation.window(now));
}

TEST(Expectation, LooksAroundTheTimeOfTheLastLaps) {
  Expectation expectation;
  const Time now = laps(expectation, 4, 10ms);
  EXPECT_FALSE(expectation.window(now)) << "nothing was sent";
  expectation.sent(1, now);
  const auto window = expectation.window(now);
  ASSERT_TRUE(window);
  EXPECT_LT(window->from, now + 10ms);
  EXPECT_GE(window->from, now + 9ms);
  EXPECT_GT(window->until, now + 10ms);
  EXPECT_LE(window->until - window->from, 1500us);
}

TEST(Expectation, LooksOnceAndNotPastTheWindow) {
  Expectation expectation;
  const Time now = laps(expectation, 4, 10ms);
  expectation.sent(1, now);
  EXPECT_FALSE(expectation.window(now + 20ms)) << "it is late: the thread sleeps";
  EXPECT_TRUE(expectation.window(now + 9ms));
  expectation.missed();
  EXPECT_FALSE(expectation.window(now + 9ms));
}

TEST(Expectation, NeverLooksForLongWhereLapsDiffer) {
  Expectation expectation;
  Time now{1h};
  for (const auto gap : {5ms, 50ms, 9ms, 12ms}) {
    expectation.sent(1, now);
    now += gap;
    expectation.came(now);
  }
  expectation.sent(1, now);
  const auto window = expectation.window(now);
  ASSERT_TRUE(window);
  EXPECT_EQ(window->until - window->from, 1500us);
}

TEST(Expectation, SlowLinksAndOtherWidthsAreWaitedForAsleep) {
  Expectation slow;
  Time now = laps(slow, 4, 150ms);
  slow.sent(1, now);
  EXPECT_FALSE(slow.window(now));
  Expectation wide;
  now = laps(wide, 4, 10ms, 1);
  wide.sent(9, now);
  EXPECT_FALSE(wide.window(now));
}

TEST(Expectation, AFrameThatNobodyExpectedTeachesNothing) {
  Expectation expectation;
  Time now{1h};
  for (int i = 0; i < 8; ++i) expectation.came(now);
  expectation.sent(1, now);
  EXPECT_FALSE(expectation.window(now));
}

}  // namespace
}  // namespace tandem::ring
