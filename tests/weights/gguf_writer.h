// GGUF files made by hand, so that any part of them can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::weights {

class GgufWriter {
 public:
  template <typename T>
  static std::string number(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(std::string_view value) {
    return number(uint64_t{value.size()}) + std::string(value);
  }

  void pair(std::string_view key, uint32_t type, std::string_view value) {
    pairs_ += text(key) + number(type) + std::string(value);
    ++pair_count_;
  }
  void u32(std::string_view key, uint32_t value) { pair(key, 4, number(value)); }
  void f32(std::string_view key, float value) { pair(key, 6, number(value)); }
  void flag(std::string_view key, bool value) { pair(key, 7, std::string(1, value ? 1 : 0)); }
  void string(std::string_view key, std::string_view value) { pair(key, 8, text(value)); }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    std::string all = number(uint32_t{8}) + number(uint64_t{values.size()});
    for (const std::string& value : values) all += text(value);
    pair(key, 9, all);
  }
  template <typename T>
  void numbers(std::string_view key, uint32_t type, const std::vector<T>& values) {
    std::string all = number(type) + number(uint64_t{values.size()});
    for (const T value : values) all += number(value);
    pair(key, 9, all);
  }

  /// `extents` from the innermost on, as in the file.
  void tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& extents,
              std::string_view bytes) {
    pad();
    raw_tensor(name, type, extents, data_.size());
    data_ += bytes;
  }
  /// Only the entry, which may be wrong in any way.
  void raw_tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& extents,
                  uint64_t offset) {
    infos_ += text(name) + number(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) infos_ += number(extent);
    infos_ += number(type) + number(offset);
    ++tensor_count_;
  }

  [[nodiscard]] std::string file(uint32_t version = 3) const {
    return file_of(version, tensor_count_, pair_count_);
  }
  [[nodiscard]] std::string file_of(uint32_t version, uint64_t tensors, uint64_t pairs) const {
    std::string file = "GGUF" + number(version) + number(tensors) + number(pairs) + pairs_ + infos_;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

  uint64_t alignment = 32;

 private:
  void pad() { data_.resize((data_.size() + alignment - 1) / alignment * alignment); }

  std::string pairs_;
  std::string infos_;
  std::string data_;
  uint64_t pair_count_ = 0;
  uint64_t tensor_count_ = 0;
};

/// A whole model of "llama": two layers of width 64, its weights all different.
inline GgufWriter small_llama(const std::string& prefix = "llama") {
  GgufWriter writer;
  writer.string("general.architecture", prefix);
  for (const auto& [key, value] :
       {std::pair{"block_count", 2U}, std::pair{"embedding_length", 64U},
        std::pair{"feed_forward_length", 96U}, std::pair{"attention.head_count", 4U},
        std::pair{"attention.head_count_kv", 2U}, std::pair{"context_length", 128U}}) {
    writer.u32(prefix + "." + key, value);
  }
  writer.f32(prefix + ".attention.layer_norm_rms_epsilon", 1e-5F);
  return writer;
}

inline std::string floats(uint64_t count, float first) {
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) bytes += GgufWriter::number(first + static_cast<float>(i));
  return bytes;
}

/// The tensors of small_llama().
inline void add_llama_tensors(GgufWriter& writer, bool head = true) {
  float first = 0;
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& extents) {
    uint64_t count = 1;
    for (const uint64_t extent : extents) count *= extent;
    writer.tensor(name, 0, extents, floats(count, first));
    first += 100000;
  };
  add("token_embd.weight", {64, 40});
  add("output_norm.weight", {64});
  if (head) add("output.weight", {64, 40});
  for (const char* layer : {"blk.0.", "blk.1."}) {
    add(std::string(layer) + "attn_norm.weight", {64});
    add(std::string(layer) + "attn_q.weight", {64, 64});
    add(std::string(layer) + "attn_k.weight", {64, 32});
    add(std::string(layer) + "attn_v.weight", {64, 32});
    add(std::string(layer) + "attn_output.weight", {64, 64});
    add(std::string(layer) + "ffn_norm.weight", {64});
    add(std::string(layer) + "ffn_gate.weight", {64, 96});
    add(std::string(layer) + "ffn_up.weight", {64, 96});
    add(std::string(layer) + "ffn_down.weight", {96, 64});
  }
}

}  // namespace tandem::weights
