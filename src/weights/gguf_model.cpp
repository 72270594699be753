#include "weights/gguf_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "weights/dtype.h"
#include "weights/printable.h"

namespace tandem::weights {
namespace {

using Json = nlohmann::ordered_json;

// Tensors that became part of the config.
constexpr std::array<std::string_view, 3> kFactors{"rope_freqs.weight", "rope_factors_long.weight",
                                                   "rope_factors_short.weight"};

/// Where a tensor of a file goes.
struct Mapping {
  std::string name;  ///< with "%" for an expert's number
  GgufChange change = GgufChange::kNone;
};

std::optional<Mapping> map_name(const GgufFamily& family, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  std::string_view base = name.substr(0, dot);
  std::string prefix;
  std::span<const GgufTensorRow> rows = family.globals;
  if (base.starts_with("blk.")) {
    base.remove_prefix(4);
    const size_t end = base.find('.');
    const std::string_view layer = base.substr(0, end);
    const bool number = !layer.empty() && layer.size() <= 4 && (layer == "0" || layer[0] != '0') &&
                        std::ranges::all_of(layer, [](char c) { return c >= '0' && c <= '9'; });
    if (end == std::string_view::npos || !number) return std::nullopt;
    prefix = std::string(family.layers) + std::string(layer) + ".";
    base.remove_prefix(end + 1);
    rows = family.tensors;
  }
  for (const GgufTensorRow& row : rows) {
    if (row.gguf != base) continue;
    return Mapping{prefix + std::string(row.model) + std::string(suffix), row.change};
  }
  return std::nullopt;
}

/// Row `row` of a head's rotary pairs in the model's order, where the file has the two of each pair
/// side by side.
uint64_t paired_row(uint64_t row, uint64_t head_rows) {
  const uint64_t head = row / head_rows;
  const uint64_t within = row % head_rows;
  const uint64_t half = head_rows / 2;
  return head * head_rows + (within % half) * 2 + within / half;
}

Convert unpair(const TensorInfo& info, uint64_t head_rows) {
  // A bias is one row to the readers, and pairs are among its elements.
  const bool vector = info.shape.size() == 1;
  const uint64_t width = vector ? bytes_of(info.dtype, 1) : row_bytes(info);
  const uint64_t all = vector ? info.shape[0] : 0;
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    return RowMaker(
        [=, from = pieces[0]](uint64_t first, uint64_t count, std::span<std::byte> out) {
          const uint64_t begin = vector ? 0 : first;
          const uint64_t rows = vector ? all : count;
          for (uint64_t i = 0; i < rows; ++i) {
            const auto row = from.subspan(paired_row(begin + i, head_rows) * width, width);
            std::memcpy(out.data() + i * width, row.data(), width);
          }
        });
  };
}

Convert minus_one(const TensorInfo& info) {
  const DType dtype = info.dtype;
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    return RowMaker([=, from = pieces[0]](uint64_t, uint64_t, std::span<std::byte> out) {
      std::vector<float> values(out.size() / sizeof(float));
      (void)widen(dtype, from, values);
      for (float& value : values) value -= 1.0F;
      std::memcpy(out.data(), values.data(), out.size());
    });
  };
}

/// `stored` is [rows, columns]; the result [columns, rows] in binary32.
Convert transpose(const TensorInfo& stored) {
  const DType dtype = stored.dtype;
  const uint64_t rows = stored.shape[0];
  const uint64_t columns = stored.shape[1];
  return [=](std::span<const std::span<const std::byte>> pieces) -> Result<RowMaker> {
    return RowMaker([=, from = pieces[0]](uint64_t first, uint64_t count,
                                          std::span<std::byte> out) {
      std::vector<float> row(columns);
      for (uint64_t r = 0; r < rows; ++r) {
        (void)widen(dtype, from.subspan(bytes_of(dtype, r * columns), bytes_of(dtype, columns)),
                    row);
        for (uint64_t k = 0; k < count; ++k) {
          std::memcpy(out.data() + (k * rows + r) * sizeof(float), &row[first + k], sizeof(float));
        }
      }
    });
  };
}

class WeightMaker {
 public:
  WeightMaker(const Json& config, const std::vector<std::shared_ptr<const MappedFile>>& files)
      : files_(files),
        heads_(config.value("num_attention_heads", uint64_t{0})),
        kv_heads_(config.value("num_key_value_heads", heads_)) {}

