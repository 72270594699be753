// The part of WebGPU's C interface (webgpu.h as Dawn of 2025 has it) that Tandem uses: structures
// of the same layout, named without the WGPU prefix, and the functions as a table that
// load_library() fills. The library is looked for when the program runs; building needs none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::webgpu::api {

using Instance = struct InstanceOpaque*;
using Adapter = struct AdapterOpaque*;
using DeviceHandle = struct DeviceOpaque*;
using Queue = struct QueueOpaque*;
using BufferHandle = struct BufferOpaque*;
using ShaderModule = struct ShaderModuleOpaque*;
using PipelineHandle = struct ComputePipelineOpaque*;
using BindGroupLayout = struct BindGroupLayoutOpaque*;
using BindGroup = struct BindGroupOpaque*;
using CommandEncoder = struct CommandEncoderOpaque*;
using ComputePass = struct ComputePassOpaque*;
using CommandBuffer = struct CommandBufferOpaque*;
using QuerySet = struct QuerySetOpaque*;

using Bool = uint32_t;
using Flags = uint64_t;

inline constexpr uint64_t kWholeSize = UINT64_MAX;

// Enumerations, as far as they are used.
inline constexpr uint32_t kSuccess = 1;             ///< of every status
inline constexpr uint32_t kAllowProcessEvents = 2;  ///< callbacks run in instance_process_events
inline constexpr uint32_t kAllowSpontaneous = 3;
inline constexpr uint32_t kShaderSourceWgsl = 2;
inline constexpr uint32_t kFeatureLevelCore = 2;
inline constexpr uint32_t kHighPerformance = 2;
inline constexpr uint32_t kBackendNull = 1;  ///< accepts everything, computes nothing
inline constexpr uint32_t kAdapterIsCpu = 3;
/// The feature's number in bun-webgpu 0.1.7; newer headers have another one, so that its presence
/// shows only when a query set is made.
inline constexpr uint32_t kTimestampQuery = 3;
inline constexpr uint32_t kQueryTimestamp = 2;  ///< the type of query

inline constexpr Flags kMapRead = 0x1;
inline constexpr Flags kCopySource = 0x4;
inline constexpr Flags kCopyDestination = 0x8;
inline constexpr Flags kUniform = 0x40;
inline constexpr Flags kStorage = 0x80;
inline constexpr Flags kQueryResolve = 0x200;
inline constexpr Flags kMapModeRead = 0x1;

struct StringView {
  const char* data = nullptr;
  size_t length = 0;
};

struct Chain {
  Chain* next = nullptr;
  uint32_t type = 0;
};

struct Future {
  uint64_t id = 0;
};

struct Limits {
  Chain* next = nullptr;
  uint32_t max_texture_dimension_1d = 0;
  uint32_t max_texture_dimension_2d = 0;
  uint32_t max_texture_dimension_3d = 0;
  uint32_t max_texture_array_layers = 0;
  uint32_t max_bind_groups = 0;
  uint32_t max_bind_groups_plus_vertex_buffers = 0;
  uint32_t max_bindings_per_bind_group = 0;
  uint32_t max_dynamic_uniform_buffers = 0;
  uint32_t max_dynamic_storage_buffers = 0;
  uint32_t max_sampled_textures = 0;
  uint32_t max_samplers = 0;
  uint32_t max_storage_buffers = 0;
  uint32_t max_storage_textures = 0;
  uint32_t max_uniform_buffers = 0;
  uint64_t max_uniform_binding = 0;
  uint64_t max_storage_binding = 0;
  uint32_t min_uniform_alignment = 0;
  uint32_t min_storage_alignment = 0;
  uint32_t max_vertex_buffers = 0;
  uint64_t max_buffer = 0;
  uint32_t max_vertex_attributes = 0;
  uint32_t max_vertex_stride = 0;
  uint32_t max_inter_stage_variables = 0;
  uint32_t max_color_attachments = 0;
  uint32_t max_color_attachment_bytes = 0;
  uint32_t max_workgroup_storage = 0;
  uint32_t max_workgroup_invocations = 0;
  uint32_t max_workgroup_size_x = 0;
  uint32_t max_workgroup_size_y = 0;
  uint32_t max_workgroup_size_z = 0;
  uint32_t max_workgroups = 0;
  uint32_t max_immediate = 0;
};

struct AdapterInfo {
  Chain* next = nullptr;
  StringView vendor;
  StringView architecture;
  StringView device;
  StringView description;
  uint32_t backend = 0;
  uint32_t adapter_type = 0;
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t subgroup_min = 0;
  uint32_t subgroup_max = 0;
};

/// A callback with its two pointers for the caller.
template <typename Function>
struct Callback {
  Chain* next = nullptr;
  uint32_t mode = kAllowProcessEvents;
  Function function = nullptr;
  void* user1 = nullptr;
  void* user2 = nullptr;
};

