// Mixtures of experts: what configs say of them, every form in which checkpoints hold them, and
// experts that stay on disk.
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model/support.h"
#include "weights/dtype.h"
#include "weights/files.h"
#include "weights/packed_cache.h"
#include "weights/quantize.h"
#include "weights/safetensors.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using weights::TemporaryFolder;

json qwen3_moe() {
  return json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "vocab_size": 300, "hidden_act": "silu",
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48})");
}

json with(json config, std::string_view changes) {
  config.merge_patch(json::parse(changes));
  return config;
}

TEST(ExpertConfig, ReadsAQwen3Moe) {
  const auto config = parse_config(qwen3_moe().dump());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->moe.experts, 8U);
  EXPECT_EQ(config->moe.chosen, 2U);
  EXPECT_EQ(config->moe.width, 48U);
  EXPECT_FALSE(config->moe.normalize);  // as transformers has it where the config does not say
  for (uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(config->has_experts(i));
  const auto renamed = parse_config(
      with(qwen3_moe(), R"({"num_experts": null, "num_local_experts": 16, "norm_topk_prob": true})")
          .dump());
  ASSERT_TRUE(renamed.ok()) << renamed.error().message;
  EXPECT_EQ(renamed->moe.experts, 16U);
  EXPECT_TRUE(renamed->moe.normalize);
}

TEST(ExpertConfig, SparseStepAndMlpOnlyLayersSayWhichLayersHaveThem) {
  const auto config = parse_config(
      with(qwen3_moe(), R"({"decoder_sparse_step": 2, "mlp_only_layers": [3, 99]})").dump());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->moe.layers, std::vector<bool>({false, true, false, false, false, true}));
  const auto none = parse_config(with(qwen3_moe(), R"({"num_experts": 0})").dump());
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_FALSE(none->has_experts(5));
}

TEST(ExpertConfig, WindowsAndDefaultsAreTheFamilies) {
  const auto windows = parse_config(
      with(qwen3_moe(), R"({"use_sliding_window": true, "sliding_window": 32})").dump());
  ASSERT_TRUE(windows.ok()) << windows.error().message;
  EXPECT_EQ(windows->window, std::vector<uint32_t>(6, 32));
  json mixtral = with(qwen3_moe(), R"({"architectures": ["MixtralForCausalLM"]})");
  const auto open = parse_config(mixtral.dump());
  ASSERT_TRUE(open.ok()) << open.error().message;
  EXPECT_EQ(open->window, std::vector<uint32_t>(6, 0));
  EXPECT_EQ(open->moe.width, 160U);
  EXPECT_TRUE(open->moe.normalize);
  EXPECT_EQ(open->norm_eps, 1e-5);
  EXPECT_EQ(open->rope.theta, 1e6);
  json oss = with(qwen3_moe(), R"({"architectures": ["GptOssForCausalLM"]})");
  const auto gpt_oss = parse_config(oss.dump());
  ASSERT_TRUE(gpt_oss.ok()) << gpt_oss.error().message;
  EXPECT_EQ(gpt_oss->window, std::vector<uint32_t>({128, 0, 128, 0, 128, 0}));
  EXPECT_EQ(gpt_oss->rope.scaling, RopeScaling::kYarn);
  EXPECT_FALSE(gpt_oss->rope.truncate);
  EXPECT_EQ(gpt_oss->rope.theta, 150000.0);
  EXPECT_TRUE(gpt_oss->attention_bias);
  EXPECT_EQ(gpt_oss->moe.limit, 7.0);
}

