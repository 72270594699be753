// Weights from a source or a cache into a backend.
#include <algorithm>
#include <set>

#include "arithmetic/format.h"
#include "base/bytes.h"
#include "model/experts.h"
#include "model/families.h"
#include "model/layer.h"
#include "weights/block.h"
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
    const std::string tensor = name.weight();
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
      // Before such types' own grids were used, their integers were others.
      if (format == kernels::WeightFormat::k4 && weights::has_grids(info->dtype)) {
        writer->text("grids");
      }
      writer->write(static_cast<uint8_t>(info->shape.size()));
      for (const uint64_t extent : info->shape) writer->write(extent);
      writer->write(static_cast<uint8_t>(name.part.transposed));
      writer->write(name.part.first_row);
      writer->write(name.part.rows);
      writer->write(name.part.columns);
      if (name.part.row_step != 1) writer->write(name.part.row_step);
      if (name.part.stacked) writer->write(name.part.slab);
      if (name.part.rest) writer->text("rest");
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
  if (config.has_experts(layer)) return matrices;  // experts are entries of their own
  if (config.gated()) matrices.push_back(names.gate);
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
  name.tensor = config.head;
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
  const uint32_t planes = weight_planes(bits);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    add(layer_format(bits), with_rests(layer_matrices(config, layer), planes));
    if (!config.has_experts(layer)) continue;
    const ExpertTensors tensors = expert_tensors(config, layer);
    for (const auto& expert : tensors.experts) {
      add(expert_format(config, bits), with_rests(expert, expert_planes(config, bits)));
    }
    if (!tensors.shared.empty()) add(layer_format(bits), with_rests(tensors.shared, planes));
  }
  const MatrixName embedding = embedding_matrix(config);
  add(ends_format(bits), with_rests({&embedding, 1}, planes));
  if (!config.tied_embeddings) {
    const MatrixName head = head_matrix(config);
    add(ends_format(bits), with_rests({&head, 1}, planes));
  }
  return bytes;
}

std::vector<std::string> tensors_to_read(const ModelConfig& config, uint32_t first, uint32_t last,
                                         WeightBits bits, const weights::TensorSource& source,
                                         const weights::PackedStore* cache) {
  std::set<std::string> held;
  std::set<std::string>
      lacking;  // of units that are not there, which may share tensors with others
  const auto look = [&](kernels::WeightFormat format, std::span<const MatrixName> matrices,
                        uint32_t planes) {
    const std::vector<MatrixName> names = with_rests(matrices, planes);
    const std::vector<Digest> keys = unit_keys(source, format, names);
    const bool there = std::any_of(keys.begin(), keys.end(),
                                   [&](const Digest& key) { return cache->size_of(key) != 0; });
    for (const MatrixName& name : names) (there ? held : lacking).insert(name.weight());
  };
  for (uint32_t layer = first; layer < last && cache != nullptr; ++layer) {
    look(layer_format(bits), layer_matrices(config, layer), weight_planes(bits));
    if (!config.has_experts(layer)) continue;
    const ExpertTensors tensors = expert_tensors(config, layer);
    for (const auto& expert : tensors.experts) {
      look(expert_format(config, bits), expert, expert_planes(config, bits));
    }
    if (!tensors.shared.empty()) look(layer_format(bits), tensors.shared, weight_planes(bits));
  }
  std::vector<std::string> names;
  for (auto& tensor : layer_tensors(config, first, last)) {
    if (!held.contains(tensor.name) || lacking.contains(tensor.name)) {
      names.push_back(std::move(tensor.name));
    }
  }
  return names;
}

Status WeightLoader::advance(uint64_t bytes) {
  done_ += bytes;
  if (progress_ && !progress_(done_, total_)) {
    return Error{ErrorKind::kCancelled, "loading was stopped"};
  }
  return {};
}

void WeightLoader::expect(std::span<const MatrixName> matrices) {
  found_.clear();
  made_.clear();
  expected_ = 0;
  if (cache_ == nullptr) return;
  const std::vector<MatrixName> names = with_rests(matrices, planes_);
  const std::vector<Digest> keys = unit_keys(source_, format_, names);
  if (keys.empty()) return;
  std::vector<weights::PackedShape> shapes;
  shapes.reserve(names.size());
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
  const std::string tensor_name = name.weight();
  const uint64_t weights = uint64_t{name.part.rows} * name.part.columns;
  if (auto kept = from_cache()) {
    bytes_ += kept->bytes();
    const weights::TensorInfo* info = source_.find(tensor_name);
    const bool counts = info != nullptr && !name.part.rest;
    TANDEM_TRY(advance(counts ? weights::bytes_of(info->dtype, weights) : 0));
    return std::move(*kept);
  }
  TANDEM_ASSIGN(auto packed, quantized(name, format_));
  keep(packed);
  return packed;
}

