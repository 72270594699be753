// Quantized checkpoints, packed here by the rules of their formats from numbers that are known.
#include "weights/quantized.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/weights/files.h"
#include "weights/block.h"
#include "weights/checkpoint.h"
#include "weights/dtype.h"

namespace tandem::weights {
namespace {

using nlohmann::json;

// A safetensors file in the making.
class Tensors {
 public:
  template <typename T>
  void add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
           const std::vector<T>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  void write(const std::filesystem::path& folder, const json& config) const {
    write_file(folder / "config.json", config.dump());
    write_file(folder / "model.safetensors", safetensors(header_.dump(), data_));
  }

 private:
  json header_ = json::object();
  std::string data_;
};

constexpr uint64_t kRows = 24;
constexpr uint64_t kColumns = 128;

// Known numbers: stored values, zero points and scales of each place.
int number(uint64_t row, uint64_t column, int bits) {
  return static_cast<int>((row * 31 + column * 7 + row * column) % (1U << bits));
}
int zero_of(uint64_t row, uint64_t group, int bits) {
  return static_cast<int>((row * 5 + group * 3 + 1) % (1U << bits));
}
uint16_t scale_bits(uint64_t row, uint64_t group) {  // binary16
  return static_cast<uint16_t>(0x2000 + (row * 37 + group * 11) % 512);
}

json config_with(const json& quantization) {
  return {{"architectures", {"LlamaForCausalLM"}}, {"quantization_config", quantization}};
}

class QuantizedFiles : public testing::Test {
 protected:
  std::vector<float> weights(const Tensors& tensors, const json& quantization, DType dtype,
                             uint64_t rows = kRows, uint64_t columns = kColumns) {
    tensors.write(folder_.path(), config_with(quantization));
    auto checkpoint = Checkpoint::open(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    if (!checkpoint.ok()) return {};
    EXPECT_FALSE(json::parse((*checkpoint)->config_json()).contains("quantization_config"));
    const TensorInfo* info = (*checkpoint)->find("a.weight");
    EXPECT_NE(info, nullptr);
    if (info == nullptr) return {};
    EXPECT_EQ(info->dtype, dtype);
    EXPECT_EQ(info->shape, (std::vector<uint64_t>{rows, columns}));
    EXPECT_EQ((*checkpoint)->tensors().size(), 1U);
    const auto tensor = (*checkpoint)->read("a.weight");
    EXPECT_TRUE(tensor.ok()) << tensor.error().message;
    if (!tensor.ok()) return {};
    std::vector<float> values(info->elements());
    EXPECT_TRUE(widen(tensor->info.dtype, tensor->bytes, values).ok());
    return values;
  }
  std::string refusal(const Tensors& tensors, const json& quantization) {
    tensors.write(folder_.path(), config_with(quantization));
    auto checkpoint = Checkpoint::open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.error().message;
    const auto tensor = (*checkpoint)->read("a.weight");
    return tensor.ok() ? "was accepted" : tensor.error().message;
  }
  TemporaryFolder folder_;
};

void put(std::vector<int32_t>& words, uint64_t index, uint32_t shift, int value) {
  words[index] = static_cast<int32_t>(static_cast<uint32_t>(words[index]) |
                                      static_cast<uint32_t>(value) << shift);
}

std::vector<uint16_t> scales_by_group(uint64_t groups) {
  std::vector<uint16_t> scales;
  for (uint64_t g = 0; g < groups; ++g) {
    for (uint64_t r = 0; r < kRows; ++r) scales.push_back(scale_bits(r, g));
  }
  return scales;
}

constexpr std::array<uint64_t, 8> kAwqOrder{0, 2, 4, 6, 1, 3, 5, 7};  // row of each nibble

Tensors awq() {
  std::vector<int32_t> weights(kColumns * kRows / 8);
  std::vector<int32_t> zeros(2 * kRows / 8);
  for (uint64_t r = 0; r < kRows; r += 8) {
    for (uint32_t nibble = 0; nibble < 8; ++nibble) {
      const uint64_t row = r + kAwqOrder[nibble];
      for (uint64_t k = 0; k < kColumns; ++k) {
        put(weights, k * kRows / 8 + r / 8, nibble * 4, number(row, k, 4));
      }
      for (uint64_t g = 0; g < 2; ++g) {
        put(zeros, g * kRows / 8 + r / 8, nibble * 4, zero_of(row, g, 4));
      }
    }
  }
  Tensors tensors;
  tensors.add("a.qweight", "I32", {kColumns, kRows / 8}, weights);
  tensors.add("a.qzeros", "I32", {2, kRows / 8}, zeros);
  tensors.add("a.scales", "F16", {2, kRows}, scales_by_group(2));
  return tensors;
}

TEST_F(QuantizedFiles, AwqIsReadExactly) {
  const auto values =
      weights(awq(), {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}}, DType::kInt4Group);
  ASSERT_EQ(values.size(), kRows * kColumns);
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t k = 0; k < kColumns; ++k) {
      const float wanted = f16_to_f32(scale_bits(r, k / 64)) *
                           static_cast<float>(number(r, k, 4) - zero_of(r, k / 64, 4));
      ASSERT_EQ(values[r * kColumns + k], wanted) << r << " " << k;
    }
  }
}

