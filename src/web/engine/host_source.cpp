#include "web/engine/host_source.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/aligned.h"
#include "web/engine/host.h"
#include "weights/printable.h"
#include "weights/safetensors.h"

namespace tandem::web {
namespace {

constexpr uint64_t kMostAtOnce = uint64_t{1} << 30;

using Buffer = AlignedArray<std::byte>;

Result<std::shared_ptr<Buffer>> fetch(uint32_t file, uint64_t offset, uint64_t length) {
  if (length > UINT32_MAX) {
    return Error{ErrorKind::kMemory, std::to_string(length) + " bytes do not fit the module"};
  }
  auto buffer = std::make_shared<Buffer>(length);
  if (buffer->size() != length) {
    return Error{ErrorKind::kMemory, "no memory for " + std::to_string(length) + " bytes"};
  }
  for (uint64_t done = 0; done < length; done += kMostAtOnce) {
    const auto count = static_cast<uint32_t>(std::min(kMostAtOnce, length - done));
    if (tandem_host_read(file, static_cast<double>(offset + done), buffer->data() + done, count) !=
        0) {
      return Error{ErrorKind::kIo, "file " + std::to_string(file) + ": the host can't read " +
                                       std::to_string(count) + " bytes at " +
                                       std::to_string(offset + done)};
    }
  }
  return buffer;
}

}  // namespace

Status HostSource::add(uint32_t file, uint64_t size) {
  const std::string name = "file " + std::to_string(file);
  if (size < 8)
    return invalid(name + ": " + std::to_string(size) + " bytes are no safetensors file");
  TANDEM_ASSIGN(const auto prefix, fetch(file, 0, 8));
  uint64_t length = 0;
  std::memcpy(&length, prefix->data(), sizeof(length));
  if (length > std::min(size - 8, weights::kMaxSafetensorsHeader)) {
    return invalid(name + ": a header of " + std::to_string(length) + " bytes in a file of " +
                   std::to_string(size));
  }
  TANDEM_ASSIGN(const auto header, fetch(file, 0, 8 + length));
  auto tensors = weights::parse_safetensors({header->data(), header->size()}, size);
  if (!tensors.ok()) return tensors.error().in(name);
  for (const weights::StoredTensor& tensor : *tensors) {
    auto info = weights::weight_info(tensor);
    if (!info.ok()) continue;  // a buffer of another type: no weight, so nobody asks for it
    if (!entries_.try_emplace(tensor.name, Entry{std::move(*info), file, tensor.offset}).second) {
      return invalid(name + ": tensor " + weights::printable(tensor.name) +
                     " is in another file too");
    }
  }
  return {};
}

const weights::TensorInfo* HostSource::find(std::string_view tensor) const {
  const auto found = entries_.find(tensor);
  return found == entries_.end() ? nullptr : &found->second.info;
}

Result<weights::TensorData> HostSource::read(std::string_view tensor) {
  const auto found = entries_.find(tensor);
  if (found == entries_.end()) {
    return Error{ErrorKind::kNotFound, "no tensor " + weights::printable(tensor)};
  }
  const Entry& entry = found->second;
  auto buffer = fetch(entry.file, entry.offset, entry.info.bytes());
  if (!buffer.ok()) return buffer.error().in("tensor " + weights::printable(tensor));
  const std::span<const std::byte> bytes((*buffer)->data(), (*buffer)->size());
  return weights::TensorData{entry.info, bytes, std::move(*buffer)};
}

}  // namespace tandem::web
