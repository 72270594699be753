#include "cli/quality.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "model/families.h"
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
  const weights::DType dtype = tensor.info.dtype;
  std::vector<float> turned;
  if (part.transposed) {
    turned.resize(tensor.info.elements());
    TANDEM_TRY(weights::widen(dtype, tensor.bytes, turned));
  }
  Sums total;
  std::mutex mutex;
  pool.split(part.rows, 64, [&](uint64_t begin, uint64_t end) {
    std::vector<float> row(part.columns);
    std::vector<int32_t> integers(part.columns);
    Sums own;
    for (uint64_t r = begin; r < end; ++r) {
      if (part.transposed) {
        for (uint64_t k = 0; k < part.columns; ++k) row[k] = turned[k * part.rows + r];
      } else {
        const auto bytes = tensor.bytes.subspan(weights::bytes_of(dtype, r * part.columns),
                                                weights::bytes_of(dtype, part.columns));
        (void)weights::widen(dtype, bytes, row);
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

bool is_matrix(const weights::TensorInfo& info, const model::ModelConfig& config) {
  constexpr uint64_t kLeast = 16;  // gates of single heads and convolutions are kept otherwise
  if (info.shape.size() != 2 || info.shape[0] < kLeast || info.shape[1] < kLeast) return false;
  const std::string_view positions = config.family->names.positions;
  return positions.empty() || info.name != config.prefix + std::string(positions) + ".weight";
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
  const model::ModelConfig& config = model.config;
  const std::string embedding = model::embedding_matrix(config).tensor + ".weight";
  const std::string head = model::head_matrix(config).tensor + ".weight";
  std::map<std::string, KindQuality> kinds;
  KindQuality all;
  all.kind = "all";
  for (const weights::TensorInfo& info : model.checkpoint->tensors()) {
    if (!is_matrix(info, config)) continue;
    if (cancel) return Error{ErrorKind::kCancelled, "measuring the quality was stopped"};
    const bool end = info.name == embedding || info.name == head;
    weights::MatrixPart part;
    part.transposed = config.family->transposed && !end;
    part.rows = static_cast<uint32_t>(info.shape[part.transposed ? 1 : 0]);
    part.columns = static_cast<uint32_t>(info.shape[part.transposed ? 0 : 1]);
    TANDEM_ASSIGN(const weights::TensorData tensor, model.checkpoint->read(info.name));
    KindQuality one;
    one.kind = tensor_kind(info.name);
    for (const model::WeightBits bits : {model::WeightBits::k8, model::WeightBits::k4}) {
      const auto format = end ? model::ends_format(bits) : model::layer_format(bits);
      TANDEM_ASSIGN(const auto packed, weights::quantize_matrix(tensor, part, format, pool));
      TANDEM_ASSIGN(const Sums sums, compare(tensor, part, packed, pool));
      (bits == model::WeightBits::k8 ? one.error_8 : one.error_4) = sums.error;
      one.squares = sums.squares;
    }
    KindQuality& kind = kinds[one.kind];
    kind.kind = one.kind;
    for (KindQuality* sum : {&kind, &all}) {
      sum->tensors += 1;
      sum->weights += info.elements();
      sum->squares += one.squares;
      sum->error_8 += one.error_8;
      sum->error_4 += one.error_4;
      add_type(sum->stored_as, model.checkpoint->stored(info.name)->stored_as);
    }
  }
  std::vector<KindQuality> result;
  result.reserve(kinds.size() + 1);
  for (auto& [name, kind] : kinds) result.push_back(std::move(kind));
  result.push_back(std::move(all));
  return result;
}

}  // namespace tandem::cli