// `order`: the group of each column; empty: no g_idx.
Tensors gptq(uint32_t bits, bool v1, const std::vector<int32_t>& order) {
  const uint64_t n = 32 / bits;
  std::vector<int32_t> weights(kColumns / n * kRows);
  std::vector<int32_t> zeros(2 * kRows / n);
  const int most = (1 << bits) - 1;
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t k = 0; k < kColumns; ++k) {
      put(weights, k / n * kRows + r, static_cast<uint32_t>(k % n) * bits,
          number(r, k, static_cast<int>(bits)));
    }
    for (uint64_t g = 0; g < 2; ++g) {
      const int zero = zero_of(r, g, static_cast<int>(bits));
      put(zeros, g * kRows / n + r / n, static_cast<uint32_t>(r % n) * bits,
          v1 ? (zero - 1) & most : zero);
    }
  }
  Tensors tensors;
  tensors.add("a.qweight", "I32", {kColumns / n, kRows}, weights);
  tensors.add("a.qzeros", "I32", {2, kRows / n}, zeros);
  tensors.add("a.scales", "F16", {2, kRows}, scales_by_group(2));
  if (!order.empty()) tensors.add("a.g_idx", "I32", {kColumns}, order);
  return tensors;
}

TEST_F(QuantizedFiles, GptqIsReadExactlyInBothConventionsOfZeroPoints) {
  std::vector<int32_t> shuffled;
  std::vector<int32_t> in_order;
  for (uint64_t k = 0; k < kColumns; ++k) {
    shuffled.push_back(static_cast<int32_t>(k * 7 % kColumns % 2));
    in_order.push_back(static_cast<int32_t>(k / 64));
  }
  struct Case {
    uint32_t bits;
    bool v1;
    const std::vector<int32_t>* order;
  };
  for (const Case& one :
       {Case{4, true, nullptr}, Case{4, false, &in_order}, Case{4, true, &shuffled},
        Case{8, true, &in_order}, Case{8, false, &shuffled}}) {
    const bool any = one.order == &shuffled;
    const json config = {{"quant_method", "gptq"},
                         {"bits", one.bits},
                         {"group_size", 64},
                         {"desc_act", any},
                         {"checkpoint_format", one.v1 ? "gptq" : "gptq_v2"}};
    const auto order = one.order == nullptr ? std::vector<int32_t>{} : *one.order;
    const auto values = weights(gptq(one.bits, one.v1, order), config,
                                any             ? DType::kF32
                                : one.bits == 4 ? DType::kInt4Group
                                                : DType::kInt8Group);
    ASSERT_EQ(values.size(), kRows * kColumns);
    const int bits = static_cast<int>(one.bits);
    for (uint64_t r = 0; r < kRows; ++r) {
      for (uint64_t k = 0; k < kColumns; ++k) {
        const uint64_t g = any ? static_cast<uint64_t>(shuffled[k]) : k / 64;
        const float wanted = f16_to_f32(scale_bits(r, g)) *
                             static_cast<float>(number(r, k, bits) - zero_of(r, g, bits));
        ASSERT_EQ(values[r * kColumns + k], wanted) << bits << ": " << r << " " << k;
      }
    }
  }
}

