#include "checkpoint_maker/tokenizer.h"

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tandem::tools {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The special tokens by id.
std::map<uint32_t, std::string> special_tokens(const Shape& shape) {
  std::map<uint32_t, std::string> specials;
  specials[shape.end_of_text] = "<|endoftext|>";
  specials[shape.im_start] = "<|im_start|>";
  specials[shape.im_end] = "<|im_end|>";
  if (shape.bos) specials[*shape.bos] = "<|begin_of_text|>";
  for (const uint32_t id : shape.eos) specials.emplace(id, "<|eos_" + std::to_string(id) + "|>");
  return specials;
}

std::string utf8(uint32_t point) {
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 63))};
}

/// GPT-2's printable stand-ins for bytes: itself if it is visible in Latin-1, otherwise the next
/// free code point from 256 on.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    characters[byte] = utf8(visible ? byte : next++);
  }
  return characters;
}

using Merge = std::pair<std::string, std::string>;

/// `count` merges whose parts are bytes or earlier merges, all with different results: pairs of
/// letters (the first perhaps a space or a capital), then a third letter, then two more.
std::vector<Merge> make_merges(size_t count) {
  const std::string space = byte_characters()[' '];
  std::vector<Merge> merges;
  std::vector<std::string> lower;  // pairs of small letters
  std::vector<std::string> pairs;
  const auto add = [&](const std::string& left, const std::string& right) {
    if (merges.size() < count) merges.emplace_back(left, right);
  };
  const auto letters = [](char first) {
    std::vector<std::string> result;
    for (char c = first; c < first + 26; ++c) result.emplace_back(1, c);
    return result;
  };
  for (const std::string& a : letters('a')) {
    add(space, a);
    pairs.push_back(space + a);
    for (const std::string& b : letters('a')) {
      add(a, b);
      lower.push_back(a + b);
      pairs.push_back(a + b);
    }
  }
  for (const std::string& a : letters('A')) {
    for (const std::string& b : letters('a')) {
      add(a, b);
      pairs.push_back(a + b);
    }
  }
  for (const std::string& pair : pairs) {
    for (const std::string& c : letters('a')) add(pair, c);
  }
  for (const std::string& left : pairs) {
    for (const std::string& right : lower) add(left, right);
  }
  return merges;
}

json added_token(uint32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

/// What a llama tokenizer does to begin a text.
json begin_processor(uint32_t bos, const std::string& text) {
  const json begin = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const json begin_b = {{"SpecialToken", {{"id", text}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", json::array({begin, sequence("A", 0)})},
          {"pair", json::array({begin, sequence("A", 0), begin_b, sequence("B", 1)})},
          {"special_tokens",
           {{text, {{"id", text}, {"ids", json::array({bos})}, {"tokens", json::array({text})}}}}}};
}

}  // namespace

json tokenizer_json(const Shape& shape) {
  const auto specials = special_tokens(shape);
  json added = json::array();
  json vocab = json::object();
  for (const auto& [id, content] : specials) {
    added.push_back(added_token(id, content));
    vocab[content] = id;
  }
  const auto bytes = byte_characters();
  const auto merges = make_merges(shape.vocab - specials.size() - bytes.size());
  json merge_list = json::array();
  uint32_t id = 0;
  const auto next_id = [&] {
    while (specials.contains(id)) ++id;
    return id++;
  };
  for (const std::string& character : bytes) vocab[character] = next_id();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = next_id();
    merge_list.push_back(json::array({left, right}));
  }
  const json split = {{"type", "Split"},
                      {"pattern",
                       {{"Regex",
                         "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level})}}},
          {"post_processor",
           shape.bos ? begin_processor(*shape.bos, specials.at(*shape.bos)) : json(nullptr)},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merge_list)}}}};
}

ordered_json tokenizer_config_json(const Shape& shape) {
  const auto specials = special_tokens(shape);
  ordered_json decoder = ordered_json::object();
  for (const auto& [id, content] : specials) {
    decoder[std::to_string(id)] = {{"content", content},   {"lstrip", false},
                                   {"normalized", false},  {"rstrip", false},
                                   {"single_word", false}, {"special", true}};
  }
  const std::string begin = shape.bos ? "{{- bos_token }}" : "";
  return {
      {"add_bos_token", shape.bos.has_value()},
      {"add_eos_token", false},
      {"added_tokens_decoder", decoder},
      {"additional_special_tokens", {"<|im_start|>"}},
      {"bos_token", shape.bos ? ordered_json(specials.at(*shape.bos)) : ordered_json(nullptr)},
      {"chat_template",
       begin + "{%- for message in messages %}"
               "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' "
               "}}"
               "{%- endfor %}"
               "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"},
      {"clean_up_tokenization_spaces", false},
      {"eos_token", "<|im_end|>"},
      {"model_max_length", shape.context},
      {"pad_token", "<|endoftext|>"},
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"unk_token", nullptr}};
}

ordered_json generation_config_json(const Shape& shape) {
  ordered_json eos =
      shape.eos.size() == 1 ? ordered_json(shape.eos.front()) : ordered_json(shape.eos);
  return {{"bos_token_id", shape.bos ? *shape.bos : shape.end_of_text},
          {"do_sample", true},
          {"eos_token_id", std::move(eos)},
          {"pad_token_id", shape.end_of_text},
          {"temperature", 0.7},
          {"top_k", 40},
          {"top_p", 0.95},
          {"transformers_version", "4.51.0"}};
}

}  // namespace tandem::tools
