#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include <simdjson.h>

#include "weights/printable.h"

namespace tandem::weights {

namespace {

using simdjson::ondemand::object;
using simdjson::ondemand::value;

struct TypeRow {
  StoredType type;
  std::string_view name;
  uint64_t size;
};

constexpr std::array<TypeRow, 17> kTypes{{
    {StoredType::kBool, "BOOL", 1},
    {StoredType::kU8, "U8", 1},
    {StoredType::kI8, "I8", 1},
    {StoredType::kF8E5M2, "F8_E5M2", 1},
    {StoredType::kF8E4M3, "F8_E4M3", 1},
    {StoredType::kF8E8M0, "F8_E8M0", 1},
    {StoredType::kI16, "I16", 2},
    {StoredType::kU16, "U16", 2},
    {StoredType::kF16, "F16", 2},
    {StoredType::kBF16, "BF16", 2},
    {StoredType::kI32, "I32", 4},
    {StoredType::kU32, "U32", 4},
    {StoredType::kF32, "F32", 4},
    {StoredType::kI64, "I64", 8},
    {StoredType::kU64, "U64", 8},
    {StoredType::kF64, "F64", 8},
    {StoredType::kC64, "C64", 8},
}};

const TypeRow& row(StoredType type) {
  for (const TypeRow& candidate : kTypes) {
    if (candidate.type == type) return candidate;
  }
  return kTypes[0];
}

Error json_error(std::string_view what, simdjson::error_code code) {
  return invalid(std::string(what) + ": " + simdjson::error_message(code));
}

/// A value as it stands in the file, for messages.
std::string found(value& element) {
  const std::string_view token = element.raw_json_token();
  return printable(token.substr(0, token.find_last_not_of(" \t\r\n") + 1), 40);
}

/// An array of unsigned integers with at most `limit` elements.
Result<std::vector<uint64_t>> read_integers(value field, size_t limit, std::string_view what) {
  simdjson::ondemand::array array;
  if (field.get_array().get(array) != simdjson::SUCCESS) {
    return invalid(std::string(what) + ": expected an array, found " + found(field));
  }
  std::vector<uint64_t> numbers;
  for (auto entry : array) {
    value element;
    if (const auto code = entry.get(element)) return json_error(what, code);
    uint64_t number = 0;
    if (element.get_uint64().get(number) != simdjson::SUCCESS) {
      return invalid(std::string(what) + ": expected an integer from 0 to 2^64 - 1, found " +
                     found(element));
    }
    if (numbers.size() == limit) {
      return unsupported(std::string(what) + ": expected at most " + std::to_string(limit) +
                         " numbers, found more");
    }
    numbers.push_back(number);
  }
  return numbers;
}

Result<StoredType> read_type(value field) {
  std::string_view text;
  if (field.get_string().get(text) != simdjson::SUCCESS) {
    return invalid("dtype: expected a string, found " + found(field));
  }
  for (const TypeRow& candidate : kTypes) {
    if (candidate.name == text) return candidate.type;
  }
  return unsupported("dtype: expected a type of the safetensors format, found \"" +
                     printable(text, 40) + "\"");
}

std::string describe(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

/// Sets `bytes` from type and shape, without ever forming a product that does not fit.
Status count_bytes(StoredTensor& tensor) {
  uint64_t bytes = size_of(tensor.type);
  for (const uint64_t extent : tensor.shape) {
    if (extent == 0) {
      return invalid("shape: expected no extent of 0, found " + describe(tensor.shape));
    }
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes >> 63 != 0) {
      return invalid("shape: expected less than 2^63 bytes, found " + describe(tensor.shape));
    }
  }
  tensor.bytes = bytes;
  return {};
}

/// The members of one tensor's object; `tensor.offset` still counts from the start of the data.
Status read_tensor(value field, uint64_t data_size, StoredTensor& tensor) {
  object members;
  if (field.get_object().get(members) != simdjson::SUCCESS) {
    return invalid("expected an object, found " + found(field));
  }
  bool has_type = false;
  bool has_shape = false;
  bool has_offsets = false;
  std::vector<uint64_t> offsets;
  for (auto member : members) {
    std::string_view key;
    value content;
    if (const auto code = member.unescaped_key().get(key)) return json_error("header", code);
    if (const auto code = member.value().get(content)) return json_error("header", code);
    bool* seen = key == "dtype"          ? &has_type
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_offsets
                                         : nullptr;
    if (seen == nullptr) {
      return invalid("expected dtype, shape and data_offsets, found \"" + printable(key) + "\"");
    }
    if (std::exchange(*seen, true)) return invalid("\"" + std::string(key) + "\" stands twice");
    if (seen == &has_type) {
      TANDEM_ASSIGN(tensor.type, read_type(content));
    } else if (seen == &has_shape) {
      TANDEM_ASSIGN(tensor.shape, read_integers(content, kMaxStoredDims, "shape"));
    } else {
      TANDEM_ASSIGN(offsets, read_integers(content, 2, "data_offsets"));
    }
  }
  if (!has_type) return invalid("expected a \"dtype\", found none");
  if (!has_shape) return invalid("expected a \"shape\", found none");
  if (offsets.size() != 2) return invalid("data_offsets: expected two numbers");
  TANDEM_TRY(count_bytes(tensor));
  if (offsets[0] > offsets[1]) {
    return invalid("data_offsets: expected begin before end, found " + describe(offsets));
  }
  if (offsets[1] > data_size) {
    return invalid("data_offsets: expected an end within the " + std::to_string(data_size) +
                   " bytes of data, found " + describe(offsets));
  }
  if (offsets[1] - offsets[0] != tensor.bytes) {
    return invalid("expected " + std::to_string(tensor.bytes) + " bytes for " +
                   std::string(name(tensor.type)) + " " + describe(tensor.shape) +
                   ", found data_offsets " + describe(offsets));
  }
  tensor.offset = offsets[0];
  return {};
}

Status check_metadata(value field) {
  object members;
  if (field.get_object().get(members) != simdjson::SUCCESS) {
    return invalid("__metadata__: expected an object, found " + found(field));
  }
  std::set<std::string, std::less<>> keys;
  for (auto member : members) {
    std::string_view key;
    value content;
    std::string_view text;
    if (const auto code = member.unescaped_key().get(key)) return json_error("__metadata__", code);
    if (!keys.emplace(key).second) {
      return invalid("__metadata__: \"" + printable(key) + "\" stands twice");
    }
    if (const auto code = member.value().get(content)) return json_error("__metadata__", code);
    if (content.get_string().get(text) != simdjson::SUCCESS) {
      return invalid("__metadata__: expected only strings, found " + found(content));
    }
  }
  return {};
}

/// Walks every byte of the header: on-demand parsing checks only what is visited.
Result<std::vector<StoredTensor>> read_header(std::string_view text, uint64_t data_size) {
  const simdjson::padded_string json(text);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  if (const auto code = parser.iterate(json).get(document)) return json_error("header", code);
  object members;
  if (const auto code = document.get_object().get(members)) {
    return json_error("header: expected a JSON object", code);
  }
  std::vector<StoredTensor> tensors;
  bool has_metadata = false;
  for (auto member : members) {
    std::string_view key;
    value content;
    if (const auto code = member.unescaped_key().get(key)) return json_error("header", code);
    if (const auto code = member.value().get(content)) return json_error("header", code);
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) return invalid("\"__metadata__\" stands twice");
      TANDEM_TRY(check_metadata(content));
      continue;
    }
    TANDEM_TRY(check_tensor_name(key));
    if (tensors.size() == kMaxTensors) {
      return unsupported("expected at most " + std::to_string(kMaxTensors) +
                         " tensors, found more");
    }
    StoredTensor& tensor = tensors.emplace_back();
    tensor.name = key;
    if (const Status status = read_tensor(content, data_size, tensor); !status.ok()) {
      return status.error().in("tensor " + printable(tensor.name));
    }
  }
  const char* rest = nullptr;
  if (document.current_location().get(rest) != simdjson::OUT_OF_BOUNDS) {
    return invalid("header: expected nothing after the JSON object");
  }
  return tensors;
}

