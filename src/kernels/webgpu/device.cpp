#include "kernels/webgpu/device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/webgpu/library.h"

namespace tandem::kernels::webgpu {
namespace {

// A uniform binding's offset is a multiple of 256 at most on every device.
constexpr uint64_t kSlot = 256;
// A software adapter on a busy machine takes long for a large kernel; a hung device for ever.
constexpr int kPatienceSeconds = 120;

std::string text_of(api::StringView view) {
  if (view.data == nullptr) return "";
  return view.length == SIZE_MAX ? std::string(view.data) : std::string(view.data, view.length);
}

api::StringView view_of(std::string_view text) {
  return {text.data(), text.size()};
}

// What a request's callback leaves.
template <typename Handle>
struct Answer {
  bool done = false;
  Handle handle = nullptr;
  std::string message;
};

template <typename Handle>
void on_answer(uint32_t status, Handle handle, api::StringView message, void* user, void*) {
  auto* answer = static_cast<Answer<Handle>*>(user);
  answer->done = true;
  answer->message = text_of(message);
  if (status == api::kSuccess) answer->handle = handle;
}

struct Completion {
  bool done = false;
  bool ok = false;
  std::string message;
};

// What a callback fills. A device that does not answer may still call it: then it is never freed.
template <typename T>
class Pending {
 public:
  Pending() : target_(new T) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    if (target_->done) delete target_;
  }
  T* get() { return target_; }
  T* operator->() { return target_; }

 private:
  T* target_;
};

void on_completion(uint32_t status, api::StringView message, void* user, void*) {
  auto* completion = static_cast<Completion*>(user);
  completion->done = true;
  completion->ok = status == api::kSuccess;
  completion->message = text_of(message);
}

Error io_error(std::string message) {
  return {ErrorKind::kIo, std::move(message)};
}

}  // namespace

Buffer::~Buffer() {
  if (handle_ == nullptr) return;
  functions_->buffer_destroy(handle_);
  functions_->buffer_release(handle_);
}

Pipeline::~Pipeline() {
  if (layout_ != nullptr) functions_->bind_group_layout_release(layout_);
  if (handle_ != nullptr) functions_->compute_pipeline_release(handle_);
}

Result<std::unique_ptr<Device>> Device::open(const std::string& library) {
  std::unique_ptr<Device> device(new Device);
  TANDEM_ASSIGN(device->functions_, load_library(library));
  const api::Functions& f = device->functions_;
  device->instance_ = f.create_instance(nullptr);
  if (device->instance_ == nullptr) return io_error("WebGPU: no instance could be made");

  const api::RequestAdapterOptions wanted;
  Pending<Answer<api::Adapter>> adapter;
  f.instance_request_adapter(
      device->instance_, &wanted,
      {.function = on_answer<api::Adapter>, .user1 = adapter.get(), .user2 = nullptr});
  if (!device->process_until(adapter->done) || adapter->handle == nullptr) {
    return Error{ErrorKind::kNotFound, "WebGPU: no adapter: " + adapter->message};
  }
  device->adapter_ = adapter->handle;

  api::AdapterInfo info;
  f.adapter_get_info(device->adapter_, &info);
  device->info_.name =
      text_of(info.vendor) + " " + text_of(info.architecture) + " " + text_of(info.device);
  device->info_.software = info.adapter_type == api::kAdapterIsCpu;
  const bool null = info.backend == api::kBackendNull;
  f.adapter_info_free_members(info);
  if (null) return Error{ErrorKind::kNotFound, "WebGPU: no GPU that this library can use"};

  // A newer library may know more limits than this structure: room past its end is not written,
  // since the structure's size is part of the interface.
  api::Limits limits;
  if (f.adapter_get_limits(device->adapter_, &limits) != api::kSuccess) {
    return io_error("WebGPU: the adapter does not tell its limits");
  }
  device->info_.max_buffer = limits.max_buffer;
  device->info_.max_binding = limits.max_storage_binding;
  device->info_.max_workgroups = limits.max_workgroups;

  const uint32_t timestamps = api::kTimestampQuery;
  device->info_.timestamps = f.adapter_has_feature(device->adapter_, timestamps) != 0;

  api::DeviceDescriptor descriptor;
  descriptor.feature_count = device->info_.timestamps ? 1 : 0;
  descriptor.features = &timestamps;
  descriptor.limits = &limits;
  descriptor.lost.mode = api::kAllowSpontaneous;
  descriptor.lost.function = [](const api::DeviceHandle*, uint32_t, api::StringView message,
                                void* user, void*) {
    auto* self = static_cast<Device*>(user);
    self->lost_ = true;
    if (self->error_.empty()) self->error_ = text_of(message);
  };
  descriptor.lost.user1 = device.get();
  descriptor.error.function = [](const api::DeviceHandle*, uint32_t, api::StringView message,
                                 void* user, void*) {
    auto* self = static_cast<Device*>(user);
    if (self->error_.empty()) self->error_ = text_of(message);
  };
  descriptor.error.user1 = device.get();
  Pending<Answer<api::DeviceHandle>> answer;
  f.adapter_request_device(
      device->adapter_, &descriptor,
      {.function = on_answer<api::DeviceHandle>, .user1 = answer.get(), .user2 = nullptr});
  if (!device->process_until(answer->done) || answer->handle == nullptr) {
    return io_error("WebGPU: no device: " + answer->message);
  }
  device->device_ = answer->handle;
  device->queue_ = f.device_get_queue(device->device_);
  return device;
}