TEST(ExpertConfig, RefusesByNameWhatItDoesNotCompute) {
  const std::map<std::string, std::string> wrong = {
      {R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
      {R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
      {R"({"num_experts": 1025})", "num_experts"},
      {R"({"num_experts": null})", "num_experts"},
      {R"({"num_local_experts": 4})", "differ"},
      {R"({"moe_intermediate_size": null})", "moe_intermediate_size"},
      {R"({"decoder_sparse_step": 0})", "decoder_sparse_step"},
      {R"({"mlp_only_layers": 3})", "mlp_only_layers"},
      {R"({"mlp_only_layers": [-1]})", "mlp_only_layers"},
      {R"({"norm_topk_prob": 1})", "norm_topk_prob"},
      {R"({"routed_scaling_factor": 2.5})", "routed_scaling_factor"},
      {R"({"n_shared_experts": 1})", "n_shared_experts"},
      {R"({"scoring_func": "sigmoid"})", "scoring_func"},
      {R"({"architectures": ["MixtralForCausalLM"], "norm_topk_prob": false})", "norm_topk_prob"},
      {R"({"architectures": ["GptOssForCausalLM"], "swiglu_limit": -1})", "swiglu_limit"},
      {R"({"architectures": ["LlamaForCausalLM"]})", "num_experts"}};
  for (const auto& [change, name] : wrong) {
    const auto config = parse_config(with(qwen3_moe(), change).dump());
    ASSERT_FALSE(config.ok()) << change;
    EXPECT_NE(config.error().message.find(name), std::string::npos) << config.error().message;
  }
}

struct Tensor {
  std::vector<uint64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_all(const fs::path& file) {
  Tensors tensors;
  auto opened = weights::SafetensorsFile::open(file);
  EXPECT_TRUE(opened.ok());
  for (const weights::StoredTensor& tensor : (*opened)->tensors()) {
    const auto raw = (*opened)->read_raw(tensor);
    EXPECT_TRUE(raw.ok());
    tensors[tensor.name] = {
        tensor.shape,
        std::string(reinterpret_cast<const char*>(raw->bytes.data()), raw->bytes.size())};
  }
  return tensors;
}

void write_all(const fs::path& file, const Tensors& tensors) {
  std::vector<weights::StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    const bool bytes = name.ends_with("_blocks") || name.ends_with("_scales");
    stored.push_back(
        {name, bytes ? weights::StoredType::kU8 : weights::StoredType::kBF16, tensor.shape});
  }
  auto writer = weights::SafetensorsWriter::create(file, stored);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE((*writer)->write(std::as_bytes(std::span(tensor.bytes))).ok());
  }
  ASSERT_TRUE((*writer)->finish().ok());
}

std::vector<float> all_logits(Files& files, const StageOptions& options) {
  Loaded model = load(files, options);
  auto sequence = model.stage->new_sequence();
  return model.logits(*sequence, test_tokens(files.config, 40));
}

// Joins the experts' tensors of a model as transformers 5 has them in memory.
void fuse(Tensors& tensors, const std::string& experts, const std::array<std::string, 3>& names,
          const std::string& fused, uint32_t count) {
  Tensor both;
  Tensor down;
  for (uint32_t e = 0; e < count; ++e) {
    const std::string own = experts + std::to_string(e) + ".";
    const Tensor gate = tensors.at(own + names[0] + ".weight");
    const Tensor last = tensors.at(own + names[2] + ".weight");
    both.bytes += gate.bytes + tensors.at(own + names[1] + ".weight").bytes;
    both.shape = {count, 2 * gate.shape[0], gate.shape[1]};
    down.bytes += last.bytes;
    down.shape = {count, last.shape[0], last.shape[1]};
    for (const std::string& name : names) tensors.erase(own + name + ".weight");
  }
  tensors[fused + "gate_up_proj"] = both;
  tensors[fused + "down_proj"] = down;
}

TEST(ExpertTensors, FusedOnesGiveTheBitsOfSeparateOnes) {
  for (const bool mixtral : {false, true}) {
    const std::string name = mixtral ? "mixtral" : "qwen3_moe";
    Files separate = open(name);
    const TemporaryFolder folder;
    fs::copy_file(oracle_folder() / name / "config.json", folder / "config.json");
    Tensors tensors = read_all(oracle_folder() / name / "model.safetensors");
    for (uint32_t layer = 0; layer < separate.config.layers; ++layer) {
      const std::string base = "model.layers." + std::to_string(layer) + ".";
      const std::string block = base + (mixtral ? "block_sparse_moe." : "mlp.");
      const auto names = mixtral ? std::array<std::string, 3>{"w1", "w3", "w2"}
                                 : std::array<std::string, 3>{"gate_proj", "up_proj", "down_proj"};
      fuse(tensors, block + "experts.", names, base + "mlp.experts.", separate.config.moe.experts);
      auto router = tensors.extract(block + "gate.weight");
      router.key() = base + "mlp.gate.weight";
      tensors.insert(std::move(router));
    }
    write_all(folder / "model.safetensors", tensors);
    Files fused = open_path(folder.path());
    EXPECT_EQ(fused.config.moe.layout, ExpertLayout::kFused);
    for (const WeightBits bits : {WeightBits::k8, WeightBits::k4, WeightBits::k16}) {
      StageOptions options = model::with(2, Isa::kBest);
      options.weights = bits;
      EXPECT_EQ(all_logits(fused, options), all_logits(separate, options)) << name;
    }
  }
}

// gpt-oss's experts as random MXFP4, and the same numbers unpacked, as transformers unpacks them.
struct Mxfp4 {
  Tensors packed;
  Tensors unpacked;
};

float fp4(int nibble) {
  constexpr std::array kValues = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float value = kValues[static_cast<size_t>(nibble & 7)];
  return (nibble & 8) != 0 ? -value : value;
}

// [experts, rows, columns] of one projection; `spread`: how far a row's scales are apart.
void add_projection(Mxfp4& model, const std::string& name, uint64_t experts, uint64_t rows,
                    uint64_t columns, uint32_t spread, uint64_t& state) {
  const auto next = [&] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state >> 33);
  };
  Tensor blocks{{experts, rows, columns / 32, 16}, {}};
  Tensor scales{{experts, rows, columns / 32}, {}};
  Tensor plain{{experts, columns, rows}, std::string(experts * columns * rows * 2, 0)};
  for (uint64_t e = 0; e < experts; ++e) {
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t g = 0; g < columns / 32; ++g) {
        const auto scale = static_cast<int>(120 + next() % spread);
        scales.bytes.push_back(static_cast<char>(scale));
        for (uint64_t j = 0; j < 16; ++j) {
          const uint32_t byte = next() % 256;
          blocks.bytes.push_back(static_cast<char>(byte));
          for (uint64_t half = 0; half < 2; ++half) {
            const int nibble = static_cast<int>(half == 0 ? byte & 15U : byte >> 4);
            const float value = std::ldexp(fp4(nibble), scale - 127);
            const uint16_t narrow = weights::f32_to_bf16(value);
            const uint64_t k = g * 32 + j * 2 + half;
            std::memcpy(&plain.bytes[((e * columns + k) * rows + r) * 2], &narrow, 2);
          }
        }
      }
    }
  }
  model.packed[name + "_blocks"] = blocks;
  model.packed[name + "_scales"] = scales;
  model.unpacked[name] = plain;
}

