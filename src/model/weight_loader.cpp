// Weights from a source or a cache into a backend.
#include <algorithm>

#include "arithmetic/format.h"
#include "base/bytes.h"
#include "model/families.h"
#include "model/layer.h"
#include "weights/packed_store.h"

namespace tandem::model {

using kernels::Product;

std::vector<Digest> unit_keys(const weights::TensorSource& source, kernels::WeightFormat format,
                              std::span<const MatrixName> names) {
  // Whatever can change an integer or its place.
  ByteWriter contents;
  ByteWriter places;
  bool all_contents = true;
  bool all_places = true;
  for (ByteWriter* writer : {&contents, &places}) {
    writer->text(writer == &contents ? "contents" : "places");
    writer->write(arithmetic::kContractVersion);
    writer->write(weights::kPackedLayout);
    writer->write(static_cast<uint8_t>(format));
  }
  for (const MatrixName& name : names) {
    const std::string tensor = name.tensor + ".weight";
    const weights::TensorInfo* info = source.find(tensor);
    if (info == nullptr) return {};
    const weights::TensorIdentity identity = source.identity(tensor);
    all_contents = all_contents && identity.content.has_value();
    all_places = all_places && identity.place.has_value();
    for (ByteWriter* writer : {&contents, &places}) {
      const auto& digest = writer == &contents ? identity.content : identity.place;
      const Digest known = digest.value_or(Digest{});
      writer->append(std::as_bytes(std::span(known)));
      writer->write(static_cast<uint8_t>(info->dtype));
      writer->write(static_cast<uint8_t>(info->shape.size()));
      for (const uint64_t extent : info->shape) writer->write(extent);
      writer->write(static_cast<uint8_t>(name.part.transposed));
      writer->write(name.part.first_row);
      writer->write(name.part.rows);
      writer->write(name.part.columns);
    }
  }
  std::vector<Digest> keys;
  if (all_contents) keys.push_back(sha256(contents.bytes()));
  if (all_places) keys.push_back(sha256(places.bytes()));
  return keys;
}

std::vector<MatrixName> layer_matrices(const ModelConfig& config, uint32_t layer) {
  LayerNames names = layer_names(config, layer);
  std::vector<MatrixName> matrices;
  if (names.kind == LayerKind::kDeltaNet) {
    matrices = {names.mixed, names.delta_gate, names.rate, names.decay, names.output};
  } else {
    matrices = {names.query, names.key, names.value, names.output};
  }
  if (config.mlp == MlpKind::kGatedSilu) matrices.push_back(names.gate);
  matrices.push_back(names.up);
  matrices.push_back(names.down);
  return matrices;
}

MatrixName embedding_matrix(const ModelConfig& config) {
  MatrixName name;
  name.tensor = config.prefix + std::string(config.family->names.embedding);
  name.part = {false, 0, config.vocab, config.hidden_size};
  return name;
}

MatrixName head_matrix(const ModelConfig& config) {
  MatrixName name;
  name.tensor = std::string(config.family->names.head);
  name.part = {false, 0, config.vocab, config.hidden_size};
  return name;
}

uint64_t cached_bytes(const ModelConfig& config, WeightBits bits,
                      const weights::TensorSource& source, const weights::PackedStore& cache) {
  uint64_t bytes = 0;
  const auto add = [&](kernels::WeightFormat format, std::span<const MatrixName> names) {
    for (const Digest& key : unit_keys(source, format, names)) {
      const uint64_t size = cache.size_of(key);
      bytes += size;
      if (size != 0) break;
    }
  };
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    add(layer_format(bits), layer_matrices(config, layer));
  }
  const MatrixName embedding = embedding_matrix(config);
  add(ends_format(bits), {&embedding, 1});
  if (!config.tied_embeddings) {
    const MatrixName head = head_matrix(config);
    add(ends_format(bits), {&head, 1});
  }
  return bytes;
}

Status WeightLoader::advance(uint64_t bytes) {
  done_ += bytes;
  if (progress_ && !progress_(done_, total_)) {
    return Error{ErrorKind::kCancelled, "loading was stopped"};
  }
  return {};
}

