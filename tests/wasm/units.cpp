// Entry of a module of unit tests: units.mjs calls it.
#include <gtest/gtest.h>

extern "C" __attribute__((export_name("run_tests"))) int run_tests() {
  testing::InitGoogleTest();
  return RUN_ALL_TESTS();
}
