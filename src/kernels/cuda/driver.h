// CUDA's driver interface, found when the program runs: declarations of the functions that Tandem
// uses, and thin owners of what they make. Building needs no CUDA, and neither does a machine
// without an NVIDIA GPU: there, Device::open says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem::kernels::cuda {

namespace api {

using Address = unsigned long long;
using Context = struct ContextOpaque*;
using Module = struct ModuleOpaque*;
using Function = struct FunctionOpaque*;
using Stream = struct StreamOpaque*;
using Event = struct EventOpaque*;

/// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  int value[16] = {};
};
struct LaunchConfig {
  unsigned blocks[3] = {1, 1, 1};
  unsigned threads[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

/// The functions, by their names in libcuda: X(member, name, parameters). All return 0 or an error.
#define TANDEM_CUDA_FUNCTIONS(X)                                                 \
  X(init, "cuInit", (unsigned))                                                  \
  X(get_error_string, "cuGetErrorString", (int, const char**))                   \
  X(device_count, "cuDeviceGetCount", (int*))                                    \
  X(device_get, "cuDeviceGet", (int*, int))                                      \
  X(device_name, "cuDeviceGetName", (char*, int, int))                           \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                  \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t*, int))                        \
  X(context_retain, "cuDevicePrimaryCtxRetain", (Context*, int))                 \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int))                      \
  X(context_set, "cuCtxSetCurrent", (Context))                                   \
  X(synchronize, "cuCtxSynchronize", ())                                         \
  X(allocate, "cuMemAlloc_v2", (Address*, size_t))                               \
  X(release, "cuMemFree_v2", (Address))                                          \
  X(to_device, "cuMemcpyHtoD_v2", (Address, const void*, size_t))                \
  X(from_device, "cuMemcpyDtoH_v2", (void*, Address, size_t))                    \
  X(copy, "cuMemcpyDtoDAsync_v2", (Address, Address, size_t, Stream))            \
  X(fill, "cuMemsetD8Async", (Address, unsigned char, size_t, Stream))           \
  X(load_module, "cuModuleLoadData", (Module*, const void*))                     \
  X(unload_module, "cuModuleUnload", (Module))                                   \
  X(get_function, "cuModuleGetFunction", (Function*, Module, const char*))       \
  X(launch, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**)) \
  X(make_stream, "cuStreamCreate", (Stream*, unsigned))                          \
  X(destroy_stream, "cuStreamDestroy_v2", (Stream))                              \
  X(make_event, "cuEventCreate", (Event*, unsigned))                             \
  X(destroy_event, "cuEventDestroy_v2", (Event))                                 \
  X(record, "cuEventRecord", (Event, Stream))                                    \
  X(wait_event, "cuEventSynchronize", (Event))                                   \
  X(elapsed, "cuEventElapsedTime", (float*, Event, Event))

struct Functions {
#define TANDEM_CUDA_MEMBER(member, name, parameters) int(*member) parameters = nullptr;
  TANDEM_CUDA_FUNCTIONS(TANDEM_CUDA_MEMBER)
#undef TANDEM_CUDA_MEMBER
};

}  // namespace api

struct DeviceInfo {
  std::string name;
  uint64_t memory = 0;    ///< bytes
  uint64_t l2_bytes = 0;  ///< of its last cache
  uint32_t processors = 0;
  uint32_t capability = 0;  ///< 90 for 9.0
};

/// Memory of the device. Empty, or owned.
class Memory {
 public:
  Memory() = default;
  Memory(const api::Functions* functions, api::Address address, uint64_t size)
      : functions_(functions), address_(address), size_(size) {}
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (address_ != 0) functions_->release(address_);
  }

  [[nodiscard]] api::Address address() const { return address_; }
  [[nodiscard]] uint64_t size() const { return size_; }

 private:
  void swap(Memory& other) {
    std::swap(functions_, other.functions_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
  }
  const api::Functions* functions_ = nullptr;
  api::Address address_ = 0;
  uint64_t size_ = 0;
};

/// The first GPU, with Tandem's kernels loaded. One stream: work runs in the order it is asked for.
/// Not thread-safe, and bound to the thread that opened it; memory must not outlive it.
class Device {
 public:
  /// Errors: kUnsupported (built without CUDA's compiler), kNotFound (no driver or no GPU), kIo.
  static Result<std::unique_ptr<Device>> open();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const DeviceInfo& info() const { return info_; }

  /// Not initialized. Error: kMemory.
  Result<Memory> allocate(uint64_t bytes);
  /// Memory that holds `data`.
  Result<Memory> upload(std::span<const std::byte> data);
  template <typename T>
  Result<Memory> upload(const std::vector<T>& data) {
    return upload(std::as_bytes(std::span<const T>(data)));
  }
  /// Waits and copies `data.size()` bytes from the memory's start.
  Status read(const Memory& memory, std::span<std::byte> data);
  template <typename T>
  Status read(const Memory& memory, std::vector<T>& data) {
    return read(memory, std::as_writable_bytes(std::span<T>(data)));
  }
  Status copy(const Memory& from, const Memory& to, uint64_t bytes);
  /// A kernel of dots.cu. Error: kNotFound.
  Result<api::Function> function(const std::string& name);
  /// Starts a kernel; `arguments` are pointers to its parameters. With `early`, on GPUs that can,
  /// it may begin while the kernel before it ends: it must itself wait before it touches what
  /// other kernels touch.
  Status launch(api::Function function, uint32_t blocks, uint32_t threads,
                std::span<void* const> arguments, bool early);
  /// Waits for all work. Reports what went wrong in it.
  Status wait();
  /// Seconds that the device spent on what `work` starts.
  template <typename Work>
  Result<double> seconds(Work&& work) {
    TANDEM_TRY(begin_timing());
    TANDEM_TRY(work());
    return end_timing();
  }

 private:
  Device() = default;
  Status check(int code, const char* what) const;
  Status begin_timing();
  Result<double> end_timing();

  api::Functions functions_;
  DeviceInfo info_;
  int device_ = 0;
  api::Context context_ = nullptr;
  api::Module module_ = nullptr;
  api::Stream stream_ = nullptr;
  api::Event begin_ = nullptr;
  api::Event end_ = nullptr;
};

}  // namespace tandem::kernels::cuda
