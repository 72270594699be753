// Integer weights of AWQ, GPTQ and compressed-tensors to groups of 32 elements.
//
// Words are 32 bits with the first number in the lowest bits; [a, b] are shapes, o output rows, i
// input columns, g groups, n = 32 / bits:
//
//   awq             qweight [i, o/8], qzeros [g, o/8], scales [g, o]: eight rows to a word, in the
//                   order 0 2 4 6 1 3 5 7; w = (q - z) * s
//   gptq            qweight [i/n, o], qzeros [g, o/n], scales [g, o], g_idx [i] (the group of a
//                   column; in order if it is missing); w = (q - (z + 1 mod 2^bits)) * s
//   gptq_v2         the same with w = (q - z) * s
//   pack-quantized  weight_packed [o, i/n], weight_scale [o, g], weight_shape [2],
//   weight_zero_point
//                   [o/n, g] (optional), weight_g_idx [i] (optional); numbers are stored plus
//                   2^(bits-1); w = (q - z) * s
//   int-quantized   weight [o, i] and weight_zero_point [o, g] (optional) as I8, weight_scale [o,
//   g],
//                   [o] or one
//
// Source: AutoAWQ (awq/utils/packing_utils.py), GPTQModel (nn_modules/qlinear), compressed-tensors
// (compressors/quantized_compressors).
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "weights/dtype.h"
#include "weights/printable.h"
#include "weights/quantized.h"
#include "weights/quantized_parts.h"

