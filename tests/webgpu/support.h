// What the WebGPU tests share: one device for all of them, and inputs that provoke.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "kernels/support.h"
#include "kernels/webgpu/device.h"
#include "kernels/webgpu/kernels.h"

namespace tandem::kernels::webgpu {

/// The device of all tests. Without one they fail: whoever runs them has made sure of it (`run`).
inline Device* test_device() {
  static const std::unique_ptr<Device> device = [] {
    Result<std::unique_ptr<Device>> opened = Device::open();
    if (!opened.ok()) {
      ADD_FAILURE() << opened.error().message;
      return std::unique_ptr<Device>();
    }
    std::fprintf(stderr, "WebGPU adapter: %s\n", opened->get()->info().name.c_str());
    return std::move(*opened);
  }();
  return device.get();
}

/// The kernels on that device, compiled once.
inline Kernels& test_kernels() {
  static Kernels kernels(*test_device());
  return kernels;
}

#define TANDEM_REQUIRE_DEVICE() ASSERT_NE(test_device(), nullptr) << "no WebGPU device"

/// A result's value; ends the test run with its message if it failed.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::abort();
  }
  return std::move(*result);
}
inline void must(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    std::abort();
  }
}

/// Runs commands and reads `count` words of a buffer.
template <typename T = uint32_t>
std::vector<T> run_and_read(const Commands& commands, const Buffer& buffer, size_t count) {
  must(test_device()->submit(commands));
  std::vector<T> words(count);
  must(test_device()->read(buffer, words));
  return words;
}

}  // namespace tandem::kernels::webgpu