  /// Appends what a tensor becomes.
  Status add(const GgufTensor& tensor, const Mapping& mapping, std::vector<StoredWeight>& out) {
    StoredWeight weight;
    weight.info = {mapping.name, tensor.dtype, tensor.shape};
    weight.pieces.push_back(
        {files_.empty() ? nullptr : files_[tensor.part], tensor.offset, tensor.bytes});
    weight.stored_as = std::string(name(tensor.dtype));
    const std::string what = "tensor " + printable(tensor.name);
    switch (mapping.change) {
      case GgufChange::kNone:
        break;
      case GgufChange::kPairedQuery:
      case GgufChange::kPairedKey: {
        const uint64_t heads = mapping.change == GgufChange::kPairedQuery ? heads_ : kv_heads_;
        if (heads == 0 || tensor.shape.front() % (2 * heads) != 0 ||
            (tensor.shape.size() == 1 && block_size(tensor.dtype).elements != 1)) {
          return invalid(what + ": expected rows for " + std::to_string(heads) +
                         " heads of even size, found " + std::to_string(tensor.shape.front()));
        }
        const uint64_t head_rows = tensor.shape.front() / heads;
        weight.convert = unpair(weight.info, head_rows);
        weight.conversion = "unpair " + std::to_string(head_rows);
        break;
      }
      case GgufChange::kPlusOne:
        if (tensor.shape.size() != 1) return invalid(what + ": expected a vector");
        weight.convert = minus_one(weight.info);
        weight.conversion = "minus one";
        weight.info.dtype = DType::kF32;
        break;
      case GgufChange::kTransposed:
        if (tensor.shape.size() != 2) break;  // a bias
        weight.convert = transpose(weight.info);
        weight.conversion = "transpose";
        weight.info.dtype = DType::kF32;
        std::swap(weight.info.shape[0], weight.info.shape[1]);
        break;
      case GgufChange::kExperts:
        return add_experts(tensor, weight, out);
    }
    out.push_back(std::move(weight));
    return {};
  }

 private:
  static Status add_experts(const GgufTensor& tensor, const StoredWeight& all,
                            std::vector<StoredWeight>& out) {
    if (tensor.shape.size() != 3 || tensor.shape[0] > 4096) {
      return invalid("tensor " + printable(tensor.name) +
                     ": expected [experts, rows, columns] with at most 4096 experts");
    }
    const uint64_t bytes = tensor.bytes / tensor.shape[0];
    const size_t mark = all.info.name.find('%');
    for (uint64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      StoredWeight one = all;
      one.info.name.replace(mark, 1, std::to_string(expert));
      one.info.shape.erase(one.info.shape.begin());
      one.pieces[0].offset += expert * bytes;
      one.pieces[0].bytes = bytes;
      out.push_back(std::move(one));
    }
    return {};
  }

  const std::vector<std::shared_ptr<const MappedFile>>& files_;
  uint64_t heads_;
  uint64_t kv_heads_;
};

/// The numbers of a vector that became part of the config, as they were before they were binary32.
Result<Json> read_factors(const GgufTensor& tensor, const MappedFile& file) {
  const std::string what = "tensor " + printable(tensor.name);
  if (tensor.shape.size() != 1 || tensor.shape[0] > 4096 || tensor.dtype != DType::kF32) {
    return invalid(what + ": expected a vector of at most 4096 F32");
  }
  std::vector<float> values(tensor.shape[0]);
  TANDEM_TRY(file.read_at(tensor.offset, std::as_writable_bytes(std::span(values))));
  Json list = Json::array();
  for (const float value : values) {
    if (!(value > 1e-6F && value < 1e9F)) {
      return invalid(what + ": expected factors from 1e-6 to 1e9, found " + std::to_string(value));
    }
    std::array<char, 64> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
    double exact = value;
    std::from_chars(text.data(), end.ptr, exact);
    list.push_back(exact);
  }
  return list;
}

struct Part {
  GgufHeader header;
  std::shared_ptr<const MappedFile> file;
};

