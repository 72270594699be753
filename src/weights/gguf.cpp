#include "weights/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "weights/dtype.h"
#include "weights/printable.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kSmallestPair = 8 + 1 + 4 + 1;
constexpr uint64_t kSmallestInfo = 8 + 1 + 4 + 4 + 8;

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kValueTypes,
};

// Fewest bytes of a value of each type.
constexpr std::array<uint64_t, kValueTypes> kLeast{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

struct TypeRow {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;
};

constexpr std::array kTypes{
    TypeRow{0, "F32", DType::kF32},       TypeRow{1, "F16", DType::kF16},
    TypeRow{2, "Q4_0", DType::kQ4_0},     TypeRow{3, "Q4_1", DType::kQ4_1},
    TypeRow{6, "Q5_0", DType::kQ5_0},     TypeRow{7, "Q5_1", DType::kQ5_1},
    TypeRow{8, "Q8_0", DType::kQ8_0},     TypeRow{9, "Q8_1", std::nullopt},
    TypeRow{10, "Q2_K", DType::kQ2K},     TypeRow{11, "Q3_K", DType::kQ3K},
    TypeRow{12, "Q4_K", DType::kQ4K},     TypeRow{13, "Q5_K", DType::kQ5K},
    TypeRow{14, "Q6_K", DType::kQ6K},     TypeRow{15, "Q8_K", std::nullopt},
    TypeRow{16, "IQ2_XXS", std::nullopt}, TypeRow{17, "IQ2_XS", std::nullopt},
    TypeRow{18, "IQ3_XXS", std::nullopt}, TypeRow{19, "IQ1_S", std::nullopt},
    TypeRow{20, "IQ4_NL", DType::kIq4Nl}, TypeRow{21, "IQ3_S", std::nullopt},
    TypeRow{22, "IQ2_S", std::nullopt},   TypeRow{23, "IQ4_XS", DType::kIq4Xs},
    TypeRow{24, "I8", std::nullopt},      TypeRow{25, "I16", std::nullopt},
    TypeRow{26, "I32", std::nullopt},     TypeRow{27, "I64", std::nullopt},
    TypeRow{28, "F64", std::nullopt},     TypeRow{29, "IQ1_M", std::nullopt},
    TypeRow{30, "BF16", DType::kBF16},    TypeRow{34, "TQ1_0", std::nullopt},
    TypeRow{35, "TQ2_0", std::nullopt},   TypeRow{39, "MXFP4", DType::kMxfp4},
    TypeRow{40, "NVFP4", std::nullopt},
};

Error ends_within(const std::string& what) {
  return invalid(what + ": expected more bytes, found the end of the file");
}

/// A string with a 64-bit length.
Result<std::string> read_string(ByteReader& reader, uint64_t limit, const std::string& what) {
  const auto length = reader.read<uint64_t>();
  if (!reader.ok()) return ends_within(what);
  if (length > limit || length > reader.remaining()) {
    return invalid(what + ": expected a string of at most " +
                   std::to_string(std::min<uint64_t>(limit, reader.remaining())) +
                   " bytes, found a length of " + std::to_string(length));
  }
  const auto bytes = reader.take(length);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <typename Stored>
auto widened(ByteReader& reader) {
  const auto value = reader.read<Stored>();
  if constexpr (std::is_floating_point_v<Stored>) {
    return static_cast<double>(value);
  } else if constexpr (std::is_signed_v<Stored>) {
    return static_cast<int64_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

/// `count` numbers, or one without an array around it.
template <typename Stored>
GgufValue read_numbers(ByteReader& reader, std::optional<uint64_t> count) {
  if (!count) return widened<Stored>(reader);
  std::vector<decltype(widened<Stored>(reader))> values(*count);
  for (auto& value : values) value = widened<Stored>(reader);
  return values;
}

Result<GgufValue> read_value(ByteReader& reader, uint32_t type, std::optional<uint64_t> count,
                             const std::string& what);

Result<GgufValue> read_array(ByteReader& reader, const std::string& what, int depth) {
  const auto type = reader.read<uint32_t>();
  const auto count = reader.read<uint64_t>();
  if (!reader.ok()) return ends_within(what);
  if (type >= kValueTypes) {
    return invalid(what + ": expected elements of a type from 0 to 12, found " +
                   std::to_string(type));
  }
  if (count > kMaxGgufArray || count > reader.remaining() / kLeast[type]) {
    return invalid(
        what + ": expected at most " +
        std::to_string(std::min<uint64_t>(kMaxGgufArray, reader.remaining() / kLeast[type])) +
        " elements, found a count of " + std::to_string(count));
  }
  if (type != kArray) return read_value(reader, type, count, what);
  if (depth == 4) return invalid(what + ": expected arrays within arrays at most 4 deep");
  for (uint64_t i = 0; i < count; ++i) TANDEM_TRY(read_array(reader, what, depth + 1));
  return GgufValue();
}

Result<GgufValue> read_value(ByteReader& reader, uint32_t type, std::optional<uint64_t> count,
                             const std::string& what) {
  switch (type) {
    case kUint8:
      return read_numbers<uint8_t>(reader, count);
    case kInt8:
      return read_numbers<int8_t>(reader, count);
    case kUint16:
      return read_numbers<uint16_t>(reader, count);
    case kInt16:
      return read_numbers<int16_t>(reader, count);
    case kUint32:
      return read_numbers<uint32_t>(reader, count);
    case kInt32:
      return read_numbers<int32_t>(reader, count);
    case kFloat32:
      return read_numbers<float>(reader, count);
    case kUint64:
      return read_numbers<uint64_t>(reader, count);
    case kInt64:
      return read_numbers<int64_t>(reader, count);
    case kFloat64:
      return read_numbers<double>(reader, count);
    case kBool: {
      const uint64_t booleans = count.value_or(1);
      std::vector<uint64_t> values(booleans);
      for (uint64_t& value : values) {
        value = reader.read<uint8_t>();
        if (value > 1) {
          return invalid(what + ": expected a boolean of 0 or 1, found " + std::to_string(value));
        }
      }
      if (count) return GgufValue(std::move(values));
      return GgufValue(values.front() == 1);
    }
    case kString: {
      if (!count) {
        TANDEM_ASSIGN(std::string one, read_string(reader, kMaxGgufString, what));
        return GgufValue(std::move(one));
      }
      std::vector<std::string> values;
      values.reserve(*count);
      for (uint64_t i = 0; i < *count; ++i) {
        TANDEM_ASSIGN(std::string one, read_string(reader, kMaxGgufString, what));
        values.push_back(std::move(one));
      }
      return GgufValue(std::move(values));
    }
    case kArray:
      return read_array(reader, what, 0);
    default:
      return invalid(what + ": expected a type from 0 to 12, found " + std::to_string(type));
  }
}

Status read_pairs(ByteReader& reader, uint64_t count, GgufHeader& header) {
  if (count > kMaxGgufPairs || count > reader.remaining() / kSmallestPair) {
    return invalid("expected at most " + std::to_string(kMaxGgufPairs) +
                   " keys that fit the file, found a count of " + std::to_string(count));
  }
  header.pairs.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    GgufPair pair;
    TANDEM_ASSIGN(pair.key, read_string(reader, kMaxGgufKey, "key " + std::to_string(i)));
    const std::string what = "key " + printable(pair.key, 80);
    const auto type = reader.read<uint32_t>();
    if (!reader.ok()) return ends_within(what);
    TANDEM_ASSIGN(pair.value, read_value(reader, type, std::nullopt, what));
    if (!reader.ok()) return ends_within(what);
    header.pairs.push_back(std::move(pair));
  }
  std::sort(header.pairs.begin(), header.pairs.end(),
            [](const GgufPair& a, const GgufPair& b) { return a.key < b.key; });
  const auto twin =
      std::adjacent_find(header.pairs.begin(), header.pairs.end(),
                         [](const GgufPair& a, const GgufPair& b) { return a.key == b.key; });
  if (twin != header.pairs.end()) {
    return invalid("key " + printable(twin->key, 80) + " stands twice");
  }
  return {};
}

Result<DType> read_type(uint32_t id, const std::string& what) {
  std::string found = "number " + std::to_string(id);
  for (const TypeRow& row : kTypes) {
    if (row.id != id) continue;
    if (row.dtype) return *row.dtype;
    found = row.name;
  }
  std::string known;
  for (const TypeRow& row : kTypes) {
    if (row.dtype) known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return unsupported(what + ": type " + found + " is not read; known are " + known);
}

Status read_info(ByteReader& reader, GgufTensor& tensor) {
  const std::string what = "tensor " + printable(tensor.name);
  const auto dims = reader.read<uint32_t>();
  if (!reader.ok()) return ends_within(what);
  if (dims < 1 || dims > kMaxGgufDims) {
    return invalid(what + ": expected 1 to 4 dimensions, found " + std::to_string(dims));
  }
  for (uint32_t i = 0; i < dims; ++i) tensor.shape.push_back(reader.read<uint64_t>());
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  const auto type = reader.read<uint32_t>();
  tensor.offset = reader.read<uint64_t>();
  if (!reader.ok()) return ends_within(what);
  TANDEM_ASSIGN(tensor.dtype, read_type(type, what));
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) {
    return invalid(what + ": expected a shape of " + std::string(name(tensor.dtype)) +
                   " blocks, without 0 and below 2^63 bytes, found " + shape_text(tensor.shape));
  }
  tensor.bytes = *bytes;
  return {};
}

Status read_infos(ByteReader& reader, uint64_t count, GgufHeader& header) {
  if (count > kMaxTensors || count > reader.remaining() / kSmallestInfo) {
    return invalid("expected at most " + std::to_string(kMaxTensors) +
                   " tensors that fit the file, found a count of " + std::to_string(count));
  }
  header.tensors.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    TANDEM_ASSIGN(tensor.name,
                  read_string(reader, kMaxTensorName, "name of tensor " + std::to_string(i)));
    TANDEM_TRY(check_tensor_name(tensor.name));
    TANDEM_TRY(read_info(reader, tensor));
    header.tensors.push_back(std::move(tensor));
  }
  return {};
}

/// Turns offsets into places of the file and checks that each tensor has a place of its own.
Status place_tensors(GgufHeader& header, uint64_t data, uint64_t alignment, uint64_t file_size) {
  std::vector<GgufTensor*> order;
  for (GgufTensor& tensor : header.tensors) {
    const std::string what = "tensor " + printable(tensor.name);
    if (tensor.offset % alignment != 0) {
      return invalid(what + ": expected an offset that is a multiple of " +
                     std::to_string(alignment) + ", found " + std::to_string(tensor.offset));
    }
    const uint64_t room = file_size - data;
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      return invalid(what + ": expected " + std::to_string(tensor.bytes) + " bytes within the " +
                     std::to_string(room) + " bytes of data, found an offset of " +
                     std::to_string(tensor.offset));
    }
    tensor.offset += data;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return invalid("tensor " + printable(order[i]->name) + ": its bytes overlap those of " +
                     printable(order[i - 1]->name));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  const auto twin =
      std::adjacent_find(header.tensors.begin(), header.tensors.end(),
                         [](const GgufTensor& a, const GgufTensor& b) { return a.name == b.name; });
  if (twin != header.tensors.end()) {
    return invalid("tensor " + printable(twin->name) + " stands twice");
  }
  return {};
}

std::string key_of(std::string_view key) {
  return "key " + printable(key, 80);
}

}  // namespace

const GgufValue* GgufHeader::find(std::string_view key) const {
  const auto place =
      std::lower_bound(pairs.begin(), pairs.end(), key,
                       [](const GgufPair& pair, std::string_view k) { return pair.key < k; });
  return place != pairs.end() && place->key == key ? &place->value : nullptr;
}

const GgufTensor* GgufHeader::find_tensor(std::string_view wanted) const {
  const auto place = std::lower_bound(
      tensors.begin(), tensors.end(), wanted,
      [](const GgufTensor& tensor, std::string_view name) { return tensor.name < name; });
  return place != tensors.end() && place->name == wanted ? &*place : nullptr;
}

Result<std::optional<uint64_t>> GgufHeader::integer(std::string_view key, uint64_t low,
                                                    uint64_t high) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  uint64_t found = 0;
  std::string spelled;
  if (const auto* plain = std::get_if<uint64_t>(value)) {
    found = *plain;
    spelled = std::to_string(found);
  } else if (const auto* with_sign = std::get_if<int64_t>(value)) {
    spelled = std::to_string(*with_sign);
    found = *with_sign < 0 ? UINT64_MAX : static_cast<uint64_t>(*with_sign);
  } else {
    return invalid(key_of(key) + ": expected an integer, found another type");
  }
  if (found < low || found > high) {
    return invalid(key_of(key) + ": expected an integer from " + std::to_string(low) + " to " +
                   std::to_string(high) + ", found " + spelled);
  }
  return std::optional<uint64_t>(found);
}