using AdapterFunction = void (*)(uint32_t status, Adapter, StringView message, void*, void*);
using DeviceFunction = void (*)(uint32_t status, DeviceHandle, StringView message, void*, void*);
using StatusFunction = void (*)(uint32_t status, StringView message, void*, void*);
using LostFunction = void (*)(const DeviceHandle*, uint32_t reason, StringView message, void*,
                              void*);
using ErrorFunction = void (*)(const DeviceHandle*, uint32_t type, StringView message, void*,
                               void*);

/// Uncaptured errors have no mode: they are reported by the call that causes them.
struct ErrorCallback {
  Chain* next = nullptr;
  ErrorFunction function = nullptr;
  void* user1 = nullptr;
  void* user2 = nullptr;
};

struct RequestAdapterOptions {
  Chain* next = nullptr;
  uint32_t feature_level = kFeatureLevelCore;
  uint32_t power_preference = kHighPerformance;
  Bool force_fallback = 0;
  uint32_t backend = 0;
  void* surface = nullptr;
};

struct QueueDescriptor {
  Chain* next = nullptr;
  StringView label;
};

struct DeviceDescriptor {
  Chain* next = nullptr;
  StringView label;
  size_t feature_count = 0;
  const uint32_t* features = nullptr;
  const Limits* limits = nullptr;
  QueueDescriptor queue;
  Callback<LostFunction> lost;
  ErrorCallback error;
};

struct BufferDescriptor {
  Chain* next = nullptr;
  StringView label;
  Flags usage = 0;
  uint64_t size = 0;
  Bool mapped_at_creation = 0;
};

struct ShaderSourceWgsl {
  Chain chain;
  StringView code;
};

struct ShaderModuleDescriptor {
  Chain* next = nullptr;
  StringView label;
};

struct ComputeState {
  Chain* next = nullptr;
  ShaderModule module = nullptr;
  StringView entry_point;
  size_t constant_count = 0;
  const void* constants = nullptr;
};

struct PipelineDescriptor {
  Chain* next = nullptr;
  StringView label;
  void* layout = nullptr;  ///< null: from the shader
  ComputeState compute;
};

struct BindGroupEntry {
  Chain* next = nullptr;
  uint32_t binding = 0;
  BufferHandle buffer = nullptr;
  uint64_t offset = 0;
  uint64_t size = kWholeSize;
  void* sampler = nullptr;
  void* texture_view = nullptr;
};

struct BindGroupDescriptor {
  Chain* next = nullptr;
  StringView label;
  BindGroupLayout layout = nullptr;
  size_t entry_count = 0;
  const BindGroupEntry* entries = nullptr;
};

struct QuerySetDescriptor {
  Chain* next = nullptr;
  StringView label;
  uint32_t type = kQueryTimestamp;
  uint32_t count = 0;
};

struct TimestampWrites {
  Chain* next = nullptr;
  QuerySet queries = nullptr;
  uint32_t begin_index = 0;
  uint32_t end_index = 0;
};

struct ComputePassDescriptor {
  Chain* next = nullptr;
  StringView label;
  const TimestampWrites* timestamps = nullptr;
};