TEST(ExpertTensors, Mxfp4LosesNothing) {
  Files original = open("gpt_oss");
  const TemporaryFolder folder;
  json config = json::parse(original.checkpoint->config_json());
  Mxfp4 model;
  model.packed = model.unpacked = read_all(oracle_folder() / "gpt_oss" / "model.safetensors");
  uint64_t state = 1;
  for (uint32_t layer = 0; layer < original.config.layers; ++layer) {
    const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    for (Tensors* tensors : {&model.packed, &model.unpacked}) {
      tensors->erase(experts + "gate_up_proj");
      tensors->erase(experts + "down_proj");
    }
    add_projection(model, experts + "gate_up_proj", 4, 320, 64, 8, state);
    add_projection(model, experts + "down_proj", 4, 64, 160, 8, state);
  }
  weights::write_file(folder / "plain/config.json", config.dump());
  write_all(folder / "plain/model.safetensors", model.unpacked);
  config["quantization_config"] = json::parse(
      R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", "model.embed_tokens"]})");
  weights::write_file(folder / "packed/config.json", config.dump());
  write_all(folder / "packed/model.safetensors", model.packed);
  Files packed = open_path(folder / "packed");
  EXPECT_EQ(packed.config.moe.layout, ExpertLayout::kMxfp4);
  Files plain = open_path(folder / "plain");

  // Every integer weight is the stored number.
  ThreadPool pool(2);
  for (const bool down : {false, true}) {
    const std::string name =
        std::string("model.layers.1.mlp.experts.") + (down ? "down_proj" : "gate_up_proj");
    const auto blocks = packed.checkpoint->read(name + "_blocks");
    ASSERT_TRUE(blocks.ok()) << blocks.error().message;
    const auto stored = plain.checkpoint->read(name);
    ASSERT_TRUE(stored.ok());
    std::vector<float> values(stored->info.elements());
    ASSERT_TRUE(weights::widen(stored->info.dtype, stored->bytes, values).ok());
    const uint32_t rows = down ? 64 : 320;
    const uint32_t columns = down ? 160 : 64;
    for (uint32_t expert = 0; expert < 4; ++expert) {
      for (uint32_t first = 0; first < (down ? 1U : 2U); ++first) {
        const uint32_t step = down ? 1 : 2;
        const auto matrix = weights::quantize_matrix(
            *blocks, {false, first, rows / step, columns, step, true, expert},
            kernels::WeightFormat::k6, pool);
        ASSERT_TRUE(matrix.ok()) << matrix.error().message;
        std::vector<int32_t> integers(columns);
        for (uint32_t r = 0; r < rows / step; ++r) {
          kernels::load_row(*matrix, r, integers);
          for (uint32_t k = 0; k < columns; ++k) {
            const size_t place = (size_t{expert} * columns + k) * rows + first + r * step;
            ASSERT_EQ(static_cast<float>(integers[k]) * matrix->row_scales[r], values[place]);
          }
        }
      }
    }
  }
  // With 8-bit rows of the unpacked experts logits differ, but little; with 4 bits they run.
  const std::vector<float> exact = all_logits(packed, model::with(2, Isa::kBest));
  const auto difference = [&](const std::vector<float>& others) {
    double squares = 0;
    double all = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      squares += (exact[i] - others[i]) * (exact[i] - others[i]);
      all += exact[i] * exact[i];
    }
    return std::sqrt(squares / all);
  };
  const double at_8 = difference(all_logits(plain, model::with(2, Isa::kBest)));
  EXPECT_GT(at_8, 0);
  EXPECT_LT(at_8, 0.1);
  // The other matrices lie on grids of 8 bits: 16 bits of the unpacked experts come as near to the
  // packed ones, which stay as they are, as activations let them.
  StageOptions sixteen = model::with(2, Isa::kBest);
  sixteen.weights = WeightBits::k16;
  EXPECT_EQ(all_logits(packed, sixteen), exact);
  const double at_16 = difference(all_logits(plain, sixteen));
  printf("mxfp4 unpacked: %.4f %% at 8 bits, %.4f %% at 16\n", 100 * at_8, 100 * at_16);
  EXPECT_LT(at_16, at_8 / 20);
  StageOptions four = model::with(2, Isa::kBest);
  four.weights = WeightBits::k4;
  EXPECT_EQ(all_logits(packed, four), all_logits(plain, four));
  four.first_layer = 0;
  four.last_layer = packed.config.layers;
  EXPECT_EQ((*Stage::load(packed.config, four, *packed.checkpoint, {}))->bytes(),
            stage_bytes(packed.config, four));
  for (const WeightBits bits : {WeightBits::k8, WeightBits::k16}) {
    four.weights = bits;
    EXPECT_EQ((*Stage::load(packed.config, four, *packed.checkpoint, {}))->bytes(),
              stage_bytes(packed.config, four));
  }
}

