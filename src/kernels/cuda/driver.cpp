#include "kernels/cuda/driver.h"

#include <dlfcn.h>

#include "kernels/cuda/fatbin.h"

namespace tandem::kernels::cuda {
namespace {

// Attributes of cuda.h's CUdevice_attribute.
constexpr int kProcessors = 16;
constexpr int kL2Bytes = 38;
constexpr int kMajor = 75;
constexpr int kMinor = 76;
constexpr int kOutOfMemory = 2;
// Of CUlaunchAttributeID.
constexpr int kProgrammaticSerialization = 6;
constexpr uint32_t kFirstWithEarlyLaunch = 90;

Result<api::Functions> load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorKind::kNotFound, "no CUDA driver on this machine (libcuda.so.1)"};
  }
  api::Functions functions;
  std::string missing;
#define TANDEM_CUDA_LOAD(member, name, parameters)                              \
  functions.member = reinterpret_cast<int(*) parameters>(dlsym(library, name)); \
  if (functions.member == nullptr) missing.append(missing.empty() ? "" : ", ").append(name);
  using namespace api;
  TANDEM_CUDA_FUNCTIONS(TANDEM_CUDA_LOAD)
#undef TANDEM_CUDA_LOAD
  if (!missing.empty()) return unsupported("the CUDA driver is too old: it has no " + missing);
  return functions;
}

}  // namespace

Status Device::check(int code, const char* what) const {
  if (code == 0) return {};
  const char* text = nullptr;
  functions_.get_error_string(code, &text);
  return Error{code == kOutOfMemory ? ErrorKind::kMemory : ErrorKind::kIo,
               std::string("CUDA: ") + what + ": " + (text != nullptr ? text : "unknown error") +
                   " (" + std::to_string(code) + ")"};
}

Result<std::unique_ptr<Device>> Device::open() {
  if (fatbin() == nullptr) return unsupported("this program was built without CUDA's compiler");
  std::unique_ptr<Device> device(new Device);
  TANDEM_ASSIGN(device->functions_, load_driver());
  const api::Functions& f = device->functions_;
  int count = 0;
  if (f.init(0) != 0 || f.device_count(&count) != 0 || count == 0) {
    return Error{ErrorKind::kNotFound, "no NVIDIA GPU on this machine"};
  }
  TANDEM_TRY(device->check(f.device_get(&device->device_, 0), "device"));
  char name[128] = {};
  TANDEM_TRY(device->check(f.device_name(name, sizeof name - 1, device->device_), "name"));
  device->info_.name = name;
  const auto attribute = [&](int which) {
    int value = 0;
    f.device_attribute(&value, which, device->device_);
    return static_cast<uint32_t>(value);
  };
  device->info_.processors = attribute(kProcessors);
  device->info_.l2_bytes = attribute(kL2Bytes);
  device->info_.capability = attribute(kMajor) * 10 + attribute(kMinor);
  size_t memory = 0;
  f.device_memory(&memory, device->device_);
  device->info_.memory = memory;
  TANDEM_TRY(device->check(f.context_retain(&device->context_, device->device_), "context"));
  TANDEM_TRY(device->check(f.context_set(device->context_), "context"));
  TANDEM_TRY(device->check(f.load_module(&device->module_, fatbin()), "kernels"));
  // Waits for what the default stream does, as uploads, and the other way round.
  TANDEM_TRY(device->check(f.make_stream(&device->stream_, 0), "stream"));
  TANDEM_TRY(device->check(f.make_event(&device->begin_, 0), "event"));
  TANDEM_TRY(device->check(f.make_event(&device->end_, 0), "event"));
  return device;
}

Device::~Device() {
  if (begin_ != nullptr) functions_.destroy_event(begin_);
  if (end_ != nullptr) functions_.destroy_event(end_);
  if (stream_ != nullptr) functions_.destroy_stream(stream_);
  if (module_ != nullptr) functions_.unload_module(module_);
  if (context_ != nullptr) functions_.context_release(device_);
}

Result<Memory> Device::allocate(uint64_t bytes) {
  // Kernels read whole 16-byte words.
  const uint64_t size = bytes < 16 ? 16 : (bytes + 15) / 16 * 16;
  api::Address address = 0;
  TANDEM_TRY(check(functions_.allocate(&address, size), "memory"));
  return Memory(&functions_, address, size);
}

Result<Memory> Device::upload(std::span<const std::byte> data) {
  TANDEM_ASSIGN(Memory memory, allocate(data.size()));
  if (!data.empty()) {
    TANDEM_TRY(check(functions_.to_device(memory.address(), data.data(), data.size()), "upload"));
  }
  return memory;
}

Status Device::read(const Memory& memory, std::span<std::byte> data) {
  return check(functions_.from_device(data.data(), memory.address(), data.size()), "reading");
}

Status Device::copy(const Memory& from, const Memory& to, uint64_t bytes) {
  return check(functions_.copy(to.address(), from.address(), bytes, stream_), "copy");
}

Result<api::Function> Device::function(const std::string& name) {
  api::Function function = nullptr;
  if (functions_.get_function(&function, module_, name.c_str()) != 0) {
    return Error{ErrorKind::kNotFound, "CUDA: no kernel " + name};
  }
  return function;
}

Status Device::launch(api::Function function, uint32_t blocks, uint32_t threads,
                      std::span<void* const> arguments, bool early) {
  api::LaunchAttribute overlap;
  overlap.id = kProgrammaticSerialization;
  overlap.value[0] = 1;
  api::LaunchConfig config;
  config.blocks[0] = blocks;
  config.threads[0] = threads;
  config.stream = stream_;
  config.attributes = &overlap;
  config.attribute_count = early && info_.capability >= kFirstWithEarlyLaunch ? 1 : 0;
  return check(functions_.launch(&config, function, const_cast<void**>(arguments.data()), nullptr),
               "launch");
}

Status Device::wait() {
  return check(functions_.synchronize(), "work");
}

Status Device::begin_timing() {
  TANDEM_TRY(wait());
  return check(functions_.record(begin_, stream_), "timing");
}

Result<double> Device::end_timing() {
  TANDEM_TRY(check(functions_.record(end_, stream_), "timing"));
  TANDEM_TRY(check(functions_.wait_event(end_), "work"));
  float milliseconds = 0;
  TANDEM_TRY(check(functions_.elapsed(&milliseconds, begin_, end_), "timing"));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace tandem::kernels::cuda