// compressed-tensors, 4 or 8 bits in words.
Tensors pack_quantized(uint32_t bits, bool zeros, uint64_t columns) {
  const uint64_t n = 32 / bits;
  const uint64_t words = (columns + n - 1) / n;
  const uint64_t groups = columns / 32;
  std::vector<int32_t> weights(kRows * words);
  std::vector<int32_t> packed_zeros((kRows + n - 1) / n * groups);
  std::vector<uint16_t> scales;
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t k = 0; k < columns; ++k) {
      put(weights, r * words + k / n, static_cast<uint32_t>(k % n) * bits,
          number(r, k, static_cast<int>(bits)));
    }
    for (uint64_t g = 0; g < groups; ++g) {
      scales.push_back(scale_bits(r, g));
      put(packed_zeros, r / n * groups + g, static_cast<uint32_t>(r % n) * bits,
          zero_of(r, g, static_cast<int>(bits)));
    }
  }
  Tensors tensors;
  tensors.add("a.weight_packed", "I32", {kRows, words}, weights);
  tensors.add("a.weight_scale", "F16", {kRows, groups}, scales);
  tensors.add("a.weight_shape", "I64", {2},
              std::vector<int64_t>{static_cast<int64_t>(kRows), static_cast<int64_t>(columns)});
  if (zeros) {
    tensors.add("a.weight_zero_point", "I32", {(kRows + n - 1) / n, groups}, packed_zeros);
  }
  return tensors;
}

json compressed(const json& weights, const std::string& format) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
          {"ignore", {"lm_head"}}};
}

TEST_F(QuantizedFiles, PackQuantizedIsReadExactly) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const bool zeros : {false, true}) {
      const auto values = weights(
          pack_quantized(bits, zeros, kColumns),
          compressed(
              {{"num_bits", bits}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}},
              "pack-quantized"),
          bits == 4 ? DType::kInt4Group : DType::kInt8Group);
      ASSERT_EQ(values.size(), kRows * kColumns);
      for (uint64_t r = 0; r < kRows; ++r) {
        for (uint64_t k = 0; k < kColumns; ++k) {
          const int zero = zeros ? zero_of(r, k / 32, static_cast<int>(bits)) : 1 << (bits - 1);
          const float wanted = f16_to_f32(scale_bits(r, k / 32)) *
                               static_cast<float>(number(r, k, static_cast<int>(bits)) - zero);
          ASSERT_EQ(values[r * kColumns + k], wanted) << bits << ": " << r << " " << k;
        }
      }
    }
  }
}

TEST_F(QuantizedFiles, IntQuantizedIsReadExactly) {
  std::vector<int8_t> stored;
  std::vector<float> scales;
  std::vector<int8_t> zeros;
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t k = 0; k < kColumns; ++k) {
      stored.push_back(static_cast<int8_t>(number(r, k, 8) - 128));
    }
    scales.push_back(0.001F * static_cast<float>(r + 1));
    zeros.push_back(static_cast<int8_t>(static_cast<int>(r) - 12));
  }
  for (const bool with_zeros : {false, true}) {
    Tensors tensors;
    tensors.add("a.weight", "I8", {kRows, kColumns}, stored);
    tensors.add("a.weight_scale", "F32", {kRows, 1}, scales);
    if (with_zeros) tensors.add("a.weight_zero_point", "I8", {kRows, 1}, zeros);
    tensors.add("a.input_scale", "F32", {1}, std::vector<float>{1});
    const auto values = weights(
        tensors,
        compressed({{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}, "int-quantized"),
        DType::kInt8Group);
    ASSERT_EQ(values.size(), kRows * kColumns);
    for (uint64_t r = 0; r < kRows; ++r) {
      for (uint64_t k = 0; k < kColumns; ++k) {
        const int zero = with_zeros ? static_cast<int>(r) - 12 : 0;
        ASSERT_EQ(values[r * kColumns + k],
                  scales[r] * static_cast<float>(number(r, k, 8) - 128 - zero));
      }
    }
  }
}