class OnDisk : public testing::TestWithParam<const char*> {};

TEST_P(OnDisk, ExpertsGiveTheSameBitsFromTheFirstStartOn) {
  Files files = open(GetParam());
  const std::vector<float> wanted = all_logits(files, model::with(2, Isa::kBest));
  const TemporaryFolder folder;
  StageOptions options = model::with(2, Isa::kBest);
  for (const uint64_t limit : {uint64_t{0}, uint64_t{100'000}, uint64_t{1} << 40}) {
    weights::PackedCacheOptions cache;
    cache.folder = folder / std::to_string(limit);
    std::vector<std::string> notices;
    cache.notice = [&](const std::string& line) { notices.push_back(line); };
    options.experts_memory = limit;
    for (int start = 0; start < 3; ++start) {
      options.cache = std::make_shared<weights::PackedCache>(cache);
      EXPECT_EQ(all_logits(files, options), wanted) << "start " << start;
    }
    EXPECT_TRUE(notices.empty()) << notices.front();
  }
}

TEST_P(OnDisk, DamageIsFoundWhenAnExpertIsNeededAndMendedByTheNextStart) {
  Files files = open(GetParam());
  const std::vector<float> wanted = all_logits(files, model::with(2, Isa::kBest));
  const TemporaryFolder folder;
  weights::PackedCacheOptions cache;
  cache.folder = folder / "weights";
  StageOptions options = model::with(2, Isa::kBest);
  options.experts_memory = 0;
  options.cache = std::make_shared<weights::PackedCache>(cache);
  EXPECT_EQ(all_logits(files, options), wanted);
  options.cache.reset();
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(cache.folder)) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 100);
    const auto byte = static_cast<char>(file.peek() ^ 64);
    file.seekp(4096 + 100);
    file.put(byte);
    ++damaged;
  }
  EXPECT_GE(damaged, files.config.moe.experts);
  // Until the damaged ones that are needed are gone.
  bool refused = false;
  for (size_t start = 0; start <= damaged; ++start) {
    options.cache = std::make_shared<weights::PackedCache>(cache);
    Loaded model = load(files, options);
    auto sequence = model.stage->new_sequence();
    auto hidden = model.ends->embed(test_tokens(files.config, 40), 0);
    const Status status = model.stage->run(*sequence, 0, *hidden);
    if (status.ok()) break;
    refused = true;
    EXPECT_NE(status.error().message.find("damaged"), std::string::npos);
  }
  EXPECT_TRUE(refused);
  EXPECT_EQ(all_logits(files, options), wanted);
}