/// What a part of a split model says of itself must fit its place.
Status check_part(const GgufHeader& header, uint64_t index, uint64_t parts) {
  TANDEM_ASSIGN(const auto count, header.integer("split.count", 0, UINT32_MAX));
  TANDEM_ASSIGN(const auto number, header.integer("split.no", 0, UINT32_MAX));
  const uint64_t claimed = std::max<uint64_t>(1, count.value_or(1));
  if (claimed != parts || (parts > 1 && number.value_or(0) != index)) {
    return invalid("expected part " + std::to_string(index + 1) + " of " + std::to_string(parts) +
                   ", found split.no " + std::to_string(number.value_or(0)) + " and split.count " +
                   std::to_string(count.value_or(1)) +
                   (parts == 1 ? "; a split model is opened by its part -00001-of-…" : ""));
  }
  return {};
}

Result<std::vector<Part>> open_parts(const std::filesystem::path& path) {
  TANDEM_ASSIGN(const auto paths, gguf_parts(path));
  std::vector<Part> parts;
  for (size_t i = 0; i < paths.size(); ++i) {
    Part part;
    TANDEM_ASSIGN(part.file, MappedFile::open(paths[i]));
    auto header = parse_gguf(part.file->bytes(), part.file->identity().size);
    if (!header.ok()) return header.error().in(paths[i].string());
    part.header = std::move(*header);
    if (const Status status = check_part(part.header, i, paths.size()); !status.ok()) {
      return status.error().in(paths[i].string());
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

Result<std::vector<StoredWeight>> gguf_weights(
    const GgufHeader& header, const GgufFamily& family, const std::string& config_json,
    const std::vector<std::shared_ptr<const MappedFile>>& files) {
  const Json config = Json::parse(config_json, nullptr, false);
  if (!config.is_object()) return invalid("the config made from the metadata is no object");
  WeightMaker maker(config, files);
  std::vector<StoredWeight> weights;
  for (const GgufTensor& tensor : header.tensors) {
    if (std::ranges::find(kFactors, tensor.name) != kFactors.end()) continue;
    const auto mapping = map_name(family, tensor.name);
    if (!mapping) {
      return unsupported("tensor " + printable(tensor.name) + " is no part of " +
                         std::string(family.architecture) + " that Tandem knows");
    }
    TANDEM_TRY(maker.add(tensor, *mapping, weights));
  }
  return weights;
}

Result<GgufModel> open_gguf(const std::filesystem::path& path) {
  TANDEM_ASSIGN(auto parts, open_parts(path));
  GgufModel model;
  model.header = parts.front().header;
  model.header.tensors.clear();
  for (uint32_t i = 0; i < parts.size(); ++i) {
    model.files.push_back(parts[i].file);
    for (GgufTensor& tensor : parts[i].header.tensors) {
      tensor.part = i;
      model.header.tensors.push_back(std::move(tensor));
    }
  }
  std::sort(model.header.tensors.begin(), model.header.tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  const std::string where = model.files.front()->identity().path;
  const auto failed = [&](const Error& error) { return error.in(where); };
  const auto twin =
      std::adjacent_find(model.header.tensors.begin(), model.header.tensors.end(),
                         [](const GgufTensor& a, const GgufTensor& b) { return a.name == b.name; });
  if (twin != model.header.tensors.end()) {
    return invalid(where + ": tensor " + printable(twin->name) + " stands in two parts");
  }
  const auto count = model.header.integer("split.tensors.count", 0, UINT32_MAX);
  if (!count.ok()) return failed(count.error());
  if (count->has_value() && **count != model.header.tensors.size()) {
    return invalid(where + ": key split.tensors.count: expected " + std::to_string(**count) +
                   " tensors in all parts, found " + std::to_string(model.header.tensors.size()));
  }
  const auto family = find_gguf_family(model.header);
  if (!family.ok()) return failed(family.error());
  const auto config = gguf_config(model.header, **family);
  if (!config.ok()) return failed(config.error());
  Json object = Json::parse(*config, nullptr, false);
  for (const std::string_view name : kFactors) {
    const GgufTensor* tensor = model.header.find_tensor(name);
    if (tensor == nullptr) continue;
    auto factors = read_factors(*tensor, *model.files[tensor->part]);
    if (!factors.ok()) return failed(factors.error());
    for (auto& entry : object["rope_scaling"]) {
      if (entry == name) entry = *factors;
    }
  }
  model.config_json = object.dump(1);
  auto weights = gguf_weights(model.header, **family, model.config_json, model.files);
  if (!weights.ok()) return failed(weights.error());
  model.weights = std::move(*weights);
  return model;
}

}  // namespace tandem::weights
