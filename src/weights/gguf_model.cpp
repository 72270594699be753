#include "weights/gguf_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "weights/dtype.h"
#include "weights/gguf_changes.h"
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
  std::string_view base = name;
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
    if (row.gguf == base) return Mapping{prefix + std::string(row.model), row.change};
  }
  const size_t dot = base.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view suffix = base.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  for (const GgufTensorRow& row : rows) {
    if (row.gguf != base.substr(0, dot)) continue;
    return Mapping{prefix + std::string(row.model) + std::string(suffix), row.change};
  }
  return std::nullopt;
}

class WeightMaker {
 public:
  WeightMaker(const Json& config, const std::vector<std::shared_ptr<const MappedFile>>& files)
      : files_(files) {
    const auto count = [&](const char* key, uint64_t fallback) {
      const auto found = config.find(key);
      const bool given = found != config.end() && found->is_number_unsigned();
      return given ? found->get<uint64_t>() : uint64_t{fallback};
    };
    shapes_.heads = count("num_attention_heads", 0);
    shapes_.kv_heads = count("num_key_value_heads", shapes_.heads);
    shapes_.key_heads = count("linear_num_key_heads", 0);
    shapes_.value_heads = count("linear_num_value_heads", 0);
    shapes_.key_dim = count("linear_key_head_dim", 0);
    shapes_.value_dim = count("linear_value_head_dim", 0);
  }

  /// Appends what a tensor becomes. Errors name the tensor.
  Status add(const GgufTensor& tensor, const Mapping& mapping, std::vector<StoredWeight>& out) {
    StoredWeight weight;
    weight.info = {mapping.name, tensor.dtype, tensor.shape};
    weight.pieces.push_back(
        {files_.empty() ? nullptr : files_[tensor.part], tensor.offset, tensor.bytes});
    weight.stored_as = std::string(name(tensor.dtype));
    const auto status = [&]() -> Status {
      if (mapping.change == GgufChange::kExperts) return add_experts(weight, out);
      if (mapping.change == GgufChange::kPairedExperts) return add_half(std::move(weight), out);
      TANDEM_TRY(undo_change(mapping.change, shapes_, weight));
      out.push_back(std::move(weight));
      return {};
    }();
    if (!status.ok()) return status.error().in("tensor " + printable(tensor.name));
    return {};
  }

  /// Fails if a tensor is there without the other one that it belongs with.
  [[nodiscard]] Status check_halves() const {
    if (halves_.empty()) return {};
    return invalid("tensor " + printable(halves_.begin()->first) +
                   ": only one of the two that make it is there");
  }

 private:
  static Status add_experts(const StoredWeight& all, std::vector<StoredWeight>& out) {
    const std::vector<uint64_t>& shape = all.info.shape;
    if (shape.size() != 3 || shape[0] > 4096) {
      return invalid("expected [experts, rows, columns] with at most 4096 experts");
    }
    const uint64_t bytes = all.pieces[0].bytes / shape[0];
    const size_t mark = all.info.name.find('%');
    for (uint64_t expert = 0; expert < shape[0]; ++expert) {
      StoredWeight one = all;
      one.info.name.replace(mark, 1, std::to_string(expert));
      one.info.shape.erase(one.info.shape.begin());
      one.pieces[0].offset += expert * bytes;
      one.pieces[0].bytes = bytes;
      out.push_back(std::move(one));
    }
    return {};
  }

  // Tensors come in the order of their names: gates before ups.
  Status add_half(StoredWeight weight, std::vector<StoredWeight>& out) {
    const auto first = halves_.find(weight.info.name);
    if (first == halves_.end()) {
      const std::string name = weight.info.name;
      halves_.emplace(name, std::move(weight));
      return {};
    }
    TANDEM_ASSIGN(StoredWeight both, interleave(first->second, weight));
    halves_.erase(first);
    out.push_back(std::move(both));
    return {};
  }

  const std::vector<std::shared_ptr<const MappedFile>>& files_;
  GgufShapes shapes_;
  std::map<std::string, StoredWeight> halves_;
};

/// Layers past those of the config only draft tokens: they are no part of the answer.
bool past_layers(std::string_view name, const Json& config) {
  if (!name.starts_with("blk.")) return false;
  const std::string_view rest = name.substr(4);
  uint64_t layer = 0;
  const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const auto layers = config.find("num_hidden_layers");
  return end.ec == std::errc() && config.contains("linear_num_value_heads") &&
         layers != config.end() && layer >= layers->get<uint64_t>();
}

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
    if (past_layers(tensor.name, config)) continue;
    const auto mapping = map_name(family, tensor.name);
    if (!mapping) {
      return unsupported("tensor " + printable(tensor.name) + " is no part of " +
                         std::string(family.architecture) + " that Tandem knows");
    }
    TANDEM_TRY(maker.add(tensor, *mapping, weights));
  }
  TANDEM_TRY(maker.check_halves());
  return weights;
}

Result<GgufModel> open_gguf(const std::filesystem::path& path) {
  TANDEM_ASSIGN(auto parts, open_parts(path));
  GgufModel model;
  for (uint32_t i = 0; i < parts.size(); ++i) {
    model.files.push_back(parts[i].file);
    for (GgufTensor& tensor : parts[i].header.tensors) tensor.part = i;
  }
  // Keys are those of the first part, a vocabulary among them; tensors are those of all.
  model.header = std::move(parts.front().header);
  for (size_t i = 1; i < parts.size(); ++i) {
    std::ranges::move(parts[i].header.tensors, std::back_inserter(model.header.tensors));
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