// F8 of 160 rows, so that the last block of 128 is cut.
TEST_F(QuantizedFiles, Fp8IsReadExactlyWithEveryKindOfScale) {
  constexpr uint64_t kTall = 160;
  for (const uint64_t columns : {uint64_t{192}, uint64_t{200}}) {
    std::vector<uint8_t> stored;
    for (uint64_t i = 0; i < kTall * columns; ++i) {
      const auto byte = static_cast<uint8_t>(i * 37 + i / columns);
      stored.push_back((byte & 0x7f) == 0x7f ? uint8_t{0} : byte);  // no NaN
    }
    struct Case {
      std::string name;
      std::vector<uint64_t> shape;
      std::function<uint64_t(uint64_t, uint64_t)> index;
      json config;
    };
    const Case cases[] = {
        {"a.weight_scale_inv",
         {2, 2},
         [](uint64_t r, uint64_t k) { return r / 128 * 2 + k / 128; },
         {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e4m3"}}},
        {"a.weight_scale", {}, [](uint64_t, uint64_t) { return 0; }, {{"quant_method", "fp8"}}},
        {"a.weight_scale",
         {kTall, 1},
         [](uint64_t r, uint64_t) { return r; },
         compressed({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}},
                    "float-quantized")},
    };
    for (const Case& one : cases) {
      uint64_t count = 1;
      for (const uint64_t extent : one.shape) count *= extent;
      std::vector<float> scales;
      for (uint64_t i = 0; i < count; ++i) scales.push_back(0.01F + 0.003F * static_cast<float>(i));
      Tensors tensors;
      tensors.add("a.weight", "F8_E4M3", {kTall, columns}, stored);
      tensors.add(one.name, "F32", one.shape, scales);
      const auto values = weights(tensors, one.config,
                                  columns == 192 ? DType::kE4m3Group : DType::kF32, kTall, columns);
      ASSERT_EQ(values.size(), kTall * columns);
      for (uint64_t r = 0; r < kTall; ++r) {
        for (uint64_t k = 0; k < columns; ++k) {
          ASSERT_EQ(values[r * columns + k],
                    scales[one.index(r, k)] * e4m3_to_f32(stored[r * columns + k]))
              << one.name << " " << r << " " << k;
        }
      }
    }
  }
}

TEST(Float8, NumbersAreThoseOfTheFormats) {
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_f32(0xb8), -1.0F);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0xff)));
  EXPECT_EQ(e5m2_to_f32(0x3c), 1.0F);
  EXPECT_EQ(e5m2_to_f32(0x7b), 57344.0F);
  EXPECT_EQ(e5m2_to_f32(0x01), 0x1p-16F);
  EXPECT_TRUE(std::isinf(e5m2_to_f32(0x7c)));
}

TEST_F(QuantizedFiles, WithoutAConfigNothingIsConverted) {
  Tensors tensors;
  tensors.add("a.weight", "F32", {2}, std::vector<float>{1, 2});
  const json config = {{"architectures", {"LlamaForCausalLM"}}, {"b", 1}};
  tensors.write(folder_.path(), config);
  auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->config_json(), config.dump());
}

