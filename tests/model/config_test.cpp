// What is read from a config.json, and what is refused by name.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
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

// The same sizes for another architecture.
std::string family(const char* architecture, std::string_view changes) {
  json config = with(changes);
  config["architectures"] = {architecture};
  config.erase("hidden_act");
  return config.dump();
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

TEST(Config, ReadsGemmasOldAndNewForms) {
  const auto old = parse_config(family("Gemma3ForCausalLM", R"({
      "num_hidden_layers": 7, "head_dim": null, "sliding_window": 100, "sliding_window_pattern": 3,
      "rope_theta": null, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
      "query_pre_attn_scalar": 168, "torch_dtype": "bfloat16"})"));
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_EQ(old->window, std::vector<uint32_t>({100, 100, 0, 100, 100, 0, 100}));
  EXPECT_EQ(old->head_dim, 256U);
  EXPECT_EQ(old->query_scalar, 168.0);
  EXPECT_EQ(old->rope.theta, 1e6);
  EXPECT_EQ(old->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old->rope.factor, 8.0);
  EXPECT_EQ(old->local_rope.theta, 1e4);
  EXPECT_EQ(old->local_rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(old->layer_rope[1], LayerRope::kLocal);
  EXPECT_EQ(old->layer_rope[2], LayerRope::kGlobal);
  EXPECT_TRUE(old->tied_embeddings && old->norm_plus_one);

  const auto newer = parse_config(family("Gemma3ForCausalLM", R"({
      "sliding_window": 100, "rope_theta": null, "tie_word_embeddings": false,
      "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
      "rope_parameters": {"sliding_attention": {"rope_theta": 5000.0},
                          "full_attention": {"rope_type": "linear", "factor": 2.0}}})"));
  ASSERT_TRUE(newer.ok()) << newer.error().message;
  EXPECT_EQ(newer->window, std::vector<uint32_t>({0, 100, 100, 0}));
  EXPECT_EQ(newer->rope.theta, 1e6);
  EXPECT_EQ(newer->rope.factor, 2.0);
  EXPECT_EQ(newer->local_rope.theta, 5000.0);
  EXPECT_EQ(newer->query_scalar, 256.0);
  EXPECT_FALSE(newer->tied_embeddings);
}

TEST(Config, RoundsGemmasEmbeddingFactorToTheTypeOfTheWeights) {
  const auto factor = [](const char* dtype) {
    const auto config = parse_config(
        family("Gemma3ForCausalLM", std::string(R"({"hidden_size": 1152, )") + dtype + "}"));
    EXPECT_TRUE(config.ok());
    return config->embedding_scale;
  };
  EXPECT_EQ(factor(R"("dtype": "bfloat16")"), 34.0F);
  EXPECT_EQ(factor(R"("torch_dtype": "float16")"), 33.9375F);
  EXPECT_EQ(factor(R"("dtype": "float32")"), 33.9411255F);
}

TEST(Config, ReadsAWrappedGemmaWithNothingButItsDifferences) {
  auto config = parse_config(R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "torch_dtype": "bfloat16", "vision_config": {"num_attention_heads": 16},
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                      "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                      "sliding_window": 1024}})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->heads, 8U);
  EXPECT_EQ(config->kv_heads, 4U);
  EXPECT_EQ(config->vocab, 262208U);
  EXPECT_EQ(config->context, 131072U);
  EXPECT_EQ(config->embedding_scale, 50.5F);
  EXPECT_EQ(config->window[4], 1024U);
  EXPECT_EQ(config->window[5], 0U);
  for (const char* prefix : {"model.", "language_model.model.", "model.language_model.", ""}) {
    const std::string embedding = std::string(prefix) + "embed_tokens.weight";
    resolve_prefix(*config, [&](std::string_view name) { return name == embedding; });
    EXPECT_EQ(config->prefix, prefix);
    EXPECT_EQ(config->head, "lm_head");
    EXPECT_TRUE(config->tied_embeddings);
  }
  resolve_prefix(*config, [&](std::string_view name) {
    return name == "language_model.model.embed_tokens.weight" ||
           name == "language_model.lm_head.weight";
  });
  EXPECT_EQ(config->head, "language_model.lm_head");
}

TEST(Config, LetsTensorsDecideWhereAWrapperAndItsTextModelDisagreeAboutTheHead) {
  auto config = parse_config(R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "tie_word_embeddings": false, "text_config": {}})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  resolve_prefix(*config, [](std::string_view name) {
    return name == "model.language_model.embed_tokens.weight" || name == "lm_head.weight";
  });
  EXPECT_FALSE(config->tied_embeddings);
  resolve_prefix(*config, [](std::string_view name) {
    return name == "model.language_model.embed_tokens.weight";
  });
  EXPECT_TRUE(config->tied_embeddings);
}

TEST(Config, ReadsPhi3sFactors) {
  const char* shape = R"({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": null,
      "partial_rotary_factor": 0.25, "max_position_embeddings": 131072,
      "original_max_position_embeddings": 8192, "sliding_window": 300,
      "rope_scaling": {"TYPE": "NAME", "short_factor": [1, 1.5, 2, 2.5],
                       "long_factor": [1, 2, 3, 4]}})";
  for (const auto& [type, name] :
       {std::pair("type", "su"), {"type", "yarn"}, {"rope_type", "longrope"}}) {
    std::string changes = shape;
    changes.replace(changes.find("TYPE"), 4, type);
    changes.replace(changes.find("NAME"), 4, name);
    const auto config = parse_config(family("Phi3ForCausalLM", changes));
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->rope.scaling, RopeScaling::kLongRope);
    EXPECT_EQ(config->rope.channels, 8U);
    EXPECT_EQ(config->rope.original_context, 8192U);
    EXPECT_EQ(config->rope.factor, 16.0);
    EXPECT_NEAR(config->rope.attention_factor, std::sqrt(1 + std::log(16.0) / std::log(8192.0)),
                1e-12);
    EXPECT_EQ(config->rope.long_factor, std::vector<double>({1, 2, 3, 4}));
    EXPECT_EQ(config->window, std::vector<uint32_t>({300, 300, 300, 300}));
  }
  const auto plain = parse_config(family("Phi3ForCausalLM", "{}"));
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(plain->window, std::vector<uint32_t>(4, 0));
}