/// The tensors, in any order, must cover the data exactly.
Status check_coverage(const std::vector<StoredTensor>& tensors, uint64_t data_size) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].offset < tensors[b].offset; });
  uint64_t end = 0;
  for (const uint32_t index : order) {
    const StoredTensor& tensor = tensors[index];
    if (tensor.offset != end) {
      return invalid("tensor " + printable(tensor.name) + ": " +
                     (tensor.offset < end ? "overlaps another: " : "leaves a gap: ") +
                     "expected its data at offset " + std::to_string(end) + ", found " +
                     std::to_string(tensor.offset));
    }
    end += tensor.bytes;
  }
  if (end != data_size) {
    return invalid("expected " + std::to_string(end) + " bytes of data, found " +
                   std::to_string(data_size) + ": trailing bytes that no tensor owns");
  }
  return {};
}

}  // namespace

Status check_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxTensorName) {
    return invalid("expected a tensor name of 1 to " + std::to_string(kMaxTensorName) +
                   " bytes, found " + std::to_string(name.size()));
  }
  if (!simdjson::validate_utf8(name.data(), name.size())) {
    return invalid("expected a tensor name in UTF-8, found \"" + printable(name) + "\"");
  }
  const bool path =
      name == "." || name == ".." || name.find_first_of("/\\") != std::string_view::npos;
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
  if (path || control) {
    return invalid("expected a tensor name without path parts and control characters, found \"" +
                   printable(name) + "\"");
  }
  return {};
}