/// The functions, by the names of webgpu.h: X(result, member, name, parameters).
#define TANDEM_WEBGPU_FUNCTIONS(X)                                                         \
  X(Instance, create_instance, "wgpuCreateInstance", (const void*))                        \
  X(void, instance_release, "wgpuInstanceRelease", (Instance))                             \
  X(void, instance_process_events, "wgpuInstanceProcessEvents", (Instance))                \
  X(Future, instance_request_adapter, "wgpuInstanceRequestAdapter",                        \
    (Instance, const RequestAdapterOptions*, Callback<AdapterFunction>))                   \
  X(uint32_t, adapter_get_info, "wgpuAdapterGetInfo", (Adapter, AdapterInfo*))             \
  X(void, adapter_info_free_members, "wgpuAdapterInfoFreeMembers", (AdapterInfo))          \
  X(uint32_t, adapter_get_limits, "wgpuAdapterGetLimits", (Adapter, Limits*))              \
  X(Future, adapter_request_device, "wgpuAdapterRequestDevice",                            \
    (Adapter, const DeviceDescriptor*, Callback<DeviceFunction>))                          \
  X(void, adapter_release, "wgpuAdapterRelease", (Adapter))                                \
  X(Queue, device_get_queue, "wgpuDeviceGetQueue", (DeviceHandle))                         \
  X(void, device_release, "wgpuDeviceRelease", (DeviceHandle))                             \
  X(void, queue_release, "wgpuQueueRelease", (Queue))                                      \
  X(BufferHandle, device_create_buffer, "wgpuDeviceCreateBuffer",                          \
    (DeviceHandle, const BufferDescriptor*))                                               \
  X(void, buffer_destroy, "wgpuBufferDestroy", (BufferHandle))                             \
  X(void, buffer_release, "wgpuBufferRelease", (BufferHandle))                             \
  X(Future, buffer_map_async, "wgpuBufferMapAsync",                                        \
    (BufferHandle, Flags, size_t, size_t, Callback<StatusFunction>))                       \
  X(const void*, buffer_get_const_mapped_range, "wgpuBufferGetConstMappedRange",           \
    (BufferHandle, size_t, size_t))                                                        \
  X(void, buffer_unmap, "wgpuBufferUnmap", (BufferHandle))                                 \
  X(ShaderModule, device_create_shader_module, "wgpuDeviceCreateShaderModule",             \
    (DeviceHandle, const ShaderModuleDescriptor*))                                         \
  X(void, shader_module_release, "wgpuShaderModuleRelease", (ShaderModule))                \
  X(PipelineHandle, device_create_compute_pipeline, "wgpuDeviceCreateComputePipeline",     \
    (DeviceHandle, const PipelineDescriptor*))                                             \
  X(void, compute_pipeline_release, "wgpuComputePipelineRelease", (PipelineHandle))        \
  X(BindGroupLayout, compute_pipeline_get_bind_group_layout,                               \
    "wgpuComputePipelineGetBindGroupLayout", (PipelineHandle, uint32_t))                   \
  X(void, bind_group_layout_release, "wgpuBindGroupLayoutRelease", (BindGroupLayout))      \
  X(BindGroup, device_create_bind_group, "wgpuDeviceCreateBindGroup",                      \
    (DeviceHandle, const BindGroupDescriptor*))                                            \
  X(void, bind_group_release, "wgpuBindGroupRelease", (BindGroup))                         \
  X(CommandEncoder, device_create_command_encoder, "wgpuDeviceCreateCommandEncoder",       \
    (DeviceHandle, const void*))                                                           \
  X(void, command_encoder_release, "wgpuCommandEncoderRelease", (CommandEncoder))          \
  X(ComputePass, command_encoder_begin_compute_pass, "wgpuCommandEncoderBeginComputePass", \
    (CommandEncoder, const ComputePassDescriptor*))                                        \
  X(QuerySet, device_create_query_set, "wgpuDeviceCreateQuerySet",                         \
    (DeviceHandle, const QuerySetDescriptor*))                                             \
  X(void, query_set_release, "wgpuQuerySetRelease", (QuerySet))                            \
  X(void, command_encoder_resolve_query_set, "wgpuCommandEncoderResolveQuerySet",          \
    (CommandEncoder, QuerySet, uint32_t, uint32_t, BufferHandle, uint64_t))                \
  X(uint32_t, adapter_has_feature, "wgpuAdapterHasFeature", (Adapter, uint32_t))           \
  X(void, command_encoder_copy_buffer_to_buffer, "wgpuCommandEncoderCopyBufferToBuffer",   \
    (CommandEncoder, BufferHandle, uint64_t, BufferHandle, uint64_t, uint64_t))            \
  X(CommandBuffer, command_encoder_finish, "wgpuCommandEncoderFinish",                     \
    (CommandEncoder, const void*))                                                         \
  X(void, command_buffer_release, "wgpuCommandBufferRelease", (CommandBuffer))             \
  X(void, compute_pass_set_pipeline, "wgpuComputePassEncoderSetPipeline",                  \
    (ComputePass, PipelineHandle))                                                         \
  X(void, compute_pass_set_bind_group, "wgpuComputePassEncoderSetBindGroup",               \
    (ComputePass, uint32_t, BindGroup, size_t, const uint32_t*))                           \
  X(void, compute_pass_dispatch, "wgpuComputePassEncoderDispatchWorkgroups",               \
    (ComputePass, uint32_t, uint32_t, uint32_t))                                           \
  X(void, compute_pass_end, "wgpuComputePassEncoderEnd", (ComputePass))                    \
  X(void, compute_pass_release, "wgpuComputePassEncoderRelease", (ComputePass))            \
  X(void, queue_submit, "wgpuQueueSubmit", (Queue, size_t, const CommandBuffer*))          \
  X(void, queue_write_buffer, "wgpuQueueWriteBuffer",                                      \
    (Queue, BufferHandle, uint64_t, const void*, size_t))                                  \
  X(Future, queue_on_submitted_work_done, "wgpuQueueOnSubmittedWorkDone",                  \
    (Queue, Callback<StatusFunction>))

/// The library's functions; all are set by load_library().
struct Functions {
#define TANDEM_WEBGPU_MEMBER(result, member, name, parameters) result(*member) parameters = nullptr;
  TANDEM_WEBGPU_FUNCTIONS(TANDEM_WEBGPU_MEMBER)
#undef TANDEM_WEBGPU_MEMBER
};

}  // namespace tandem::kernels::webgpu::api
