// The only file that includes simdjson: a vocabulary is tens of megabytes, the rest is small.
#include "text/tokenizer_json.h"

#include <simdjson.h>

#include <string>

#include "text/string_table.h"
#include "text/tokenizer_parts.h"

namespace tandem::text {

namespace {

namespace dom = simdjson::dom;

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  out += to_valid_utf8(text.substr(0, 60));
  out += text.size() > 60 ? "…\"" : "\"";
  return out;
}

std::string_view type_name(dom::element element) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
    case dom::element_type::DOUBLE:
      return "a number";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

Error expected(std::string_view what, std::string_view type, dom::element found) {
  return invalid(std::string(what) + " must be " + std::string(type) + ", found " +
                 std::string(type_name(found)));
}

/// The member, or null if it is missing.
dom::element member(dom::object object, std::string_view key) {
  dom::element value;
  static const std::string kNull = "null";
  if (object[key].get(value) == simdjson::SUCCESS) return value;
  static dom::parser parser;
  static const dom::element null_element = [] {
    dom::element null;
    const auto code = parser.parse(kNull).get(null);
    return code == simdjson::SUCCESS ? null : dom::element();
  }();
  return null_element;
}

Status get_bool(dom::object object, std::string_view key, bool& out) {
  const dom::element value = member(object, key);
  if (value.is_null()) return {};
  if (value.get(out) != simdjson::SUCCESS) return expected(key, "a boolean", value);
  return {};
}

Status get_text(dom::object object, std::string_view key, std::string& out) {
  const dom::element value = member(object, key);
  if (value.is_null()) return {};
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) return expected(key, "a string", value);
  if (text.size() > kMaxTokenBytes)
    return invalid(std::string(key) + " is longer than 65536 bytes");
  out = text;
  return {};
}

Result<int32_t> token_id(std::string_view spelling, dom::element value) {
  int64_t id = 0;
  if (value.get(id) != simdjson::SUCCESS || id < 0 || id >= kMaxTokenId) {
    return invalid("token " + in_quotes(spelling) + " must have an id from 0 to " +
                   std::to_string(kMaxTokenId - 1) + ", found " + simdjson::minify(value));
  }
  return static_cast<int32_t>(id);
}

/// Puts a token at its id, where there must be none yet.
Status place_token(TokenizerSpec& spec, std::string_view spelling, int32_t id) {
  if (spelling.size() > kMaxTokenBytes) {
    return invalid("token " + in_quotes(spelling) + " is longer than " +
                   std::to_string(kMaxTokenBytes) + " bytes");
  }
  const auto place = static_cast<size_t>(id);
  if (place >= spec.tokens.size()) {
    spec.tokens.resize(place + 1);
    spec.known.resize(place + 1);
    spec.in_model.resize(place + 1);
  }
  if (spec.known[place]) {
    return invalid("id " + std::to_string(id) + " is given to " + in_quotes(spec.tokens[place]) +
                   " and to " + in_quotes(spelling));
  }
  spec.known[place] = true;
  spec.tokens[place] = spelling;
  return {};
}

Status read_vocab(dom::object model, TokenizerSpec& spec) {
  dom::object vocab;
  const dom::element element = member(model, "vocab");
  if (element.get(vocab) != simdjson::SUCCESS) return expected("model.vocab", "an object", element);
  for (const auto [spelling, value] : vocab) {
    TANDEM_ASSIGN(const int32_t id, token_id(spelling, value));
    TANDEM_TRY(place_token(spec, spelling, id));
    spec.in_model[static_cast<size_t>(id)] = true;
  }
  return {};
}

/// A table of the model's tokens; the spellings are those of `spec.tokens`, which must stay.
Result<StringTable> model_table(const TokenizerSpec& spec) {
  StringTable table(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.known[id] && !table.insert(spec.tokens[id], static_cast<int32_t>(id))) {
      return invalid("token " + in_quotes(spec.tokens[id]) + " is in the vocabulary twice");
    }
  }
  return table;
}

Result<std::pair<std::string_view, std::string_view>> merge_sides(dom::element element) {
  std::string_view line;
  if (element.get(line) == simdjson::SUCCESS) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return invalid("must be two tokens with one space between, found " + in_quotes(line));
    }
    return std::pair{line.substr(0, space), line.substr(space + 1)};
  }
  dom::array pair;
  if (element.get(pair) != simdjson::SUCCESS || pair.size() != 2) {
    return invalid("must be a string or a pair of strings");
  }
  std::string_view left;
  std::string_view right;
  if (pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) {
    return invalid("must be a pair of strings");
  }
  return std::pair{left, right};
}

