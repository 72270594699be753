// A .safetensors file through its mapping.
#include <algorithm>
#include <utility>

#include "weights/printable.h"
#include "weights/safetensors.h"

namespace tandem::weights {

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path,
                                                               bool growing) {
  TANDEM_ASSIGN(auto mapping, MappedFile::open(path, growing));
  auto tensors = parse_safetensors(mapping->bytes(), mapping->identity().size);
  if (!tensors.ok()) return tensors.error().in(path.string());
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->file_ = std::move(mapping);
  file->tensors_ = std::move(*tensors);
  return file;
}

const StoredTensor* SafetensorsFile::find(std::string_view tensor) const {
  const auto place = std::lower_bound(
      tensors_.begin(), tensors_.end(), tensor,
      [](const StoredTensor& entry, std::string_view wanted) { return entry.name < wanted; });
  return place != tensors_.end() && place->name == tensor ? &*place : nullptr;
}

Result<TensorData> SafetensorsFile::read(std::string_view tensor) const {
  const std::string& path = file_->identity().path;
  const StoredTensor* entry = find(tensor);
  if (entry == nullptr) {
    return Error{ErrorKind::kNotFound, path + ": no tensor " + printable(tensor)};
  }
  auto info = weight_info(*entry);
  if (!info.ok()) return info.error().in(path);
  TANDEM_ASSIGN(auto raw, read_raw(*entry));
  auto release = [file = file_, begin = entry->offset, bytes = entry->bytes](uint64_t offset,
                                                                             uint64_t length) {
    if (offset < bytes) file->release(begin + offset, std::min(length, bytes - offset));
  };
  return TensorData{std::move(*info), raw.bytes, std::move(raw.owner), std::move(release)};
}

Result<SafetensorsFile::Raw> SafetensorsFile::read_raw(const StoredTensor& tensor) const {
  if (const Status status = file_->check_unchanged(); !status.ok()) {
    return Error{status.error().kind,
                 status.error().message + " (tensor " + printable(tensor.name) + ")"};
  }
  file_->will_need(tensor.offset, tensor.bytes);
  const auto bytes = file_->bytes().subspan(tensor.offset, tensor.bytes);
  std::shared_ptr<const void> owner(
      bytes.data(), [file = file_, offset = tensor.offset, length = tensor.bytes](const void*) {
        file->release(offset, length);
      });
  return Raw{bytes, std::move(owner)};
}

}  // namespace tandem::weights
