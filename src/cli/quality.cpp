#include "cli/quality.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "model/experts.h"
#include "model/layer.h"
#include "weights/dtype.h"
#include "weights/quantize.h"

namespace tandem::cli {
namespace {

double relative(double error, double squares) {
  return squares > 0 ? std::sqrt(error / squares) : 0;
}

/// Sum of squared differences between a matrix and the tensor that it was made from, and of the
/// tensor's squares.
struct Sums {
  double error = 0;
  double squares = 0;
};

Result<Sums> compare(const weights::TensorData& tensor, const weights::MatrixPart& part,
                     const kernels::PackedMatrix& packed, ThreadPool& pool) {
  const weights::TensorInfo& info = tensor.info;
  const weights::DType dtype = info.dtype;
  const uint64_t slab = info.shape[info.shape.size() - 2] * info.shape.back();
  const uint64_t base = part.slab * slab;
  const auto read = [&](uint64_t element, std::span<float> values) {
    return weights::widen(dtype,
                          tensor.bytes.subspan(weights::bytes_of(dtype, base + element),
                                               weights::bytes_of(dtype, values.size())),
                          values);
  };
  std::vector<float> turned;
  if (part.transposed) {
    turned.resize(slab);
    TANDEM_TRY(read(0, turned));
  }
  Sums total;
  std::mutex mutex;
  pool.split(part.rows, 64, [&](uint64_t begin, uint64_t end) {
    std::vector<float> row(part.columns);
    std::vector<int32_t> integers(part.columns);
    Sums own;
    for (uint64_t r = begin; r < end; ++r) {
      const uint64_t place = part.first_row + r * part.row_step;
      if (part.transposed) {
        for (uint64_t k = 0; k < part.columns; ++k) row[k] = turned[k * info.shape.back() + place];
      } else {
        (void)read(place * part.columns, row);
      }
      kernels::load_row(packed, static_cast<uint32_t>(r), integers);
      const double scale = packed.row_scales[r];
      for (uint64_t k = 0; k < part.columns; ++k) {
        const double difference = integers[k] * scale - row[k];
        own.error += difference * difference;
        own.squares += double{row[k]} * row[k];
      }
    }
    const std::lock_guard lock(mutex);
    total.error += own.error;
    total.squares += own.squares;
  });
  return total;
}

/// A matrix as loading makes it, at 8 bits and at 4.
struct Measured {
  weights::MatrixPart part;
  kernels::WeightFormat format_8 = kernels::WeightFormat::k8;
  kernels::WeightFormat format_4 = kernels::WeightFormat::k4;
};

/// Every matrix of a model but routers, of which nearly nothing is lost (docs/arithmetic.md), by
/// tensor.
std::map<std::string, std::vector<Measured>> measured_matrices(const model::ModelConfig& config) {
  using model::WeightBits;
  std::map<std::string, std::vector<Measured>> found;
  const auto add = [&](const std::vector<model::MatrixName>& names, const auto& format) {
    for (const model::MatrixName& name : names) {
      found[name.weight()].push_back({name.part, format(WeightBits::k8), format(WeightBits::k4)});
    }
  };
  const auto expert = [&](WeightBits bits) { return model::expert_format(config, bits); };
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    add(model::layer_matrices(config, layer), model::layer_format);
    if (!config.has_experts(layer)) continue;
    const model::ExpertTensors tensors = model::expert_tensors(config, layer);
    for (const auto& names : tensors.experts) add(names, expert);
    add(tensors.shared, model::layer_format);
  }
  add({model::embedding_matrix(config)}, model::ends_format);
  if (!config.tied_embeddings) add({model::head_matrix(config)}, model::ends_format);
  return found;
}

void add_type(std::string& types, const std::string& type) {
  if (types.find(type) == std::string::npos) types += (types.empty() ? "" : ", ") + type;
}

}  // namespace

double KindQuality::relative_8() const {
  return relative(error_8, squares);
}
double KindQuality::relative_4() const {
  return relative(error_4, squares);
}

std::string tensor_kind(const std::string& name) {
  std::string kind;
  bool seen = false;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    // What is before a layer's number is the same for all; an expert's comes after it.
    if (number && !seen) {
      kind.clear();
    } else if (!number && part != "weight") {
      kind += (kind.empty() ? "" : ".") + part;
    }
    seen = seen || number;
    begin = end + 1;
  }
  return kind;
}

std::string stored_types(const weights::Checkpoint& checkpoint) {
  std::map<std::string, uint64_t> counts;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    ++counts[checkpoint.stored(tensor.name)->stored_as];
  }
  std::vector<std::pair<uint64_t, std::string>> order;
  order.reserve(counts.size());
  for (const auto& [type, count] : counts) order.emplace_back(count, type);
  std::ranges::stable_sort(order, std::greater<>(), &std::pair<uint64_t, std::string>::first);
  std::string text;
  for (const auto& [count, type] : order) {
    text += (text.empty() ? "" : "; ") + std::to_string(count) + " " + type;
  }
  return text;
}

Result<std::vector<KindQuality>> measure_quality(const Model& model, ThreadPool& pool,
                                                 const std::atomic<bool>& cancel) {
  std::map<std::string, KindQuality> kinds;
  KindQuality all;
  all.kind = "all";
  for (const auto& [name, matrices] : measured_matrices(model.config)) {
    TANDEM_ASSIGN(const weights::TensorData tensor, model.checkpoint->read(name));
    KindQuality one;
    for (const Measured& matrix : matrices) {
      if (cancel) return Error{ErrorKind::kCancelled, "measuring the quality was stopped"};
      Sums sums[2];
      for (const bool four : {false, true}) {
        TANDEM_ASSIGN(const auto packed,
                      weights::quantize_matrix(tensor, matrix.part,
                                               four ? matrix.format_4 : matrix.format_8, pool));
        TANDEM_ASSIGN(sums[four ? 1 : 0], compare(tensor, matrix.part, packed, pool));
      }
      one.weights += uint64_t{matrix.part.rows} * matrix.part.columns;
      one.squares += sums[0].squares;
      one.error_8 += sums[0].error;
      one.error_4 += sums[1].error;
    }
    const std::string kind_name = tensor_kind(name);
    KindQuality& kind = kinds[kind_name];
    kind.kind = kind_name;
    for (KindQuality* sum : {&kind, &all}) {
      sum->tensors += 1;
      sum->weights += one.weights;
      sum->squares += one.squares;
      sum->error_8 += one.error_8;
      sum->error_4 += one.error_4;
      add_type(sum->stored_as, model.checkpoint->stored(name)->stored_as);
    }
  }
  std::vector<KindQuality> result;
  result.reserve(kinds.size() + 1);
  for (auto& [name, kind] : kinds) result.push_back(std::move(kind));
  result.push_back(std::move(all));
  return result;
}

}  // namespace tandem::cli