Device::~Device() {
  parameters_ = Buffer();
  if (queue_ != nullptr) functions_.queue_release(queue_);
  if (device_ != nullptr) functions_.device_release(device_);
  if (adapter_ != nullptr) functions_.adapter_release(adapter_);
  if (instance_ != nullptr) functions_.instance_release(instance_);
}

bool Device::process_until(const bool& done) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(kPatienceSeconds);
  for (uint32_t turn = 0; !done; ++turn) {
    functions_.instance_process_events(instance_);
    if (done) break;
    if (Clock::now() > end) return false;
    if (turn > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

Status Device::take_error() {
  if (error_.empty() && !lost_) return {};
  const Error error{lost_ ? ErrorKind::kIo : ErrorKind::kInvalid, "WebGPU: " + error_};
  if (!lost_) error_.clear();
  return error;
}

Result<Buffer> Device::make_raw_buffer(uint64_t bytes, api::Flags usage) {
  api::BufferDescriptor descriptor;
  descriptor.usage = usage;
  descriptor.size = std::max<uint64_t>(16, (bytes + 15) / 16 * 16);
  if (descriptor.size > info_.max_buffer) {
    return Error{ErrorKind::kMemory, "WebGPU: a buffer of " + std::to_string(bytes) +
                                         " bytes; this device takes " +
                                         std::to_string(info_.max_buffer)};
  }
  Buffer buffer(&functions_, functions_.device_create_buffer(device_, &descriptor),
                descriptor.size);
  if (Status status = take_error(); !status.ok()) {
    return Error{ErrorKind::kMemory, status.error().message};
  }
  if (buffer.handle() == nullptr) {
    return Error{ErrorKind::kMemory, "WebGPU: no buffer of " + std::to_string(bytes) + " bytes"};
  }
  return buffer;
}

Result<Buffer> Device::make_buffer(uint64_t bytes) {
  return make_raw_buffer(bytes, api::kStorage | api::kCopySource | api::kCopyDestination);
}

Result<Buffer> Device::make_buffer(std::span<const std::byte> data) {
  TANDEM_ASSIGN(Buffer buffer, make_buffer(data.size()));
  const size_t whole = data.size() / 4 * 4;
  TANDEM_TRY(write(buffer, 0, data.first(whole)));
  if (whole < data.size()) {
    std::byte rest[4] = {};
    std::memcpy(rest, data.data() + whole, data.size() - whole);
    TANDEM_TRY(write(buffer, whole, rest));
  }
  return buffer;
}

Result<Pipeline> Device::make_pipeline(std::string_view name, const std::string& source) {
  api::ShaderSourceWgsl wgsl;
  wgsl.chain.type = api::kShaderSourceWgsl;
  wgsl.code = view_of(source);
  api::ShaderModuleDescriptor module_descriptor;
  module_descriptor.next = &wgsl.chain;
  const api::ShaderModule module =
      functions_.device_create_shader_module(device_, &module_descriptor);
  Status status = take_error();
  Pipeline pipeline;
  if (status.ok()) {
    api::PipelineDescriptor descriptor;
    descriptor.compute.module = module;
    descriptor.compute.entry_point = view_of("main");
    const api::PipelineHandle handle =
        functions_.device_create_compute_pipeline(device_, &descriptor);
    status = take_error();
    if (status.ok()) {
      pipeline = Pipeline(&functions_, handle,
                          functions_.compute_pipeline_get_bind_group_layout(handle, 0));
    } else if (handle != nullptr) {
      functions_.compute_pipeline_release(handle);
    }
  }
  if (module != nullptr) functions_.shader_module_release(module);
  if (!status.ok()) return status.error().in(name);
  return pipeline;
}

Status Device::write(const Buffer& buffer, uint64_t offset, std::span<const std::byte> data) {
  // Dawn stages a write in memory of its own: pieces keep that small.
  constexpr size_t kPiece = size_t{64} << 20;
  for (size_t at = 0; at < data.size(); at += kPiece) {
    const size_t size = std::min(kPiece, data.size() - at);
    functions_.queue_write_buffer(queue_, buffer.handle(), offset + at, data.data() + at, size);
    if (data.size() > kPiece) TANDEM_TRY(wait());
  }
  return take_error();
}

Status Device::grow_parameters(size_t dispatches) {
  if (parameters_.size() >= dispatches * kSlot) return {};
  TANDEM_ASSIGN(parameters_,
                make_raw_buffer(dispatches * kSlot, api::kUniform | api::kCopyDestination));
  return {};
}

Status Device::submit_encoder(api::CommandEncoder encoder) {
  const api::CommandBuffer commands = functions_.command_encoder_finish(encoder, nullptr);
  functions_.command_encoder_release(encoder);
  Status status = take_error();
  if (status.ok()) functions_.queue_submit(queue_, 1, &commands);
  functions_.command_buffer_release(commands);
  return status.ok() ? take_error() : status;
}

Status Device::submit(std::span<const Dispatch> dispatches) {
  if (dispatches.empty()) return {};
  const api::CommandEncoder encoder = functions_.device_create_command_encoder(device_, nullptr);
  TANDEM_TRY(encode(dispatches, encoder, nullptr));
  return submit_encoder(encoder);
}

Status Device::encode(std::span<const Dispatch> dispatches, api::CommandEncoder encoder,
                      const api::TimestampWrites* timestamps) {
  TANDEM_TRY(grow_parameters(dispatches.size()));
  std::vector<uint32_t> slots(dispatches.size() * kSlot / 4);
  for (size_t i = 0; i < dispatches.size(); ++i) {
    std::copy(dispatches[i].parameters.begin(), dispatches[i].parameters.end(),
              slots.begin() + static_cast<ptrdiff_t>(i * kSlot / 4));
  }
  TANDEM_TRY(write(parameters_, 0, std::as_bytes(std::span<const uint32_t>(slots))));

  api::ComputePassDescriptor pass_descriptor;
  pass_descriptor.timestamps = timestamps;
  const api::ComputePass pass =
      functions_.command_encoder_begin_compute_pass(encoder, &pass_descriptor);
  for (size_t i = 0; i < dispatches.size(); ++i) {
    const Dispatch& dispatch = dispatches[i];
    std::vector<api::BindGroupEntry> entries(1);
    entries[0].buffer = parameters_.handle();
    entries[0].offset = i * kSlot;
    entries[0].size = Dispatch::kMaxParameters * 4;
    for (size_t b = 0; b < dispatch.buffers.size(); ++b) {
      if (dispatch.buffers[b] == nullptr) continue;
      api::BindGroupEntry entry;
      entry.binding = static_cast<uint32_t>(b + 1);
      entry.buffer = dispatch.buffers[b]->handle();
      entries.push_back(entry);
    }
    api::BindGroupDescriptor descriptor;
    descriptor.layout = dispatch.pipeline->layout();
    descriptor.entry_count = entries.size();
    descriptor.entries = entries.data();
    const api::BindGroup group = functions_.device_create_bind_group(device_, &descriptor);
    functions_.compute_pass_set_pipeline(pass, dispatch.pipeline->handle());
    functions_.compute_pass_set_bind_group(pass, 0, group, 0, nullptr);
    functions_.bind_group_release(group);  // the pass keeps it
    const uint32_t y = (dispatch.workgroups + info_.max_workgroups - 1) / info_.max_workgroups;
    const uint32_t x = y > 1 ? (dispatch.workgroups + y - 1) / y : dispatch.workgroups;
    functions_.compute_pass_dispatch(pass, x, y, 1);
  }
  functions_.compute_pass_end(pass);
  functions_.compute_pass_release(pass);
  return {};
}

Status Device::copy(const Buffer& from, const Buffer& to, uint64_t bytes, uint32_t times) {
  const api::CommandEncoder encoder = functions_.device_create_command_encoder(device_, nullptr);
  for (uint32_t i = 0; i < times; ++i) {
    functions_.command_encoder_copy_buffer_to_buffer(encoder, from.handle(), 0, to.handle(), 0,
                                                     bytes);
  }
  return submit_encoder(encoder);
}

Result<api::QuerySet> Device::make_queries(uint32_t count) {
  if (!info_.timestamps) return unsupported("WebGPU: this device has no timestamps");
  api::QuerySetDescriptor descriptor;
  descriptor.count = count;
  const api::QuerySet queries = functions_.device_create_query_set(device_, &descriptor);
  TANDEM_TRY(take_error());
  return queries;
}

Result<double> Device::submit_timed(api::CommandEncoder encoder, api::QuerySet queries,
                                    uint32_t count) {
  std::vector<uint64_t> nanoseconds(count);
  TANDEM_ASSIGN(const Buffer resolved,
                make_raw_buffer(count * 8, api::kQueryResolve | api::kCopySource));
  functions_.command_encoder_resolve_query_set(encoder, queries, 0, count, resolved.handle(), 0);
  Status status = submit_encoder(encoder);
  if (status.ok()) status = read(resolved, nanoseconds);
  functions_.query_set_release(queries);
  if (!status.ok()) return status.error();
  return static_cast<double>(nanoseconds.back() - nanoseconds.front()) * 1e-9;
}

Result<double> Device::seconds(std::span<const Dispatch> dispatches) {
  TANDEM_ASSIGN(const api::QuerySet queries, make_queries(2));
  const api::TimestampWrites timestamps = {nullptr, queries, 0, 1};
  const api::CommandEncoder encoder = functions_.device_create_command_encoder(device_, nullptr);
  TANDEM_TRY(encode(dispatches, encoder, &timestamps));
  return submit_timed(encoder, queries, 2);
}

Result<double> Device::seconds_to_copy(const Buffer& from, const Buffer& to, uint64_t bytes,
                                       uint32_t times) {
  TANDEM_ASSIGN(const api::QuerySet queries, make_queries(4));
  const api::CommandEncoder encoder = functions_.device_create_command_encoder(device_, nullptr);
  // Only passes write timestamps: an empty one before and one after the copies.
  for (uint32_t i = 0; i < 2; ++i) {
    const api::TimestampWrites timestamps = {nullptr, queries, 2 * i, 2 * i + 1};
    TANDEM_TRY(encode({}, encoder, &timestamps));
    if (i != 0) break;
    for (uint32_t k = 0; k < times; ++k) {
      functions_.command_encoder_copy_buffer_to_buffer(encoder, from.handle(), 0, to.handle(), 0,
                                                       bytes);
    }
  }
  return submit_timed(encoder, queries, 4);
}

Status Device::wait() {
  Pending<Completion> completion;
  functions_.queue_on_submitted_work_done(
      queue_, {.function = on_completion, .user1 = completion.get(), .user2 = nullptr});
  if (!process_until(completion->done)) return io_error("WebGPU: the device does not answer");
  TANDEM_TRY(take_error());
  if (!completion->ok) return io_error("WebGPU: work was not done: " + completion->message);
  // The analyzer misses that Pending counts its owners.
  return {};
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)

Status Device::read(const Buffer& buffer, uint64_t offset, std::span<std::byte> data) {
  if (data.empty()) return wait();
  TANDEM_ASSIGN(Buffer staging,
                make_raw_buffer(data.size(), api::kMapRead | api::kCopyDestination));
  const api::CommandEncoder encoder = functions_.device_create_command_encoder(device_, nullptr);
  functions_.command_encoder_copy_buffer_to_buffer(encoder, buffer.handle(), offset,
                                                   staging.handle(), 0, data.size());
  TANDEM_TRY(submit_encoder(encoder));
  Pending<Completion> completion;
  functions_.buffer_map_async(
      staging.handle(), api::kMapModeRead, 0, data.size(),
      {.function = on_completion, .user1 = completion.get(), .user2 = nullptr});
  if (!process_until(completion->done)) return io_error("WebGPU: the device does not answer");
  TANDEM_TRY(take_error());
  if (!completion->ok) return io_error("WebGPU: no mapping: " + completion->message);
  const void* mapped = functions_.buffer_get_const_mapped_range(staging.handle(), 0, data.size());
  if (mapped == nullptr) return io_error("WebGPU: the mapped memory is not there");
  std::memcpy(data.data(), mapped, data.size());
  functions_.buffer_unmap(staging.handle());
  return {};
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)

}  // namespace tandem::kernels::webgpu