Result<std::optional<double>> GgufHeader::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (const auto* real = std::get_if<double>(value)) {
    if (!(*real >= -1e300 && *real <= 1e300)) {
      return invalid(key_of(key) + ": expected a finite number");
    }
    return std::optional<double>(*real);
  }
  if (const auto* plain = std::get_if<uint64_t>(value)) {
    return std::optional<double>(static_cast<double>(*plain));
  }
  if (const auto* with_sign = std::get_if<int64_t>(value)) {
    return std::optional<double>(static_cast<double>(*with_sign));
  }
  return invalid(key_of(key) + ": expected a number, found another type");
}

Result<std::optional<bool>> GgufHeader::flag(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (const auto* boolean = std::get_if<bool>(value)) return std::optional<bool>(*boolean);
  return invalid(key_of(key) + ": expected a boolean, found another type");
}

Result<std::string> GgufHeader::text(std::string_view key, std::string_view fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (const auto* string = std::get_if<std::string>(value)) return *string;
  return invalid(key_of(key) + ": expected a string, found another type");
}

bool looks_like_gguf(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::ranges::equal(file.first(kMagic.size()), std::as_bytes(std::span(kMagic)));
}

Result<GgufHeader> parse_gguf(std::span<const std::byte> file, uint64_t file_size) {
  if (!looks_like_gguf(file)) return invalid("expected a file that begins with GGUF");
  ByteReader reader(file.subspan(kMagic.size()));
  GgufHeader header;
  header.version = reader.read<uint32_t>();
  const auto tensors = reader.read<uint64_t>();
  const auto pairs = reader.read<uint64_t>();
  if (!reader.ok()) return ends_within("header");
  if (header.version < 2 || header.version > 3) {
    return unsupported("expected GGUF version 2 or 3, found " + std::to_string(header.version) +
                       (header.version > 0xffff ? " (a big-endian file?)" : ""));
  }
  TANDEM_TRY(read_pairs(reader, pairs, header));
  TANDEM_TRY(read_infos(reader, tensors, header));
  TANDEM_ASSIGN(const auto given, header.integer("general.alignment", 1, uint64_t{1} << 30));
  const uint64_t alignment = given.value_or(32);
  if (!std::has_single_bit(alignment)) {
    return invalid("key general.alignment: expected a power of two, found " +
                   std::to_string(alignment));
  }
  const uint64_t end = file.size() - reader.remaining();
  const uint64_t data = (end + alignment - 1) / alignment * alignment;
  if (header.tensors.empty()) return header;
  if (data > file_size) return ends_within("padding before the data");
  TANDEM_TRY(place_tensors(header, data, alignment, file_size));
  return header;
}

}  // namespace tandem::weights
