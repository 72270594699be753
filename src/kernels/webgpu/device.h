// A WebGPU device through Dawn: buffers, pipelines, dispatches. Nothing here knows what a kernel
// computes. None of it is thread-safe; buffers and pipelines must not outlive their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kernels/webgpu/api.h"

namespace tandem::kernels::webgpu {

/// What was found.
struct DeviceInfo {
  std::string name;          ///< vendor, architecture, device
  bool software = false;     ///< computed by the CPU
  uint64_t max_buffer = 0;   ///< bytes
  uint64_t max_binding = 0;  ///< bytes that one binding of a kernel may span
  uint32_t max_workgroups = 0;
  bool timestamps = false;  ///< seconds() is there
};

class Device;

/// Memory of a device. Empty, or owned.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const api::Functions* functions, api::BufferHandle handle, uint64_t size)
      : functions_(functions), handle_(handle), size_(size) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  [[nodiscard]] api::BufferHandle handle() const { return handle_; }
  [[nodiscard]] uint64_t size() const { return size_; }

 private:
  void swap(Buffer& other) {
    std::swap(functions_, other.functions_);
    std::swap(handle_, other.handle_);
    std::swap(size_, other.size_);
  }
  const api::Functions* functions_ = nullptr;
  api::BufferHandle handle_ = nullptr;
  uint64_t size_ = 0;
};

/// A compiled kernel whose entry point is `main`.
class Pipeline {
 public:
  Pipeline() = default;
  Pipeline(const api::Functions* functions, api::PipelineHandle handle, api::BindGroupLayout layout)
      : functions_(functions), handle_(handle), layout_(layout) {}
  Pipeline(Pipeline&& other) noexcept { swap(other); }
  Pipeline& operator=(Pipeline&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Pipeline();

  [[nodiscard]] api::PipelineHandle handle() const { return handle_; }
  [[nodiscard]] api::BindGroupLayout layout() const { return layout_; }

 private:
  void swap(Pipeline& other) {
    std::swap(functions_, other.functions_);
    std::swap(handle_, other.handle_);
    std::swap(layout_, other.layout_);
  }
  const api::Functions* functions_ = nullptr;
  api::PipelineHandle handle_ = nullptr;
  api::BindGroupLayout layout_ = nullptr;
};

/// One run of a kernel. `parameters` are the 32-bit words of its uniform structure at binding 0,
/// at most kMaxParameters; `buffers` are bindings 1, 2, …, null where the kernel has none. With
/// more workgroups than a dimension holds they are spread over x and y, perhaps with a few too
/// many: kernels number them as y * num_workgroups.x + x and ignore those past the end.
struct Dispatch {
  static constexpr size_t kMaxParameters = 16;

  const Pipeline* pipeline = nullptr;
  std::vector<uint32_t> parameters;
  std::vector<const Buffer*> buffers;
  uint32_t workgroups = 0;
};

class Device {
 public:
  /// Opens the library (see load_library), the fastest adapter and a device with the adapter's
  /// limits. Errors: kNotFound (no library or adapter), kUnsupported, kIo.
  static Result<std::unique_ptr<Device>> open(const std::string& library = "");
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const DeviceInfo& info() const { return info_; }

  /// `bytes` of zeros, usable by kernels and for copies; rounded up to 16. Error: kMemory.
  Result<Buffer> make_buffer(uint64_t bytes);
  /// A buffer that holds `data`.
  Result<Buffer> make_buffer(std::span<const std::byte> data);
  template <typename T>
  Result<Buffer> make_buffer(const std::vector<T>& data) {
    return make_buffer(std::as_bytes(std::span<const T>(data)));
  }
  /// Compiles WGSL. Error: kInvalid with the compiler's message, `name` before it.
  Result<Pipeline> make_pipeline(std::string_view name, const std::string& source);

  /// Overwrites bytes of a buffer; `offset` and the size are multiples of 4.
  Status write(const Buffer& buffer, uint64_t offset, std::span<const std::byte> data);
  /// Runs dispatches in order, each after what the ones before have written. Returns before they
  /// have run.
  Status submit(std::span<const Dispatch> dispatches);
  /// Copies `bytes` between different buffers, `times` times.
  Status copy(const Buffer& from, const Buffer& to, uint64_t bytes, uint32_t times = 1);
  /// Runs dispatches, or copies as copy() does, and tells how long the device took for them, from
  /// its own clock in steps of 0.1 ms. Error: kUnsupported without timestamps.
  Result<double> seconds(std::span<const Dispatch> dispatches);
  Result<double> seconds_to_copy(const Buffer& from, const Buffer& to, uint64_t bytes,
                                 uint32_t times);
  /// Waits for all that was submitted. kIo if the device was lost, kInvalid with the first error
  /// that the library reported since the last call.
  Status wait();
  /// Waits and copies bytes out of a buffer; `offset` and the size are multiples of 4.
  Status read(const Buffer& buffer, uint64_t offset, std::span<std::byte> data);
  template <typename T>
  Status read(const Buffer& buffer, std::vector<T>& data) {
    return read(buffer, 0, std::as_writable_bytes(std::span<T>(data)));
  }

 private:
  Device() = default;
  /// Runs callbacks until `done`; false if nothing happens for kPatienceSeconds.
  bool process_until(const bool& done);
  Status take_error();
  Result<Buffer> make_raw_buffer(uint64_t bytes, api::Flags usage);
  Status grow_parameters(size_t dispatches);
  Status submit_encoder(api::CommandEncoder encoder);
  Status encode(std::span<const Dispatch> dispatches, api::CommandEncoder encoder,
                const api::TimestampWrites* timestamps);
  /// Submits `encoder` and returns the difference of the last and the first of `count` queries.
  Result<double> submit_timed(api::CommandEncoder encoder, api::QuerySet queries, uint32_t count);
  Result<api::QuerySet> make_queries(uint32_t count);

  api::Functions functions_;
  api::Instance instance_ = nullptr;
  api::Adapter adapter_ = nullptr;
  api::DeviceHandle device_ = nullptr;
  api::Queue queue_ = nullptr;
  DeviceInfo info_;
  Buffer parameters_;  ///< a slot a dispatch of the submission being encoded
  std::string error_;
  bool lost_ = false;
};

}  // namespace tandem::kernels::webgpu
