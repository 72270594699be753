# GoogleTest from the sources that Debian's googletest package holds, for one thread, without
# exceptions, files and death tests.
if(NOT TARGET GTest::gtest)
  set(googletest /usr/src/googletest/googletest)
  if(NOT EXISTS ${googletest}/src/gtest-all.cc)
    message(FATAL_ERROR "${googletest} is missing: install the package googletest")
  endif()
  add_library(gtest STATIC EXCLUDE_FROM_ALL ${googletest}/src/gtest-all.cc)
  target_include_directories(gtest SYSTEM PUBLIC ${googletest}/include PRIVATE ${googletest})
  target_compile_definitions(gtest PUBLIC GTEST_HAS_PTHREAD=0 GTEST_HAS_DEATH_TEST=0
    GTEST_HAS_STREAM_REDIRECTION=0 GTEST_HAS_POSIX_RE=0)
  target_compile_options(gtest PRIVATE -w)
  add_library(GTest::gtest ALIAS gtest)
endif()
set(GTest_FOUND TRUE)