std::string_view name(StoredType type) {
  return row(type).name;
}
uint64_t size_of(StoredType type) {
  return row(type).size;
}

std::optional<DType> weight_type(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return StoredType::kF16;
    case DType::kBF16:
      return StoredType::kBF16;
    default:
      break;
  }
  return StoredType::kF32;
}

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    uint64_t file_size) {
  if (file_size < 8 || file.size() < 8) {
    return invalid("expected a safetensors file of at least 8 bytes, found " +
                   std::to_string(file_size));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length < 2 || length > kMaxSafetensorsHeader) {
    return invalid("expected a header of 2 to " + std::to_string(kMaxSafetensorsHeader) +
                   " bytes, found a length of " + std::to_string(length));
  }
  if (length > file_size - 8 || length > file.size() - 8) {
    return invalid("expected a header of " + std::to_string(length) + " bytes, found only " +
                   std::to_string(file_size - 8) + " bytes after its length");
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8,
                                static_cast<size_t>(length));
  if (header.front() != '{') return invalid("header: expected '{' as its first byte");
  const uint64_t data_start = 8 + length;
  TANDEM_ASSIGN(auto tensors, read_header(header, file_size - data_start));

  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](const StoredTensor& a, const StoredTensor& b) { return a.name == b.name; });
  if (twin != tensors.end()) {
    return invalid("tensor " + printable(twin->name) + " stands twice in the header");
  }
  TANDEM_TRY(check_coverage(tensors, file_size - data_start));
  for (StoredTensor& tensor : tensors) tensor.offset += data_start;
  return tensors;
}

Result<TensorInfo> weight_info(const StoredTensor& tensor) {
  const auto dtype = weight_type(tensor.type);
  if (!dtype) {
    return unsupported("tensor " + printable(tensor.name) +
                       ": expected F32, F16 or BF16 weights, found " +
                       std::string(name(tensor.type)));
  }
  if (tensor.shape.size() > kMaxWeightDims) {
    return unsupported("tensor " + printable(tensor.name) + ": expected at most " +
                       std::to_string(kMaxWeightDims) + " dimensions, found " +
                       std::to_string(tensor.shape.size()));
  }
  return TensorInfo{tensor.name, *dtype, tensor.shape};
}

}  // namespace tandem::weights
