// Entry of kernels_bench as a module: wasm.mjs calls it.
#include <cstdio>
#include <iterator>
#include <string>

// What the compiler calls main. NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" int __main_argc_argv(int argc, char** argv);

/// `part` is a number: 0 k8, 1 k4, 2 k6, 3 attention.
extern "C" __attribute__((export_name("run_bench"))) int run_bench(unsigned threads,
                                                                   unsigned part) {
  std::string arguments[] = {"kernels_bench", "simd128", std::to_string(threads),
                             part == 0   ? "k8"
                             : part == 1 ? "k4"
                             : part == 2 ? "k6"
                                         : "attention"};
  char* pointers[std::size(arguments) + 1] = {};
  for (size_t i = 0; i < std::size(arguments); ++i) pointers[i] = arguments[i].data();
  const int result = __main_argc_argv(static_cast<int>(std::size(arguments)), pointers);
  std::fflush(stdout);
  return result;
}
