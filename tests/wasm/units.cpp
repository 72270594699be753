// Entry of a module of unit tests: units.mjs calls it.
#include <gtest/gtest.h>

#include <cstdio>

extern "C" __attribute__((export_name("run_tests"))) int run_tests() {
  testing::InitGoogleTest();
  const int result = RUN_ALL_TESTS();
  std::fflush(stdout);
  return result;
}