void WeightLoader::expect(std::span<const MatrixName> names) {
  found_.clear();
  made_.clear();
  expected_ = 0;
  if (cache_ == nullptr) return;
  const std::vector<Digest> keys = unit_keys(source_, format_, names);
  if (keys.empty()) return;
  std::vector<weights::PackedShape> shapes;
  for (const MatrixName& name : names) {
    shapes.push_back({format_, name.part.rows, name.part.columns});
  }
  for (const Digest& key : keys) {
    if (auto found = cache_->load(key, shapes, pool_)) {
      found_ = std::move(*found);
      std::reverse(found_.begin(), found_.end());
      return;
    }
  }
  key_ = keys.front();
  expected_ = names.size();
}

std::optional<kernels::PackedMatrix> WeightLoader::from_cache() {
  if (found_.empty()) return std::nullopt;
  kernels::PackedMatrix matrix = std::move(found_.back());
  found_.pop_back();
  return matrix;
}

void WeightLoader::keep(const kernels::PackedMatrix& matrix) {
  if (expected_ == 0) return;
  made_.push_back(matrix.share());
  if (made_.size() < expected_) return;
  cache_->store(key_, std::move(made_));
  made_.clear();
  expected_ = 0;
}

Result<kernels::PackedMatrix> WeightLoader::matrix(const MatrixName& name) {
  const std::string tensor_name = name.tensor + ".weight";
  const uint64_t weights = uint64_t{name.part.rows} * name.part.columns;
  if (auto kept = from_cache()) {
    bytes_ += kept->bytes();
    const weights::TensorInfo* info = source_.find(tensor_name);
    TANDEM_TRY(advance(info == nullptr ? 0 : weights * weights::size_of(info->dtype)));
    return std::move(*kept);
  }
  TANDEM_ASSIGN(const weights::TensorData tensor, source_.read(tensor_name));
  TANDEM_ASSIGN(auto packed, weights::quantize_matrix(tensor, name.part, format_, pool_));
  bytes_ += packed.bytes();
  keep(packed);
  TANDEM_TRY(advance(weights * weights::size_of(tensor.info.dtype)));
  return packed;
}

Result<std::vector<float>> WeightLoader::floats(const std::string& tensor, uint64_t first,
                                                uint64_t count) {
  TANDEM_ASSIGN(const weights::TensorData data, source_.read(tensor));
  TANDEM_ASSIGN(auto values, weights::read_vector(data, first, count));
  bytes_ += values.size() * sizeof(float);
  TANDEM_TRY(advance(count * weights::size_of(data.info.dtype)));
  return values;
}

Result<Product> WeightLoader::product(const MatrixName& name, kernels::Floats out) {
  Product product;
  product.out = out;
  TANDEM_ASSIGN(auto packed, matrix(name));
  TANDEM_ASSIGN(product.matrix, backend_.add_matrix(std::move(packed)));
  if (name.has_bias) {
    TANDEM_ASSIGN(auto bias, floats(name.tensor + ".bias", name.part.first_row, name.part.rows));
    product.has_bias = true;
    product.bias = backend_.add_vector(std::move(bias));
  }
  return product;
}

Result<kernels::Norm> WeightLoader::norm(const std::string& name, const ModelConfig& config,
                                         uint32_t n, NormKind kind) {
  kernels::Norm norm;
  norm.layer = kind == NormKind::kLayer;
  norm.constants = arithmetic::NormConstants(n, config.norm_eps);
  TANDEM_ASSIGN(auto weight, floats(name + ".weight", 0, n));
  if (config.unit_offset_norms) {
    for (float& value : weight) value = 1.0F + value;
  }
  norm.weight = backend_.add_vector(std::move(weight));
  if (norm.layer) {
    TANDEM_ASSIGN(auto bias, floats(name + ".bias", 0, n));
    norm.bias = backend_.add_vector(std::move(bias));
  }
  return norm;
}

}  // namespace tandem::model