TEST_F(QuantizedFiles, RefuseByNameWhatIsNotUndone) {
  const json good_weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}};
  const auto with = [](json base, const char* key, const json& value) {
    base[key] = value;
    return base;
  };
  const json ct = compressed(good_weights, "pack-quantized");
  const json gptq_config = {{"quant_method", "gptq"}, {"bits", 4}};
  const json awq_config = {{"quant_method", "awq"}, {"bits", 4}};
  const auto order = [](int32_t value) {
    std::vector<int32_t> groups(kColumns, 0);
    groups[3] = value;
    return groups;
  };
  Tensors bad_shape;
  bad_shape.add("a.weight_packed", "I32", {2, 2}, std::vector<int32_t>(4));
  bad_shape.add("a.weight_shape", "I64", {2}, std::vector<int64_t>{2, -5});
  Tensors no_scale;
  no_scale.add("a.weight", "F8_E4M3", {2, 2}, std::vector<uint8_t>(4));
  Tensors odd_scale = no_scale;
  odd_scale.add("a.weight_scale", "F32", {3}, std::vector<float>(3));
  Tensors missing;
  missing.add("a.qweight", "I32", {kColumns, 3}, std::vector<int32_t>(kColumns * 3));
  Tensors short_zeros = missing;
  short_zeros.add("a.scales", "F16", {2, kRows}, scales_by_group(2));
  short_zeros.add("a.qzeros", "I32", {1, 3}, std::vector<int32_t>(3));
  struct Case {
    Tensors tensors;
    json config;
    const char* error;
  };
  const Case cases[] = {
      {awq(), {{"quant_method", "bitsandbytes"}}, "quant_method \"bitsandbytes\"; known are fp8"},
      {awq(), json::object(), "quant_method null"},
      {awq(), "x", "the value \"x\""},
      {awq(), with(awq_config, "version", "gemv"), "has version \"gemv\""},
      {awq(), with(awq_config, "bits", 3), "has bits 3"},
      {awq(), with(awq_config, "bits", 8), "has bits 8"},
      {awq(), {{"quant_method", "fp8"}}, "but no tensor is stored so"},
      {awq(), with({{"quant_method", "fp8"}}, "weight_block_size", {0, 128}), "weight_block_size"},
      {awq(), with({{"quant_method", "fp8"}}, "fmt", "e3m4"), "has fmt \"e3m4\""},
      {gptq(4, true, {}), with(gptq_config, "bits", 3), "has bits 3"},
      {gptq(4, true, {}), with(gptq_config, "checkpoint_format", "marlin"), "checkpoint_format"},
      {gptq(4, true, order(2)), with(gptq_config, "desc_act", true),
       "g_idx: expected groups below 2, found 2 for column 3"},
      {gptq(4, true, order(-1)), with(gptq_config, "desc_act", true), "found -1 for column 3"},
      {gptq(4, true, order(1)), gptq_config, "g_idx: expected columns in the order"},
      {pack_quantized(4, false, kColumns), with(ct, "format", "nvfp4-pack-quantized"),
       "has format \"nvfp4-pack-quantized\""},
      {pack_quantized(4, false, kColumns), with(ct, "sparsity_config", {{"format", "sparse-24"}}),
       "has format \"sparse-24\""},
      {pack_quantized(4, false, kColumns), with(ct, "transform_config", {{"x", 1}}),
       "transform_config"},
      {pack_quantized(4, false, kColumns),
       compressed({{"num_bits", 3}, {"type", "int"}}, "pack-quantized"), "has num_bits 3"},
      {pack_quantized(4, false, kColumns),
       compressed({{"num_bits", 4}, {"type", "float"}}, "pack-quantized"), "float weights"},
      {pack_quantized(4, false, kColumns),
       compressed({{"num_bits", 4}, {"strategy", "token"}}, "pack-quantized"),
       "strategy \"token\""},
      {bad_shape, ct, "a.weight_shape: expected 2 rows and their columns, found 2 and -5"},
      {no_scale, {{"quant_method", "fp8"}}, "tensor a.weight: expected its scale"},
      {odd_scale, {{"quant_method", "fp8"}}, "a.weight_scale: expected one scale, one a row of 2"},
      {missing, awq_config, "tensor a.scales: expected a matrix of floats, found none"},
      {short_zeros, awq_config, "tensor a.qzeros: expected I32 [2, 3], found I32 [1, 3]"},
  };
  for (const Case& one : cases) {
    const std::string message = refusal(one.tensors, one.config);
    EXPECT_NE(message.find(one.error), std::string::npos) << one.error << "\n  found " << message;
  }
}

}  // namespace
}  // namespace tandem::weights