TEST(Config, LeavesLayersOfSmolLm3WithoutRope) {
  const auto rope = [](const char* changes) {
    const auto config = parse_config(family("SmolLM3ForCausalLM", changes));
    EXPECT_TRUE(config.ok()) << config.error().message;
    std::string text;
    for (uint32_t i = 0; i < config->layers; ++i) {
      text += config->layer_rope[i] == LayerRope::kNone ? '-' : 'r';
      text += std::to_string(config->window[i]);
    }
    return text;
  };
  EXPECT_EQ(rope("{}"), "r0r0r0-0");
  EXPECT_EQ(rope(R"({"no_rope_layer_interval": 2})"), "r0-0r0-0");
  EXPECT_EQ(rope(R"({"no_rope_layers": [0, 1, 1, 1]})"), "-0r0r0r0");
  EXPECT_EQ(rope(R"({"use_sliding_window": true, "sliding_window": 9})"), "r0r0r0-9");
  EXPECT_EQ(rope(R"({"use_sliding_window": true, "sliding_window": 9,
                     "layer_types": ["sliding_attention", "full_attention", "full_attention",
                                     "full_attention"]})"),
            "r9r0r0-0");
}

TEST(Config, ReadsGranitesMultipliers) {
  const auto config = parse_config(family("GraniteForCausalLM", R"({"embedding_multiplier": 12,
      "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16})"));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->embedding_scale, 12.0F);
  EXPECT_EQ(config->residual_scale, 0.22F);
  EXPECT_EQ(config->attention_multiplier, 0.0078125);
  EXPECT_EQ(config->logit_scale, 0.0625F);
  const auto plain = parse_config(family("GraniteForCausalLM", "{}"));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->attention_multiplier, 1.0);
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
        Refused{"RopeType", with(R"({"rope_scaling": {"rope_type": "ntk"}})").dump(),
                "\"ntk\"; known are default, linear, dynamic, yarn, llama3 and longrope"},
        Refused{"LongRopeFactors", with(R"({"rope_scaling": {"rope_type": "longrope"}})").dump(),
                "'short_factor' must list 8 numbers"},
        Refused{"GemmaSoftcap", family("Gemma3ForCausalLM", R"({"attn_logit_softcapping": 50.0})"),
                "'attn_logit_softcapping'"},
        Refused{"GemmaBothWays",
                family("Gemma3ForCausalLM", R"({"use_bidirectional_attention": true})"),
                "'use_bidirectional_attention'"},
        Refused{"GemmaLayerType", family("Gemma3ForCausalLM", R"({"num_hidden_layers": 1,
                                                "layer_types": ["chunked_attention"]})"),
                "layer 0 is of type \"chunked_attention\""},
        Refused{"GemmaFlatRope",
                family("Gemma3ForCausalLM", R"({"rope_parameters": {"rope_theta": 1e6}})"),
                "'full_attention' and 'sliding_attention'"},
        Refused{"GemmaWithoutText", R"({"architectures": ["Gemma3ForConditionalGeneration"]})",
                "'text_config' must be an object"},
        Refused{"GemmaActivation", family("Gemma3ForCausalLM", R"({"hidden_activation": "gelu"})"),
                "'hidden_activation' is \"gelu\""},
        Refused{"WrappedQuantization",
                R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {},
                    "quantization_config": {"quant_method": "awq"}})",
                "'quantization_config'"},
        Refused{"OddPartialRotary", family("Phi3ForCausalLM", R"({"partial_rotary_factor": 0.19})"),
                "rotates 3 channels"},
        Refused{"NoRopeLayers", family("SmolLM3ForCausalLM", R"({"no_rope_layers": [1, 0]})"),
                "'no_rope_layers' must list 4 layers"},
        Refused{"NoRopeEntry", family("SmolLM3ForCausalLM", R"({"no_rope_layers": [1, 0, 2, 1]})"),
                "an entry of 'no_rope_layers' is 2"},
        Refused{"Multiplier", family("GraniteForCausalLM", R"({"logits_scaling": 0})"),
                "'logits_scaling'"},
        Refused{"MultiplierOfAnother", with(R"({"residual_multiplier": 0.5})").dump(),
                "'residual_multiplier'"},

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