Result<weights::TensorData> WeightLoader::tensor(const std::string& name) {
  if (!last_ || last_->info.name != name) {
    last_.reset();  // before the next one comes
    TANDEM_ASSIGN(last_, source_.read(name));
  }
  return *last_;
}

Result<kernels::PackedMatrix> WeightLoader::quantized(const MatrixName& name,
                                                      kernels::WeightFormat format) {
  // Of a tensor that holds several matrices the next one is wanted soon; others are dropped first.
  const bool shared = name.part.stacked;
  if (!shared) last_.reset();
  TANDEM_ASSIGN(const weights::TensorData data,
                shared ? tensor(name.weight()) : source_.read(name.weight()));
  TANDEM_ASSIGN(auto packed, weights::quantize_matrix(data, name.part, format, pool_));
  bytes_ += packed.bytes();
  const uint64_t weights = name.part.rest ? 0 : uint64_t{name.part.rows} * name.part.columns;
  TANDEM_TRY(advance(weights::bytes_of(data.info.dtype, weights)));
  return packed;
}

std::optional<std::vector<kernels::PackedMatrix>> WeightLoader::unit_from_cache(
    std::span<const MatrixName> unit, kernels::WeightFormat format, ThreadPool& pool,
    std::optional<Digest>& key) {
  if (cache_ == nullptr) return std::nullopt;
  std::vector<weights::PackedShape> shapes;
  for (const MatrixName& name : unit) {
    shapes.push_back({format, name.part.rows, name.part.columns});
  }
  for (const Digest& one : unit_keys(source_, format, unit)) {
    auto found = on_disk_ ? cache_->load_on_demand(one, shapes) : cache_->load(one, shapes, pool);
    if (found) return found;
    if (!key) key = one;
  }
  return std::nullopt;
}

Status WeightLoader::finish_unit(const std::optional<Digest>& key,
                                 std::span<const MatrixName> names, kernels::WeightFormat format,
                                 std::vector<kernels::PackedMatrix>& unit) {
  if (!key) {
    if (!on_disk_) return {};
    return invalid(cache_ == nullptr
                       ? "experts can only stay on disk with a cache of quantized weights"
                       : "experts can't stay on disk: nothing tells what tensor " +
                             names.front().weight() + " holds");
  }
  std::vector<kernels::PackedMatrix> kept;
  kept.reserve(unit.size());
  for (const kernels::PackedMatrix& matrix : unit) kept.push_back(matrix.share());
  if (!on_disk_) {
    cache_->store(*key, std::move(kept));
    return {};
  }
  for (const kernels::PackedMatrix& matrix : unit) bytes_ -= matrix.bytes();
  TANDEM_TRY(cache_->store_now(*key, std::move(kept)));
  std::optional<Digest> ignored;
  ThreadPool alone(1);
  auto stored = unit_from_cache(names, format, alone, ignored);
  if (!stored) {
    return Error{ErrorKind::kIo, "quantized weights of tensor " + names.front().weight() +
                                     " were kept on disk, but are not there"};
  }
  unit = std::move(*stored);
  return {};
}

Result<std::vector<std::vector<kernels::PackedMatrix>>> WeightLoader::units(
    std::span<const std::vector<MatrixName>> units, kernels::WeightFormat format, bool by_role) {
  std::vector<std::vector<kernels::PackedMatrix>> loaded(units.size());
  std::vector<std::optional<Digest>> keys(units.size());
  if (cache_ != nullptr) {
    pool_.split(units.size(), 1, [&](uint64_t begin, uint64_t end) {
      ThreadPool alone(1);
      for (uint64_t i = begin; i < end; ++i) {
        if (auto found = unit_from_cache(units[i], format, alone, keys[i]))
          loaded[i] = std::move(*found);
      }
    });
  }
  std::vector<uint8_t> missing(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    missing[i] = loaded[i].empty() ? 1 : 0;
    for (size_t role = 0; role < loaded[i].size(); ++role) {
      const MatrixName& name = units[i][role];
      const weights::TensorInfo* info = source_.find(name.weight());
      if (!on_disk_) bytes_ += loaded[i][role].bytes();
      const uint64_t weights = uint64_t{name.part.rows} * name.part.columns;
      const bool counts = info != nullptr && !name.part.rest;
      TANDEM_TRY(advance(counts ? weights::bytes_of(info->dtype, weights) : 0));
    }
  }
  const size_t roles = units.empty() ? 0 : units.front().size();
  const size_t outer = by_role ? roles : units.size();
  const size_t inner = by_role ? units.size() : roles;
  for (size_t a = 0; a < outer; ++a) {
    for (size_t b = 0; b < inner; ++b) {
      const size_t unit = by_role ? b : a;
      const size_t role = by_role ? a : b;
      if (missing[unit] == 0) continue;
      TANDEM_ASSIGN(auto packed, quantized(units[unit][role], format));
      loaded[unit].push_back(std::move(packed));
      if (role + 1 == roles) TANDEM_TRY(finish_unit(keys[unit], units[unit], format, loaded[unit]));
    }
  }
  last_.reset();
  return loaded;
}

