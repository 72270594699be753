// What is read from a config.json, and what is refused by name.
#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::model {
namespace {

using nlohmann::json;

json llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "vocab_size": 300, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 500000.0})");
}

json with(std::string_view changes) {
  json config = llama();
  config.merge_patch(json::parse(changes));
  return config;
}

// A patch of null removes a key; these set a key to null.
json with_null(const char* key) {
  json config = llama();
  config[key] = nullptr;
  return config;
}

TEST(Config, ReadsALlama) {
  const auto config = parse_config(llama().dump());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->layers, 4U);
  EXPECT_EQ(config->hidden_size, 64U);
  EXPECT_EQ(config->head_dim, 16U);
  EXPECT_EQ(config->kv_heads, 2U);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_EQ(config->window, std::vector<uint32_t>({0, 0, 0, 0}));
}

TEST(Config, TakesHeadsAndHeadDimFromTheOtherValuesWhereTheyAreNull) {
  json object = with_null("num_key_value_heads");
  object["head_dim"] = nullptr;
  const auto config = parse_config(object.dump());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->kv_heads, 4U);
  EXPECT_EQ(config->head_dim, 16U);
}

TEST(Config, GivesEachLayerItsWindow) {
  const auto mistral = parse_config(
      with(R"({"architectures": ["MistralForCausalLM"], "sliding_window": 16})").dump());
  ASSERT_TRUE(mistral.ok()) << mistral.error().message;
  EXPECT_EQ(mistral->window, std::vector<uint32_t>({16, 16, 16, 16}));

  const char* qwen = R"({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true,
                         "sliding_window": 32, "max_window_layers": 3})";
  const auto opted_in = parse_config(with(qwen).dump());
  ASSERT_TRUE(opted_in.ok()) << opted_in.error().message;
  EXPECT_EQ(opted_in->window, std::vector<uint32_t>({0, 0, 0, 32}));

  json typed = with(qwen);
  typed["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                          "sliding_attention"};
  const auto listed = parse_config(typed.dump());
  ASSERT_TRUE(listed.ok()) << listed.error().message;
  EXPECT_EQ(listed->window, std::vector<uint32_t>({32, 0, 0, 32}));

  json no_window = with(R"({"architectures": ["MistralForCausalLM"]})");
  no_window["sliding_window"] = nullptr;
  const auto full = parse_config(no_window.dump());
  ASSERT_TRUE(full.ok()) << full.error().message;
  EXPECT_EQ(full->window, std::vector<uint32_t>({0, 0, 0, 0}));
}

TEST(Config, KnowsWhichBiasesAFamilyHas) {
  const auto qwen2 = parse_config(with(R"({"architectures": ["Qwen2ForCausalLM"]})").dump());
  ASSERT_TRUE(qwen2.ok());
  EXPECT_TRUE(qwen2->attention_bias);
  EXPECT_FALSE(qwen2->output_bias);
  const auto biased = parse_config(with(R"({"attention_bias": true, "mlp_bias": true})").dump());
  ASSERT_TRUE(biased.ok());
  EXPECT_TRUE(biased->attention_bias && biased->output_bias && biased->mlp_bias);
}

TEST(Config, FindsTheNamesOfABareModel) {
  auto config = parse_config(R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4,
                                 "n_layer": 2, "n_positions": 128, "vocab_size": 100,
                                 "activation_function": "gelu_new"})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->intermediate_size, 256U);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->prefix, "transformer.");
  resolve_prefix(*config, [](std::string_view name) { return name == "wte.weight"; });
  EXPECT_EQ(config->prefix, "");
  resolve_prefix(*config, [](std::string_view name) { return name == "transformer.wte.weight"; });
  EXPECT_EQ(config->prefix, "transformer.");
}

struct Refused {
  const char* what;
  std::string text;
  const char* message;  // a part of the error
};

class Refusal : public testing::TestWithParam<Refused> {};

TEST_P(Refusal, NamesTheCause) {
  const auto config = parse_config(GetParam().text);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find(GetParam().message), std::string::npos)
      << config.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Configs, Refusal,
    testing::Values(
        Refused{"NoJson", "{", "not valid JSON"}, Refused{"Array", "[]", "not a JSON object"},
        Refused{"NoArchitecture", "{}", "'architectures'"},
        Refused{"UnknownArchitecture", with(R"({"architectures": ["FalconForCausalLM"]})").dump(),
                "'FalconForCausalLM' is not known; known are LlamaForCausalLM"},
        Refused{"NoLayers", with(R"({"num_hidden_layers": null})").dump(), "'num_hidden_layers'"},
        Refused{"ZeroLayers", with(R"({"num_hidden_layers": 0})").dump(), "from 1 to 1024"},
        Refused{"NegativeHidden", with(R"({"hidden_size": -64})").dump(), "'hidden_size'"},
        Refused{"FractionalHeads", with(R"({"num_attention_heads": 4.5})").dump(),
                "'num_attention_heads'"},
        Refused{"HugeVocab", with(R"({"vocab_size": 4294967297})").dump(), "'vocab_size'"},
        Refused{"TextForNumber", with(R"({"vocab_size": "300"})").dump(), "'vocab_size'"},
        Refused{"HeadsDoNotShare", with(R"({"num_key_value_heads": 3})").dump(),
                "can't share 3 key/value heads"},
        Refused{"HeadsDoNotDivide",
                with(R"({"num_attention_heads": 3, "num_key_value_heads": 3})").dump(),
                "does not divide into 3 heads"},
        Refused{"OddHeadDim", with(R"({"head_dim": 15})").dump(), "even head_dim"},
        Refused{"Activation", with(R"({"hidden_act": "relu"})").dump(), "'hidden_act'"},
        Refused{"Quantized", with(R"({"quantization_config": {"quant_method": "gptq"}})").dump(),
                "'quantization_config'"},
        Refused{"Softcap", with(R"({"final_logit_softcapping": 30.0})").dump(),
                "'final_logit_softcapping'"},
        Refused{"Experts", with(R"({"num_local_experts": 8})").dump(), "'num_local_experts'"},
        Refused{"BiasOfMistral",
                with(R"({"architectures": ["MistralForCausalLM"], "attention_bias": true})").dump(),
                "attention_bias"},
        Refused{"RopeType", with(R"({"rope_scaling": {"rope_type": "longrope"}})").dump(),
                "longrope"},
        Refused{"RopeWithoutFactor", with(R"({"rope_scaling": {"rope_type": "linear"}})").dump(),
                "'factor'"},
        Refused{"RopeFactor",
                with(R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})").dump(),
                "'factor'"},
        Refused{"PartialRotary", with(R"({"partial_rotary_factor": 0.5})").dump(),
                "'partial_rotary_factor'"},
        Refused{"LayerTypes",
                with(R"({"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": true,
                         "sliding_window": 8, "layer_types": ["full_attention"]})")
                    .dump(),
                "names 1 layers"},
        Refused{"TooLong", std::string((size_t{1} << 20) + 1, ' '), "at most 1048576"},
        Refused{"Deep", std::string(100000, '['), "not valid JSON"}),
    [](const auto& refused) { return std::string(refused.param.what); });

}  // namespace
}  // namespace tandem::model
