// Mixtures of experts: what configs say of them, every form in which checkpoints hold them, and
// experts that stay on disk.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model/support.h"
#include "weights/files.h"
#include "weights/packed_cache.h"
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
    stored.push_back({name, weights::StoredType::kBF16, tensor.shape});
  }
  auto writer = weights::SafetensorsWriter::create(file, stored);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE((*writer)->write(std::as_bytes(std::span(tensor.bytes))).ok());
  }
  ASSERT_TRUE((*writer)->finish().ok());
}

Files open_folder(const fs::path& folder) {
  Files files;
  auto checkpoint = weights::Checkpoint::open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  files.checkpoint = std::move(*checkpoint);
  auto config = parse_config(files.checkpoint->config_json());
  EXPECT_TRUE(config.ok()) << config.error().message;
  files.config = *config;
  resolve_prefix(files.config, [&](std::string_view tensor) {
    return files.checkpoint->find(tensor) != nullptr;
  });
  return files;
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
    Files fused = open_folder(folder.path());
    EXPECT_EQ(fused.config.moe.layout, ExpertLayout::kFused);
    for (const WeightBits bits : {WeightBits::k8, WeightBits::k4}) {
      StageOptions options = model::with(2, Isa::kBest);
      options.weights = bits;
      EXPECT_EQ(all_logits(fused, options), all_logits(separate, options)) << name;
    }
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
