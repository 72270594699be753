#include "weights/manifest.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "weights/dtype.h"
#include "weights/printable.h"

namespace tandem::weights {

namespace {

constexpr std::string_view kMagic = "TDMANIF1";
constexpr uint64_t kSmallestTensor = 4 + 1 + 1 + 1 + 32;  ///< one-byte name, a scalar

std::span<const std::byte> as_bytes(const Digest& digest) {
  return std::as_bytes(std::span(digest));
}

void read_digest(ByteReader& reader, Digest& digest) {
  const auto bytes = reader.take(digest.size());
  if (bytes.size() == digest.size()) std::memcpy(digest.data(), bytes.data(), bytes.size());
}

/// One tensor; adds its size to `total`.
Status read_tensor(ByteReader& reader, ManifestTensor& tensor, uint64_t& total) {
  tensor.info.name = reader.text(kMaxTensorName);
  const auto dtype = reader.read<uint8_t>();
  const auto dims = reader.read<uint8_t>();
  if (!reader.ok()) return invalid("manifest: ends within a tensor, or a name is too long");
  TANDEM_TRY(check_tensor_name(tensor.info.name));
  const std::string what = "manifest: tensor " + printable(tensor.info.name);
  if (dtype >= kDTypes) {
    return invalid(what + ": expected an element type from 0 to " + std::to_string(kDTypes - 1) +
                   ", found " + std::to_string(dtype));
  }
  if (dims > kMaxWeightDims) {
    return invalid(what + ": expected at most " + std::to_string(kMaxWeightDims) +
                   " dimensions, found " + std::to_string(dims));
  }
  tensor.info.dtype = static_cast<DType>(dtype);
  for (uint8_t i = 0; i < dims; ++i) tensor.info.shape.push_back(reader.read<uint64_t>());
  if (!reader.ok()) return invalid(what + ": the manifest ends within its shape");
  const auto counted = tensor_bytes(tensor.info.dtype, tensor.info.shape);
  if (!counted) {
    return invalid(what + ": expected a shape without 0, of whole blocks and below 2^63 bytes");
  }
  const uint64_t bytes = *counted;
  if (__builtin_add_overflow(total, bytes, &total) || total >> 63 != 0) {
    return invalid(what + ": expected less than 2^63 bytes in all tensors together");
  }
  read_digest(reader, tensor.sha256);
  if (!reader.ok()) return invalid(what + ": the manifest ends within its hash");
  return {};
}

}  // namespace

const ManifestTensor* Manifest::find(std::string_view tensor) const {
  const auto place = std::lower_bound(
      tensors.begin(), tensors.end(), tensor,
      [](const ManifestTensor& entry, std::string_view name) { return entry.info.name < name; });
  return place != tensors.end() && place->info.name == tensor ? &*place : nullptr;
}

const TensorInfo* ManifestSource::find(std::string_view tensor) const {
  const ManifestTensor* entry = manifest_.find(tensor);
  return entry == nullptr ? nullptr : &entry->info;
}

TensorIdentity ManifestSource::identity(std::string_view tensor) const {
  const ManifestTensor* entry = manifest_.find(tensor);
  if (entry == nullptr) return {};
  return {entry->sha256, std::nullopt};
}

std::vector<std::byte> Manifest::serialize() const {
  ByteWriter writer;
  writer.append(std::as_bytes(std::span(kMagic)));
  writer.append(as_bytes(config));
  writer.write(static_cast<uint32_t>(tensors.size()));
  for (const ManifestTensor& tensor : tensors) {
    writer.text(tensor.info.name);
    writer.write(static_cast<uint8_t>(tensor.info.dtype));
    writer.write(static_cast<uint8_t>(tensor.info.shape.size()));
    for (const uint64_t extent : tensor.info.shape) writer.write(extent);
    writer.append(as_bytes(tensor.sha256));
  }
  return writer.release();
}

Result<Manifest> Manifest::parse(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxManifestBytes) {
    return invalid("manifest: expected at most " + std::to_string(kMaxManifestBytes) +
                   " bytes, found " + std::to_string(bytes.size()));
  }
  ByteReader reader(bytes);
  const auto magic = reader.take(kMagic.size());
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic)))) {
    return invalid("manifest: expected it to begin with " + std::string(kMagic));
  }
  Manifest manifest;
  read_digest(reader, manifest.config);
  const auto count = reader.read<uint32_t>();
  if (!reader.ok()) return invalid("manifest: ends before its number of tensors");
  if (count == 0 || count > kMaxTensors || count > reader.remaining() / kSmallestTensor) {
    return invalid("manifest: expected 1 to " + std::to_string(kMaxTensors) +
                   " tensors that fit its size, found a count of " + std::to_string(count));
  }
  manifest.tensors.reserve(count);
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    ManifestTensor tensor;
    TANDEM_TRY(read_tensor(reader, tensor, total));
    if (!manifest.tensors.empty() && tensor.info.name <= manifest.tensors.back().info.name) {
      return invalid("manifest: expected names in rising order, found " +
                     printable(tensor.info.name) + " after " +
                     printable(manifest.tensors.back().info.name));
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  if (!reader.finished()) {
    return invalid("manifest: expected its end after " + std::to_string(count) +
                   " tensors, found " + std::to_string(reader.remaining()) + " more bytes");
  }
  return manifest;
}

Digest model_hash(const Manifest& manifest) {
  return sha256(manifest.serialize());
}

Status verify(const Manifest& manifest, const TensorData& tensor) {
  const std::string what = "tensor " + printable(tensor.info.name);
  const ManifestTensor* entry = manifest.find(tensor.info.name);
  if (entry == nullptr) {
    return Error{ErrorKind::kNotFound, what + ": not in the model's manifest"};
  }
  if (tensor.info.dtype != entry->info.dtype || tensor.info.shape != entry->info.shape ||
      tensor.bytes.size() != entry->info.bytes()) {
    return invalid(what + ": its type, shape or size is not that of the model's manifest");
  }
  const Digest digest = sha256(tensor.bytes);
  if (digest != entry->sha256) {
    return invalid(what + ": expected SHA-256 " + hex(entry->sha256) + ", found " + hex(digest));
  }
  return {};
}

}  // namespace tandem::weights