Result<Merge> read_merge(dom::element element, const StringTable& table, size_t prefix_bytes) {
  TANDEM_ASSIGN(const auto sides, merge_sides(element));
  const auto [left, right] = sides;
  Merge merge{table.find(left), table.find(right), -1};
  if (merge.left < 0)
    return invalid("names " + in_quotes(left) + ", which is not in the vocabulary");
  if (merge.right < 0)
    return invalid("names " + in_quotes(right) + ", which is not in the vocabulary");
  if (right.size() < prefix_bytes) {
    return invalid("has " + in_quotes(right) + " without the continuing_subword_prefix");
  }
  std::string result(left);
  result += right.substr(prefix_bytes);
  merge.result = table.find(result);
  if (merge.result < 0) {
    return invalid("makes " + in_quotes(result) + ", which is not in the vocabulary");
  }
  return merge;
}

Status read_merges(dom::object model, const StringTable& table, TokenizerSpec& spec) {
  const dom::element element = member(model, "merges");
  dom::array merges;
  if (element.get(merges) != simdjson::SUCCESS)
    return expected("model.merges", "an array", element);
  const size_t prefix_bytes = spec.continuing_subword_prefix.size();
  for (const dom::element entry : merges) {
    auto merge = read_merge(entry, table, prefix_bytes);
    if (!merge.ok()) {
      return merge.error().in("model.merges[" + std::to_string(spec.merges.size()) + "]");
    }
    spec.merges.push_back(*merge);
  }
  return {};
}

Status read_model(dom::object root, TokenizerSpec& spec) {
  dom::object model;
  const dom::element element = member(root, "model");
  if (element.get(model) != simdjson::SUCCESS) return expected("model", "an object", element);
  std::string type;
  TANDEM_TRY(get_text(model, "type", type));
  // Files from before 2021 have no type; only BPE has merges.
  if (type.empty() && !member(model, "merges").is_null()) type = "BPE";
  if (type != "BPE")
    return unsupported("model type " + in_quotes(type) + " (only BPE is supported)");
  double dropout = 0;
  const dom::element dropout_element = member(model, "dropout");
  if (!dropout_element.is_null() &&
      (dropout_element.get(dropout) != simdjson::SUCCESS || dropout != 0)) {
    return unsupported("model.dropout " + std::string(simdjson::minify(dropout_element)) +
                       " (encoding would be random)");
  }
  TANDEM_TRY(get_text(model, "continuing_subword_prefix", spec.continuing_subword_prefix));
  TANDEM_TRY(get_text(model, "end_of_word_suffix", spec.end_of_word_suffix));
  TANDEM_TRY(get_bool(model, "fuse_unk", spec.fuse_unk));
  TANDEM_TRY(get_bool(model, "byte_fallback", spec.byte_fallback));
  TANDEM_TRY(get_bool(model, "ignore_merges", spec.ignore_merges));
  TANDEM_TRY(read_vocab(model, spec));
  TANDEM_ASSIGN(const StringTable table, model_table(spec));
  TANDEM_TRY(read_merges(model, table, spec));
  std::string unk;
  TANDEM_TRY(get_text(model, "unk_token", unk));
  if (!unk.empty()) {
    const int32_t id = table.find(unk);
    if (id < 0) return invalid("model.unk_token " + in_quotes(unk) + " is not in the vocabulary");
    spec.unk_id = id;
  }
  return {};
}