namespace tandem::weights {
namespace {

using Bytes = std::span<const std::byte>;

/// Rows that are unpacked together: input-major words are read in runs of them.
constexpr uint64_t kRowsTogether = 64;
constexpr std::array<uint32_t, 8> kAwqPlace{0, 4, 1, 5, 2, 6, 3, 7};  ///< nibble of row r mod 8

uint32_t word_at(Bytes bytes, uint64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

/// One module, by shapes alone.
struct Module {
  PackedKind kind = PackedKind::kAwq;
  uint32_t bits = 4;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t groups = 1;
  uint64_t group_size = 1;
  StoredType scale_type = StoredType::kF16;
  bool one_scale = false;  ///< of the whole tensor
  bool any_order = false;
  int zeros = -1;  ///< piece of the zero points, or -1
  int order = -1;  ///< piece of the columns' groups, or -1

  [[nodiscard]] bool input_major() const {
    return kind == PackedKind::kAwq || kind == PackedKind::kGptq || kind == PackedKind::kGptqV2;
  }
  [[nodiscard]] uint32_t per_word() const { return 32 / bits; }
  [[nodiscard]] uint32_t mask() const { return (1U << bits) - 1; }
};

/// A module with its bytes.
struct Contents {
  Module module;
  Bytes weights;
  Bytes scales;
  Bytes zeros;
  std::vector<uint32_t> group_of;  ///< a column's; empty: in order

  [[nodiscard]] float scale(uint64_t row, uint64_t group) const {
    const uint64_t index = module.one_scale       ? 0
                           : module.input_major() ? group * module.rows + row
                                                  : row * module.groups + group;
    return stored_number(module.scale_type, scales, index);
  }

  /// What is subtracted from the numbers that unpack() gives.
  [[nodiscard]] int zero(uint64_t row, uint64_t group) const {
    const Module& m = module;
    const uint32_t n = m.kind == PackedKind::kIntQuantized ? 1 : m.per_word();
    const int middle = m.kind == PackedKind::kPackQuantized ? 1 << (m.bits - 1) : 0;
    if (m.zeros < 0) return middle;
    switch (m.kind) {
      case PackedKind::kAwq:
        return static_cast<int>(
            word_at(zeros, group * (m.rows / 8) + row / 8) >> (4 * kAwqPlace[row % 8]) & 15);
      case PackedKind::kGptq:
      case PackedKind::kGptqV2: {
        const uint32_t stored =
            word_at(zeros, group * (m.rows / n) + row / n) >> (row % n * m.bits) & m.mask();
        return static_cast<int>(m.kind == PackedKind::kGptq ? (stored + 1) & m.mask() : stored);
      }
      case PackedKind::kPackQuantized:
        return static_cast<int>(word_at(zeros, row / n * m.groups + group) >> (row % n * m.bits) &
                                m.mask());
      case PackedKind::kIntQuantized:
        return static_cast<int8_t>(zeros[row * m.groups + group]);
    }
    return 0;
  }

  /// Numbers of rows [first, first + count), [count][columns].
  void unpack(uint64_t first, uint64_t count, int16_t* out) const {
    const Module& m = module;
    const uint64_t n = m.per_word();
    switch (m.kind) {
      case PackedKind::kAwq:
        for (uint64_t k = 0; k < m.columns; ++k) {
          for (uint64_t r = 0; r < count; ++r) {
            const uint64_t row = first + r;
            out[r * m.columns + k] = static_cast<int16_t>(
                word_at(weights, k * (m.rows / 8) + row / 8) >> (4 * kAwqPlace[row % 8]) & 15);
          }
        }
        return;
      case PackedKind::kGptq:
      case PackedKind::kGptqV2:
        for (uint64_t step = 0; step < m.columns / n; ++step) {
          for (uint64_t r = 0; r < count; ++r) {
            const uint32_t word = word_at(weights, step * m.rows + first + r);
            for (uint64_t j = 0; j < n; ++j) {
              out[r * m.columns + step * n + j] =
                  static_cast<int16_t>(word >> (j * m.bits) & m.mask());
            }
          }
        }
        return;
      case PackedKind::kPackQuantized: {
        const uint64_t words = (m.columns + n - 1) / n;
        for (uint64_t r = 0; r < count; ++r) {
          for (uint64_t k = 0; k < m.columns; ++k) {
            out[r * m.columns + k] = static_cast<int16_t>(
                word_at(weights, (first + r) * words + k / n) >> (k % n * m.bits) & m.mask());
          }
        }
        return;
      }
      case PackedKind::kIntQuantized:
        for (uint64_t i = 0; i < count * m.columns; ++i) {
          const int byte = std::to_integer<int>(weights[first * m.columns + i]);
          out[i] = static_cast<int16_t>((byte ^ 0x80) - 0x80);
        }
        return;
    }
  }
};

/// One group of 32: int4_group or int8_group of block.h.
void write_group(const int16_t* numbers, float scale, int zero, DType dtype, std::byte* out) {
  const bool bytes = dtype == DType::kInt8Group;
  // Unsigned 8-bit numbers don't fit a signed byte; all are moved down together.
  const int shift = bytes && *std::max_element(numbers, numbers + kGroupOfStored) > 127 ? 128 : 0;
  const auto moved = static_cast<int16_t>(zero - shift);
  std::memcpy(out, &scale, sizeof scale);
  std::memcpy(out + 4, &moved, sizeof moved);
  for (uint32_t i = 0; i < (bytes ? 32U : 16U); ++i) {
    out[6 + i] = bytes ? static_cast<std::byte>(static_cast<uint8_t>(numbers[i] - shift))
                       : static_cast<std::byte>(numbers[i] | numbers[i + 16] << 4);
  }
}

void write_row(const Contents& contents, uint64_t row, const int16_t* numbers, DType dtype,
               std::byte* out) {
  const Module& m = contents.module;
  if (dtype != DType::kF32) {
    for (uint64_t k = 0; k < m.columns; k += kGroupOfStored) {
      const uint64_t group = k / m.group_size;
      write_group(numbers + k, contents.scale(row, group), contents.zero(row, group), dtype, out);
      out += block_size(dtype).bytes;
    }
    return;
  }
  std::vector<std::pair<float, int>> groups(m.groups);
  for (uint64_t g = 0; g < m.groups; ++g)
    groups[g] = {contents.scale(row, g), contents.zero(row, g)};
  for (uint64_t k = 0; k < m.columns; ++k) {
    const uint64_t group = contents.group_of.empty() ? k / m.group_size : contents.group_of[k];
    const float value = groups[group].first * static_cast<float>(numbers[k] - groups[group].second);
    std::memcpy(out + k * sizeof(float), &value, sizeof value);
  }
}

/// The columns' groups, checked; empty if they are in order.
Result<std::vector<uint32_t>> read_order(const Module& module, Bytes bytes) {
  std::vector<uint32_t> group_of(module.columns);
  bool in_order = true;
  for (uint64_t k = 0; k < module.columns; ++k) {
    group_of[k] = word_at(bytes, k);
    in_order = in_order && group_of[k] == k / module.group_size;
    if (group_of[k] >= module.groups) {
      return invalid("g_idx: expected groups below " + std::to_string(module.groups) + ", found " +
                     std::to_string(static_cast<int32_t>(group_of[k])) + " for column " +
                     std::to_string(k));
    }
  }
  if (in_order) group_of.clear();
  if (!in_order && !module.any_order) {
    return invalid(
        "g_idx: expected columns in the order of their groups, as config.json says; "
        "found another");
  }
  return group_of;
}

Convert unpack_with(const Module& module, DType dtype) {
  return [=](std::span<const Bytes> pieces) -> Result<RowMaker> {
    const auto contents = std::make_shared<Contents>();
    contents->module = module;
    contents->weights = pieces[0];
    contents->scales = pieces[1];
    if (module.zeros >= 0) contents->zeros = pieces[static_cast<size_t>(module.zeros)];
    if (module.order >= 0) {
      TANDEM_ASSIGN(contents->group_of,
                    read_order(module, pieces[static_cast<size_t>(module.order)]));
    }
    return RowMaker([contents, dtype](uint64_t first, uint64_t count, std::span<std::byte> out) {
      const uint64_t columns = contents->module.columns;
      const uint64_t width = bytes_of(dtype, columns);
      std::vector<int16_t> numbers(std::min(count, kRowsTogether) * columns);
      for (uint64_t begin = 0; begin < count; begin += kRowsTogether) {
        const uint64_t rows = std::min(kRowsTogether, count - begin);
        contents->unpack(first + begin, rows, numbers.data());
        for (uint64_t r = 0; r < rows; ++r) {
          write_row(*contents, first + begin + r, numbers.data() + r * columns, dtype,
                    out.data() + (begin + r) * width);
        }
      }
    });
  };
}

std::string described(StoredType type, std::span<const uint64_t> shape) {
  return std::string(name(type)) + " " + shape_text(shape);
}

/// Takes the tensors of one module out of a checkpoint and checks their shapes against each other.
class ModuleReader {
 public:
  ModuleReader(const StoredTensors& found, const PackedOptions& options, std::string base,
               Quantized& result)
      : found_(found), options_(options), base_(std::move(base)), result_(result) {
    module_.kind = options.kind;
    module_.bits = options.bits;
    module_.any_order = options.any_order;
  }

  Status run() {
    switch (options_.kind) {
      case PackedKind::kAwq:
      case PackedKind::kGptq:
      case PackedKind::kGptqV2:
        TANDEM_TRY(input_major());
        break;
      case PackedKind::kPackQuantized:
        TANDEM_TRY(pack_quantized());
        break;
      case PackedKind::kIntQuantized:
        TANDEM_TRY(int_quantized());
        break;
    }
    return finish();
  }

 private:
  [[nodiscard]] const StoredTensor* find(std::string_view suffix) const {
    const auto entry = found_.find(base_ + std::string(suffix));
    return entry == found_.end() ? nullptr : &entry->second.tensor;
  }

  [[nodiscard]] Error expected(std::string_view suffix, const std::string& what,
                               const StoredTensor* tensor) const {
    const std::string shape = tensor == nullptr ? "none" : described(tensor->type, tensor->shape);
    return invalid("tensor " + printable(base_ + std::string(suffix)) + ": expected " + what +
                   ", found " + shape);
  }

  /// Makes a tensor of that type and shape a piece of the weight.
  Status take(std::string_view suffix, StoredType type, const std::vector<uint64_t>& shape) {
    const StoredTensor* tensor = find(suffix);
    const bool fits = tensor != nullptr && tensor->type == type && tensor->shape == shape;
    if (!fits) return expected(suffix, described(type, shape), tensor);
    add_piece(suffix);
    return {};
  }

  void add_piece(std::string_view suffix) {
    const auto entry = found_.find(base_ + std::string(suffix));
    const StoredPlace& place = entry->second;
    pieces_.push_back({place.file, place.tensor.offset, place.tensor.bytes});
    result_.used.insert(entry->first);
  }

  Status input_major() {
    Module& m = module_;
    const bool awq = m.kind == PackedKind::kAwq;
    const uint64_t n = m.per_word();
    const StoredTensor* weights = find(".qweight");
    const StoredTensor* scales = find(".scales");
    if (weights == nullptr || weights->shape.size() != 2 || weights->type != StoredType::kI32) {
      return expected(".qweight", "an I32 matrix", weights);
    }
    if (scales == nullptr || scales->shape.size() != 2 || !is_scale_type(scales->type)) {
      return expected(".scales", "a matrix of floats", scales);
    }
    const uint64_t packed = weights->shape[awq ? 1 : 0];
    if (packed > UINT32_MAX / n) return expected(".qweight", "rows below 2^32", weights);
    m.columns = awq ? weights->shape[0] : packed * n;
    m.rows = awq ? packed * n : weights->shape[1];
    m.groups = scales->shape[0];
    m.scale_type = scales->type;
    if (m.rows % n != 0) return expected(".qweight", "rows that fill words", weights);
    if (m.groups > m.columns) return expected(".scales", "at most a group a column", scales);
    m.group_size = (m.columns + m.groups - 1) / m.groups;
    add_piece(".qweight");
    TANDEM_TRY(take(".scales", m.scale_type, {m.groups, m.rows}));
    m.zeros = static_cast<int>(pieces_.size());
    TANDEM_TRY(take(".qzeros", StoredType::kI32, {m.groups, m.rows / n}));
    if (!awq && find(".g_idx") != nullptr) {
      m.order = static_cast<int>(pieces_.size());
      TANDEM_TRY(take(".g_idx", StoredType::kI32, {m.columns}));
    }
    return {};
  }

  Status pack_quantized() {
    Module& m = module_;
    const StoredTensor* weights = find(".weight_packed");
    const StoredTensor* shape = find(".weight_shape");
    if (weights->shape.size() != 2 || weights->type != StoredType::kI32) {
      return expected(".weight_packed", "an I32 matrix", weights);
    }
    if (shape == nullptr || element_count(*shape) != 2 ||
        (shape->type != StoredType::kI64 && shape->type != StoredType::kI32)) {
      return expected(".weight_shape", "two I64", shape);
    }
    m.rows = weights->shape[0];
    TANDEM_ASSIGN(m.columns, stored_columns());
    m.bits = 0;
    for (const uint32_t bits : {4U, 8U}) {
      if ((m.columns + 32 / bits - 1) / (32 / bits) == weights->shape[1]) m.bits = bits;
    }
    if (m.bits == 0) {
      return expected(".weight_packed",
                      "words of 4 or 8 bits for " + std::to_string(m.columns) + " columns",
                      weights);
    }
    add_piece(".weight_packed");
    result_.used.insert(base_ + ".weight_shape");
    TANDEM_TRY(output_major_scales());
    if (find(".weight_zero_point") != nullptr) {
      m.zeros = static_cast<int>(pieces_.size());
      const uint64_t n = m.per_word();
      TANDEM_TRY(take(".weight_zero_point", StoredType::kI32, {(m.rows + n - 1) / n, m.groups}));
    }
    if (find(".weight_g_idx") != nullptr) {
      m.order = static_cast<int>(pieces_.size());
      TANDEM_TRY(take(".weight_g_idx", StoredType::kI32, {m.columns}));
    }
    return {};
  }

  /// The second number of weight_shape: part of what the checkpoint is, so read when it is opened.
  Result<uint64_t> stored_columns() const {
    const StoredPlace& place = found_.find(base_ + ".weight_shape")->second;
    std::array<std::byte, 16> bytes{};
    const auto part = std::span(bytes).first(place.tensor.bytes);
    TANDEM_TRY(place.file->read_at(place.tensor.offset, part));
    std::array<int64_t, 2> extents{};
    for (size_t i = 0; i < 2; ++i) {
      if (place.tensor.type == StoredType::kI64) {
        std::memcpy(&extents[i], bytes.data() + i * 8, 8);
      } else {
        extents[i] = static_cast<int32_t>(word_at(bytes, i));
      }
    }
    if (extents[0] != static_cast<int64_t>(module_.rows) || extents[1] < 1 ||
        extents[1] > INT32_MAX) {
      return invalid("tensor " + printable(base_) + ".weight_shape: expected " +
                     std::to_string(module_.rows) + " rows and their columns, found " +
                     std::to_string(extents[0]) + " and " + std::to_string(extents[1]));
    }
    return static_cast<uint64_t>(extents[1]);
  }

  Status int_quantized() {
    Module& m = module_;
    const StoredTensor* weights = find(".weight");
    if (weights->shape.size() != 2) return expected(".weight", "a matrix", weights);
    m.rows = weights->shape[0];
    m.columns = weights->shape[1];
    add_piece(".weight");
    TANDEM_TRY(output_major_scales());
    const StoredTensor* zeros = find(".weight_zero_point");
    if (zeros != nullptr) {
      m.zeros = static_cast<int>(pieces_.size());
      if (zeros->type != StoredType::kI8 || element_count(*zeros) != m.rows * m.groups) {
        return expected(".weight_zero_point", "an I8 for each scale", zeros);
      }
      add_piece(".weight_zero_point");
    }
    for (const char* other : {".input_scale", ".input_zero_point"}) {
      if (find(other) != nullptr) result_.used.insert(base_ + other);
    }
    return {};
  }

  Status output_major_scales() {
    Module& m = module_;
    const StoredTensor* scales = find(".weight_scale");
    if (scales == nullptr || !is_scale_type(scales->type)) {
      return expected(".weight_scale", "floats", scales);
    }
    m.scale_type = scales->type;
    const uint64_t count = element_count(*scales);
    m.one_scale = count == 1;
    m.groups = m.one_scale ? 1 : count / m.rows;
    const bool by_row = !scales->shape.empty() && scales->shape[0] == m.rows;
    if (!m.one_scale && (!by_row || m.groups * m.rows != count || m.groups > m.columns)) {
      return expected(".weight_scale",
                      "one, or as many for each of " + std::to_string(m.rows) + " rows", scales);
    }
    m.group_size = (m.columns + m.groups - 1) / m.groups;
    add_piece(".weight_scale");
    return {};
  }

  Status finish() {
    const Module& m = module_;
    const bool groups = m.columns % kGroupOfStored == 0 &&
                        (m.groups == 1 || m.group_size % kGroupOfStored == 0) &&
                        !(m.any_order && m.groups > 1);
    StoredWeight weight;
    weight.info.name = base_ + ".weight";
    weight.info.dtype = !groups ? DType::kF32 : m.bits == 8 ? DType::kInt8Group : DType::kInt4Group;
    weight.info.shape = {m.rows, m.columns};
    if (!tensor_bytes(weight.info.dtype, weight.info.shape)) {
      return invalid("tensor " + printable(base_) + ": expected less than 2^63 bytes");
    }
    weight.pieces = std::move(pieces_);
    weight.convert = unpack_with(m, weight.info.dtype);
    constexpr std::array<std::string_view, 5> kNames{"AWQ", "GPTQ", "GPTQ v2", "pack-quantized",
                                                     "int-quantized"};
    const std::string kind(kNames[static_cast<size_t>(m.kind)]);
    weight.conversion = kind + " " + std::to_string(m.bits) + " " + std::to_string(m.groups) +
                        (m.any_order ? " any order" : "");
    weight.stored_as =
        kind + ", " + std::to_string(m.bits) + " bit, groups of " + std::to_string(m.group_size);
    if (found_.contains(weight.info.name) && m.kind != PackedKind::kIntQuantized) {
      return invalid("tensor " + printable(weight.info.name) + " is stored plain and packed");
    }
    result_.weights.push_back(std::move(weight));
    return {};
  }

  const StoredTensors& found_;
  const PackedOptions& options_;
  std::string base_;
  Quantized& result_;
  Module module_;
  std::vector<FilePiece> pieces_;
};

}  // namespace

Status add_packed(const StoredTensors& found, const PackedOptions& options, Quantized& result) {
  const std::string_view end = options.kind == PackedKind::kPackQuantized  ? ".weight_packed"
                               : options.kind == PackedKind::kIntQuantized ? ".weight"
                                                                           : ".qweight";
  for (const auto& [name, place] : found) {
    if (!name.ends_with(end)) continue;
    if (options.kind == PackedKind::kIntQuantized && place.tensor.type != StoredType::kI8) continue;
    const std::string base = name.substr(0, name.size() - end.size());
    TANDEM_TRY(ModuleReader(found, options, base, result).run());
  }
  return {};
}

}  // namespace tandem::weights
