// Bytes of a state, all numbers little-endian:
//
//   state       = length:u32 floor:u32 bits:u32 keys_values recurrent?
//   keys_values = position* of each attention layer, as KvCache::export_positions has them: those
//                 before `length` that positions from `floor` on see
//   recurrent   = moment count:u32 (slot:u32 length:u32 moment)*count, if there are delta nets
//   moment      = base:u32 value:f32*, as kernels::RecurrentCheckpoint has them
//
// The slots rise. How many values there are follows from the layers, the base and the length.
#include "model/local_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/hash.h"

namespace tandem::model {
namespace {

void write_moment(ByteWriter& writer, const kernels::RecurrentCheckpoint& moment) {
  writer.write(moment.base);
  writer.append(std::as_bytes(std::span(moment.values)));
}

// `moment` has the layers' shape, and gets everything else.
Status read_moment(ByteReader& reader, uint32_t length, kernels::RecurrentCheckpoint& moment) {
  moment.base = reader.read<uint32_t>();
  moment.length = length;
  if (moment.base > length || length - moment.base > kernels::kRollbackWindow) {
    return invalid("a recurrent state of positions " + std::to_string(moment.base) + " to " +
                   std::to_string(length));
  }
  const uint64_t count =
      kernels::RecurrentCheckpoint::count(moment.shape, moment.layers, length - moment.base);
  const auto part = reader.take(count * sizeof(float));
  if (!reader.ok()) return invalid("the recurrent state of a conversation is cut short");
  moment.values.resize(count);
  std::memcpy(moment.values.data(), part.data(), part.size());
  for (const float value : moment.values) {
    if (!std::isfinite(value)) return invalid("a recurrent state holds what is not a number");
  }
  return {};
}

/// Positions that are exported together, so that memory beside the result stays small.
constexpr uint32_t kPositions = 256;

}  // namespace

uint32_t checkpoint_limit(const ModelConfig& config) {
  constexpr uint64_t kBudget = uint64_t{256} << 20;
  const uint64_t each = checkpoint_bytes(config, 0, config.layers);
  if (each == 0) return 64;
  return static_cast<uint32_t>(std::clamp<uint64_t>(kBudget / each, 2, 8));
}

uint64_t checkpoint_bytes(const ModelConfig& config, uint32_t first_layer, uint32_t last_layer) {
  const uint32_t layers = config.recurrent_layers(first_layer, last_layer);
  if (layers == 0) return 0;
  return kernels::RecurrentCheckpoint::count(config.delta, layers, kernels::kRollbackWindow) *
         sizeof(float);
}

uint64_t LocalSequence::bytes() const {
  uint64_t bytes = cache_->bytes();
  if (recurrent_ != nullptr) bytes += recurrent_->bytes();
  for (const auto& [slot, checkpoint] : checkpoints_) bytes += checkpoint.recurrent.bytes();
  return bytes;
}

uint32_t LocalSequence::floor() const {
  return std::max(cache_->floor(), recurrent_ == nullptr ? 0 : recurrent_->floor());
}

Status LocalSequence::reserve(uint32_t positions) {
  if (length_ > kernels::kWindowMargin) cache_->release(length_ - kernels::kWindowMargin);
  TANDEM_TRY(cache_->reserve(positions));
  return recurrent_ == nullptr ? Status() : recurrent_->reserve();
}

void LocalSequence::append(uint32_t tokens, bool ok) {
  if (recurrent_ != nullptr) {
    recurrent_->advance(tokens, ok);
    length_ = recurrent_->length();
    if (length_ == 0) checkpoints_.clear();
  } else if (ok) {
    length_ += tokens;
  }
}

Status LocalSequence::rollback(uint32_t length) {
  if (length > length_) {
    return invalid("can't roll back to position " + std::to_string(length) + ": the cache holds " +
                   std::to_string(length_));
  }
  if (length != 0 && length < cache_->floor()) {
    return invalid("can't roll back to position " + std::to_string(length) +
                   ": layers with a sliding window hold what is needed from position " +
                   std::to_string(cache_->floor()) + " on");
  }
  if (recurrent_ != nullptr) TANDEM_TRY(recurrent_->rollback(length));
  if (length == 0) cache_->clear();
  length_ = length;
  std::erase_if(checkpoints_, [&](const auto& entry) { return entry.second.length > length; });
  return {};
}

Status LocalSequence::save(uint32_t slot) {
  if (checkpoints_.size() >= limit_ && !checkpoints_.contains(slot)) {
    return invalid("more than " + std::to_string(limit_) + " checkpoints");
  }
  Saved checkpoint;
  checkpoint.length = length_;
  if (recurrent_ != nullptr) {
    TANDEM_TRY(recurrent_->reserve());
    TANDEM_ASSIGN(checkpoint.recurrent, recurrent_->save());
  }
  checkpoints_[slot] = std::move(checkpoint);
  return {};
}

Status LocalSequence::restore(uint32_t slot, uint32_t length) {
  const auto found = checkpoints_.find(slot);
  if (found == checkpoints_.end() || found->second.length != length) {
    return invalid("no checkpoint " + std::to_string(slot) + " of " + std::to_string(length) +
                   " positions");
  }
  if (length != 0 && length < cache_->floor()) {
    return invalid("checkpoint " + std::to_string(slot) + " of " + std::to_string(length) +
                   " positions is out of the reach of layers with a sliding window");
  }
  if (recurrent_ != nullptr) TANDEM_TRY(recurrent_->restore(found->second.recurrent));
  length_ = length;
  std::erase_if(checkpoints_, [&](const auto& entry) { return entry.second.length > length; });
  return {};
}

std::vector<Sequence::Checkpoint> LocalSequence::checkpoints() const {
  std::vector<Checkpoint> list;
  if (recurrent_ == nullptr) return list;
  for (const auto& [slot, saved] : checkpoints_) {
    list.push_back({slot, saved.length, saved.recurrent.base});
  }
  return list;
}

Result<Digest> LocalSequence::digest() const {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(&length_, 1)));
  std::vector<int16_t> values;
  for (uint32_t layer = 0; layer < kv_layers_; ++layer) {
    for (uint32_t first = cache_->first_seen(layer, length_); first < length_;
         first += kPositions) {
      const uint32_t count = std::min(kPositions, length_ - first);
      values.resize(size_t{count} * cache_->position_values());
      cache_->export_positions(layer, first, count, values);
      hash.update(std::as_bytes(std::span(values)));
    }
  }
  if (recurrent_ != nullptr && length_ != 0) {
    TANDEM_ASSIGN(const auto state, recurrent_->values());
    hash.update(std::as_bytes(std::span(state)));
  }
  return hash.digest();
}