Result<std::vector<float>> WeightLoader::read_floats(const std::string& tensor, uint64_t first,
                                                     uint64_t count) {
  TANDEM_ASSIGN(const weights::TensorData data, source_.read(tensor));
  TANDEM_ASSIGN(auto values, weights::read_vector(data, first, count));
  TANDEM_TRY(advance(weights::bytes_of(data.info.dtype, count)));
  return values;
}

Result<std::vector<float>> WeightLoader::floats(const std::string& tensor, uint64_t first,
                                                uint64_t count) {
  TANDEM_ASSIGN(auto values, read_floats(tensor, first, count));
  bytes_ += values.size() * sizeof(float);
  return values;
}

Result<Factor> WeightLoader::fine(std::span<const MatrixName> names, std::vector<float> bias,
                                  const std::array<kernels::Floats, 2>& outs) {
  const uint32_t columns = names.front().part.columns;
  auto values = std::make_shared<std::vector<float>>();
  for (const MatrixName& name : names) {
    TANDEM_ASSIGN(const auto rows,
                  read_floats(name.weight(), 0, uint64_t{name.part.rows} * columns));
    values->insert(values->end(), rows.begin(), rows.end());
  }
  const auto rows = static_cast<uint32_t>(values->size() / columns);
  weights::TensorData data;
  data.info = {names.front().weight(), weights::DType::kF32, {rows, columns}};
  data.owner = values;
  data.bytes = std::as_bytes(std::span<const float>(*values));
  const weights::MatrixPart part{false, 0, rows, columns};
  std::array<Product, 2> products;
  std::vector<int32_t> integers(columns);
  for (size_t i = 0; i < products.size(); ++i) {
    TANDEM_ASSIGN(auto packed,
                  weights::quantize_matrix(data, part, kernels::WeightFormat::k8, pool_));
    for (uint32_t r = 0; r < rows; ++r) {
      kernels::load_row(packed, r, integers);
      const float scale = packed.row_scales[r];
      float* row = values->data() + size_t{r} * columns;
      for (uint32_t k = 0; k < columns; ++k) {
        const float kept = static_cast<float>(integers[k]) * scale;
        row[k] -= kept;
      }
    }
    bytes_ += packed.bytes();
    TANDEM_ASSIGN(products[i].matrix, backend_.add_matrix(std::move(packed)));
    products[i].out = outs[i];
  }
  if (!bias.empty()) {
    products[0].has_bias = true;
    products[0].bias = backend_.add_vector(std::move(bias));
  }
  return Factor{products[0], products[1]};
}

Result<Factor> WeightLoader::factor(std::vector<kernels::PackedMatrix> planes,
                                    kernels::Floats out) {
  Factor factor;
  factor.product.out = out;
  const uint32_t rows = planes.front().rows;
  TANDEM_ASSIGN(factor.product.matrix, backend_.add_matrix(std::move(planes.front())));
  if (planes.size() == 1) return factor;
  auto rest_out = rest_outs_.find(out.id);
  if (rest_out == rest_outs_.end()) {
    rest_out = rest_outs_.emplace(out.id, backend_.add_floats(rows)).first;
  }
  factor.rest.emplace();
  factor.rest->out = rest_out->second;
  TANDEM_ASSIGN(factor.rest->matrix, backend_.add_matrix(std::move(planes.back())));
  return factor;
}

Result<Factor> WeightLoader::factor(const MatrixName& name, kernels::Floats out) {
  std::vector<kernels::PackedMatrix> planes;
  planes.reserve(planes_);
  for (const MatrixName& plane : with_rests({&name, 1}, planes_)) {
    TANDEM_ASSIGN(auto packed, matrix(plane));
    planes.push_back(std::move(packed));
  }
  TANDEM_ASSIGN(Factor factor, this->factor(std::move(planes), out));
  if (name.has_bias) {
    TANDEM_ASSIGN(auto bias, floats(name.tensor + ".bias", name.part.first_row, name.part.rows));
    factor.product.has_bias = true;
    factor.product.bias = backend_.add_vector(std::move(bias));
  }
  return factor;
}

Result<kernels::Norm> WeightLoader::norm(const std::string& name, const ModelConfig& config,
                                         uint32_t n, NormKind kind) {
  kernels::Norm norm;
  norm.layer = kind == NormKind::kLayer;
  norm.constants = arithmetic::NormConstants(n, config.norm_eps);
  TANDEM_ASSIGN(auto weight, floats(name + ".weight", 0, n));
  if (config.norm_plus_one && kind == NormKind::kRms) {
    for (float& w : weight) w += 1.0F;
  }
  norm.weight = backend_.add_vector(std::move(weight));
  if (norm.layer) {
    TANDEM_ASSIGN(auto bias, floats(name + ".bias", 0, n));
    norm.bias = backend_.add_vector(std::move(bias));
  }
  return norm;
}

}  // namespace tandem::model
