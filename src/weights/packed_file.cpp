#include "weights/packed_file.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "arithmetic/format.h"
#include "base/bytes.h"

namespace tandem::weights {
namespace {

constexpr std::string_view kMagic = "TDPACK01";
constexpr uint64_t kPage = 4096;

uint64_t page_up(uint64_t offset) {
  return (offset + kPage - 1) / kPage * kPage;
}

std::span<const std::byte> as_bytes(const Digest& digest) {
  return std::as_bytes(std::span(digest));
}

void read_digest(ByteReader& reader, Digest& digest) {
  const auto bytes = reader.take(digest.size());
  if (bytes.size() == digest.size()) std::memcpy(digest.data(), bytes.data(), bytes.size());
}

Status check_version(uint32_t found, uint32_t wanted, const char* what) {
  if (found == wanted) return {};
  return unsupported(std::string(what) + " version " + std::to_string(found) + ", expected " +
                     std::to_string(wanted));
}

Result<PackedShape> read_shape(ByteReader& reader) {
  const auto format = reader.read<uint8_t>();
  PackedShape shape;
  shape.rows = reader.read<uint32_t>();
  shape.columns = reader.read<uint32_t>();
  if (!reader.ok()) return invalid("ends within its list of matrices");
  if (format > static_cast<uint8_t>(kernels::WeightFormat::k6)) {
    return invalid("expected a weight format from 0 to 2, found " + std::to_string(format));
  }
  if (shape.rows < 1 || shape.rows > kMaxPackedRows || shape.columns < 1 ||
      shape.columns > arithmetic::kMaxRow) {
    return invalid("a matrix of " + std::to_string(shape.rows) + " x " +
                   std::to_string(shape.columns) + " is out of range");
  }
  shape.format = static_cast<kernels::WeightFormat>(format);
  return shape;
}

}  // namespace

uint64_t PackedHeader::data_offset() const {
  return page_up(kMaxPackedHeader - 9 * uint64_t{kMaxPackedMatrices - matrices.size()});
}

// No sum overflows: a matrix has at most 2^24 tiles of at most 2^20 + 64 bytes, and there are at
// most 64.
std::vector<PackedHeader::Place> PackedHeader::places() const {
  std::vector<Place> result;
  uint64_t offset = data_offset();
  for (const PackedShape& shape : matrices) {
    const uint64_t tiles = kernels::tile_count(shape.rows);
    Place place;
    place.weights = offset;
    place.weight_bytes = tiles * kernels::PackedMatrix::tile_bytes(shape.format, shape.columns);
    place.scales = offset + place.weight_bytes;
    place.scale_bytes = tiles * kernels::kTileRows * sizeof(float);
    offset = page_up(place.scales + place.scale_bytes);
    result.push_back(place);
  }
  return result;
}

uint64_t PackedHeader::file_bytes() const {
  const auto all = places();
  return all.empty() ? data_offset() : page_up(all.back().scales + all.back().scale_bytes);
}

std::vector<std::byte> PackedHeader::serialize() const {
  ByteWriter writer;
  writer.append(std::as_bytes(std::span(kMagic)));
  writer.write(arithmetic::kContractVersion);
  writer.write(kPackedLayout);
  writer.append(as_bytes(key));
  writer.append(as_bytes(content));
  writer.write(static_cast<uint32_t>(matrices.size()));
  for (const PackedShape& shape : matrices) {
    writer.write(static_cast<uint8_t>(shape.format));
    writer.write(shape.rows);
    writer.write(shape.columns);
  }
  const Digest digest = sha256(writer.bytes());
  writer.append(as_bytes(digest));
  return writer.release();
}

Result<PackedHeader> PackedHeader::parse(std::span<const std::byte> bytes, uint64_t file_bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.take(kMagic.size());
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic)))) {
    return invalid("expected it to begin with " + std::string(kMagic));
  }
  const auto contract = reader.read<uint32_t>();
  const auto layout = reader.read<uint32_t>();
  if (!reader.ok()) return invalid("ends within its header");
  TANDEM_TRY(check_version(contract, arithmetic::kContractVersion, "arithmetic contract"));
  TANDEM_TRY(check_version(layout, kPackedLayout, "layout"));
  PackedHeader header;
  read_digest(reader, header.key);
  read_digest(reader, header.content);
  const auto count = reader.read<uint32_t>();
  if (!reader.ok()) return invalid("ends within its header");
  if (count < 1 || count > kMaxPackedMatrices) {
    return invalid("expected 1 to " + std::to_string(kMaxPackedMatrices) + " matrices, found " +
                   std::to_string(count));
  }
  for (uint32_t i = 0; i < count; ++i) {
    TANDEM_ASSIGN(const PackedShape shape, read_shape(reader));
    header.matrices.push_back(shape);
  }
  const uint64_t length = bytes.size() - reader.remaining();
  Digest stored{};
  read_digest(reader, stored);
  if (!reader.ok()) return invalid("ends within its header");
  if (sha256(bytes.first(length)) != stored) return invalid("its header is damaged");
  if (header.file_bytes() != file_bytes) {
    return invalid("expected " + std::to_string(header.file_bytes()) + " bytes, found " +
                   std::to_string(file_bytes));
  }
  return header;
}

}  // namespace tandem::weights