Result<std::vector<std::byte>> LocalSequence::write() const {
  ByteWriter writer;
  const uint32_t floor = written_floor(length_);
  writer.write(length_);
  writer.write(floor);
  writer.write(cache_->bits());
  std::vector<int16_t> values;
  for (uint32_t layer = 0; layer < kv_layers_; ++layer) {
    for (uint32_t first = cache_->first_seen(layer, floor); first < length_; first += kPositions) {
      const uint32_t count = std::min(kPositions, length_ - first);
      values.resize(size_t{count} * cache_->position_values());
      cache_->export_positions(layer, first, count, values);
      writer.append(std::as_bytes(std::span(values)));
    }
  }
  if (recurrent_ != nullptr && length_ != 0) {
    TANDEM_ASSIGN(const auto moment, recurrent_->save());
    write_moment(writer, moment);
    writer.write(static_cast<uint32_t>(checkpoints_.size()));
    for (const auto& [slot, saved] : checkpoints_) {
      writer.write(slot);
      writer.write(saved.length);
      write_moment(writer, saved.recurrent);
    }
  }
  return writer.release();
}

uint32_t LocalSequence::written_floor(uint32_t length) const {
  return std::max(cache_->floor(), length - std::min(length, kernels::kWindowMargin));
}

uint64_t LocalSequence::needed(uint32_t length, uint32_t floor) const {
  uint64_t positions = 0;
  for (uint32_t layer = 0; layer < kv_layers_; ++layer) {
    positions += length - cache_->first_seen(layer, floor);
  }
  return positions;
}

Status LocalSequence::read(std::span<const std::byte> bytes) {
  TANDEM_TRY(rollback(0));
  Status status = read_state(bytes);
  if (!status.ok()) TANDEM_TRY(rollback(0));
  return status;
}

Status LocalSequence::read_keys_values(ByteReader& reader, uint32_t length) {
  const auto floor = reader.read<uint32_t>();
  const auto bits = reader.read<uint32_t>();
  const uint64_t position = uint64_t{cache_->position_values()} * sizeof(int16_t);
  if (!reader.ok() || length > arithmetic::kMaxPositions || floor > length ||
      needed(length, floor) > reader.remaining() / std::max<uint64_t>(position, 1)) {
    return invalid("the state of a conversation is cut short");
  }
  if (bits != cache_->bits()) {
    return invalid("the state of a conversation has keys and values of " + std::to_string(bits) +
                   " bits, this one has " + std::to_string(cache_->bits()));
  }
  cache_->release(floor);
  if (floor != written_floor(length)) {
    return invalid("the state of a conversation begins at position " + std::to_string(floor) +
                   ", expected " + std::to_string(written_floor(length)));
  }
  TANDEM_TRY(cache_->reserve(length));
  std::vector<int16_t> values;
  for (uint32_t layer = 0; layer < kv_layers_; ++layer) {
    for (uint32_t first = cache_->first_seen(layer, floor); first < length; first += kPositions) {
      const uint32_t count = std::min(kPositions, length - first);
      const auto part = reader.take(count * position);
      values.resize(part.size() / sizeof(int16_t));
      std::memcpy(values.data(), part.data(), part.size());
      TANDEM_TRY(cache_->import_positions(layer, first, count, values));
    }
  }
  return {};
}

Status LocalSequence::read_state(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto length = reader.read<uint32_t>();
  TANDEM_TRY(read_keys_values(reader, length));
  if (recurrent_ != nullptr && length != 0) {
    TANDEM_TRY(recurrent_->reserve());
    TANDEM_ASSIGN(auto moment, recurrent_->save());  // for its shape
    TANDEM_TRY(read_moment(reader, length, moment));
    const auto count = reader.read<uint32_t>();
    if (count > limit_) {
      return invalid("a state with " + std::to_string(count) + " checkpoints, at most " +
                     std::to_string(limit_) + " are possible");
    }
    for (uint32_t i = 0; i < count; ++i) {
      const auto slot = reader.read<uint32_t>();
      Saved saved;
      saved.length = reader.read<uint32_t>();
      if (!reader.ok() || saved.length > length || saved.length == 0 ||
          (!checkpoints_.empty() && checkpoints_.rbegin()->first >= slot)) {
        return invalid("a checkpoint of another length, or out of order");
      }
      saved.recurrent.shape = moment.shape;
      saved.recurrent.layers = moment.layers;
      TANDEM_TRY(read_moment(reader, saved.length, saved.recurrent));
      checkpoints_[slot] = std::move(saved);
    }
    TANDEM_TRY(recurrent_->restore(moment));
  }
  if (!reader.finished()) return invalid("the state of a conversation has bytes left over");
  length_ = length;
  return {};
}

}  // namespace tandem::model