TEST_P(OnDisk, NeedsACacheAndSaysHowMuchMemoryItTakes) {
  Files files = open(GetParam());
  StageOptions options = model::with(1, Isa::kBest);
  options.last_layer = files.config.layers;
  const uint64_t all = stage_bytes(files.config, options);
  options.experts_memory = 1000;
  const uint64_t some = stage_bytes(files.config, options);
  EXPECT_LT(some, all);
  const auto without = Stage::load(files.config, options, *files.checkpoint, {});
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("cache"), std::string::npos);
  const TemporaryFolder folder;
  weights::PackedCacheOptions cache;
  cache.folder = folder / "weights";
  for (int start = 0; start < 2; ++start) {
    options.cache = std::make_shared<weights::PackedCache>(cache);
    const auto stage = Stage::load(files.config, options, *files.checkpoint, {});
    ASSERT_TRUE(stage.ok()) << stage.error().message;
    EXPECT_EQ((*stage)->bytes(), some);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnDisk, testing::Values("qwen3_moe", "mixtral", "gpt_oss"),
                         [](const auto& family) { return std::string(family.param); });

TEST(ExpertBytes, ATokenReadsTheChosenExpertsOnly) {
  const Files files = open("qwen3_moe");
  const uint64_t all = bytes_read(files.config, WeightBits::k8, 0, files.config.layers);
  ModelConfig every = files.config;
  every.moe.chosen = every.moe.experts;
  const uint64_t most = bytes_read(every, WeightBits::k8, 0, every.layers);
  const uint64_t one = 2 * kernels::PackedMatrix::bytes_for(kernels::WeightFormat::k8, 48, 64) +
                       kernels::PackedMatrix::bytes_for(kernels::WeightFormat::k8, 64, 48);
  EXPECT_EQ(most - all, 4 * 6 * one);
}

}  // namespace
}  // namespace tandem::model