Status read_added_token(dom::element element, const StringTable& table, TokenizerSpec& spec,
                        std::vector<AddedToken>& out) {
  dom::object object;
  if (element.get(object) != simdjson::SUCCESS)
    return expected("an added token", "an object", element);
  AddedToken token;
  TANDEM_TRY(get_text(object, "content", token.content));
  if (token.content.empty()) return invalid("an added token without content");
  TANDEM_ASSIGN(token.id, token_id(token.content, member(object, "id")));
  TANDEM_TRY(get_bool(object, "single_word", token.single_word));
  TANDEM_TRY(get_bool(object, "lstrip", token.lstrip));
  TANDEM_TRY(get_bool(object, "rstrip", token.rstrip));
  TANDEM_TRY(get_bool(object, "special", token.special));
  token.normalized = !token.special;
  TANDEM_TRY(get_bool(object, "normalized", token.normalized));
  const int32_t in_model = table.find(token.content);
  if (in_model >= 0 && in_model != token.id) {
    return invalid("added token " + in_quotes(token.content) + " has id " +
                   std::to_string(token.id) + ", but the vocabulary gives it " +
                   std::to_string(in_model));
  }
  if (in_model < 0) TANDEM_TRY(place_token(spec, token.content, token.id));
  out.push_back(std::move(token));
  return {};
}

Status read_added(dom::object root, TokenizerSpec& spec) {
  const dom::element element = member(root, "added_tokens");
  if (element.is_null()) return {};
  dom::array added;
  if (element.get(added) != simdjson::SUCCESS) return expected("added_tokens", "an array", element);
  // The table borrows spellings that move when tokens are added, so it is made of a copy.
  TokenizerSpec model;
  model.tokens = spec.tokens;
  model.known = spec.known;
  TANDEM_ASSIGN(const StringTable table, model_table(model));
  std::vector<bool> seen;
  for (const dom::element entry : added) {
    TANDEM_TRY(read_added_token(entry, table, spec, spec.added));
    const auto id = static_cast<size_t>(spec.added.back().id);
    if (id >= seen.size()) seen.resize(id + 1);
    if (seen[id])
      return invalid("added token " + in_quotes(spec.added.back().content) + " is there twice");
    seen[id] = true;
  }
  StringTable contents(spec.added.size());
  for (const AddedToken& token : spec.added) {
    if (!contents.insert(token.content, token.id)) {
      return invalid("added token " + in_quotes(token.content) + " has two ids");
    }
  }
  return {};
}

/// Hands a small part to the reader that works on a neutral JSON value.
Result<nlohmann::json> neutral(dom::object root, std::string_view key) {
  const std::string text = simdjson::minify(member(root, key));
  if (text.size() > (size_t{1} << 20)) return invalid(std::string(key) + " is larger than 1 MiB");
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return invalid(std::string(key) + " is not JSON");
  return json;
}

Result<TokenizerSpec> read_root(dom::object root) {
  TokenizerSpec spec;
  TANDEM_TRY(read_model(root, spec));
  TANDEM_TRY(read_added(root, spec));
  TANDEM_ASSIGN(const nlohmann::json normalizer, neutral(root, "normalizer"));
  TANDEM_TRY(read_normalizer(normalizer, spec.normalizers));
  TANDEM_ASSIGN(const nlohmann::json pre_tokenizer, neutral(root, "pre_tokenizer"));
  TANDEM_TRY(read_pre_tokenizer(pre_tokenizer, spec.pre_tokenizers));
  TANDEM_ASSIGN(const nlohmann::json decoder, neutral(root, "decoder"));
  TANDEM_TRY(read_decoder(decoder, spec.decoders));
  TANDEM_ASSIGN(const nlohmann::json post_processor, neutral(root, "post_processor"));
  TANDEM_TRY(read_post_processor(post_processor, spec));
  if (spec.tokens.empty()) return invalid("the vocabulary is empty");
  return spec;
}

Result<TokenizerSpec> read_document(std::string_view json) {
  dom::parser parser;
  dom::element element;
  const simdjson::error_code code = parser.allocate(json.size(), 64) == simdjson::SUCCESS
                                        ? parser.parse(simdjson::padded_string(json)).get(element)
                                        : simdjson::MEMALLOC;
  if (code != simdjson::SUCCESS) {
    return invalid("not JSON: " + std::string(simdjson::error_message(code)));
  }
  dom::object root;
  if (element.get(root) != simdjson::SUCCESS) return expected("the file", "an object", element);
  return read_root(root);
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_json(std::string_view json) {
  if (json.size() > kMaxTokenizerJsonBytes) {
    return invalid("larger than " + std::to_string(kMaxTokenizerJsonBytes) + " bytes");
  }
#if defined(__cpp_exceptions)
  try {
    return read_document(json);
  } catch (const std::exception& failure) {
    return invalid(std::string("not readable: ") + failure.what());
  }
#else
  return read_document(json);
#endif
}

}  // namespace tandem::text
