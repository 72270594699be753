#include "text/tokenizer_parts.h"

#include <functional>
#include <string>

namespace tandem::text {

namespace {

using nlohmann::json;

constexpr uint32_t kMaxCount = 1 << 16;

Result<std::string> type_of(const json& part, std::string_view what) {
  if (!part.is_object()) {
    return invalid(std::string(what) + " must be an object or null, found " + part.type_name());
  }
  const auto type = part.find("type");
  if (type == part.end() || !type->is_string()) {
    return invalid(std::string(what) + " has no type");
  }
  return type->get<std::string>();
}

Error unknown(std::string_view what, const std::string& type) {
  return unsupported(std::string(what) + " type \"" + to_valid_utf8(type.substr(0, 60)) + "\"");
}

Status get(const json& part, const char* key, bool& out) {
  const auto value = part.find(key);
  if (value == part.end() || value->is_null()) return {};
  if (!value->is_boolean()) {
    return invalid(std::string(key) + " must be a boolean, found " + value->type_name());
  }
  out = value->get<bool>();
  return {};
}

Status get(const json& part, const char* key, std::string& out) {
  const auto value = part.find(key);
  if (value == part.end() || !value->is_string()) {
    return invalid(std::string(key) + " must be a string");
  }
  out = value->get<std::string>();
  return {};
}

Status get(const json& part, const char* key, uint32_t& out) {
  const auto value = part.find(key);
  if (value == part.end() || !value->is_number_unsigned() || value->get<uint64_t>() > kMaxCount) {
    return invalid(std::string(key) + " must be a number from 0 to " + std::to_string(kMaxCount));
  }
  out = value->get<uint32_t>();
  return {};
}

Status get_character(const json& part, const char* key, std::string& out) {
  TANDEM_TRY(get(part, key, out));
  if (out.empty() || decode_utf8(out).length != out.size()) {
    return invalid(std::string(key) + " must be one character");
  }
  return {};
}

Status get_pattern(const json& part, Pattern& out) {
  const auto value = part.find("pattern");
  if (value != part.end() && value->is_object() && value->size() == 1) {
    const auto [key, text] = *value->items().begin();
    if ((key == "Regex" || key == "String") && text.is_string()) {
      out = {key == "Regex", text.template get<std::string>()};
      return {};
    }
  }
  return invalid("pattern must be an object with a \"String\" or a \"Regex\"");
}

Status get_behavior(const json& part, SplitBehavior& out) {
  std::string name;
  TANDEM_TRY(get(part, "behavior", name));
  if (name == "Removed") {
    out = SplitBehavior::kRemoved;
  } else if (name == "Isolated") {
    out = SplitBehavior::kIsolated;
  } else if (name == "MergedWithPrevious") {
    out = SplitBehavior::kMergedWithPrevious;
  } else if (name == "MergedWithNext") {
    out = SplitBehavior::kMergedWithNext;
  } else if (name == "Contiguous") {
    out = SplitBehavior::kContiguous;
  } else {
    return unknown("split behavior", name);
  }
  return {};
}

/// prepend_scheme, or the older add_prefix_space.
Status get_prepend(const json& part, PrependScheme& out) {
  bool add_prefix_space = true;
  TANDEM_TRY(get(part, "add_prefix_space", add_prefix_space));
  out = add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  if (!part.contains("prepend_scheme") || part["prepend_scheme"].is_null()) return {};
  std::string name;
  TANDEM_TRY(get(part, "prepend_scheme", name));
  if (name == "always") {
    out = PrependScheme::kAlways;
  } else if (name == "never") {
    out = PrependScheme::kNever;
  } else if (name == "first") {
    out = PrependScheme::kFirst;
  } else {
    return unknown("prepend_scheme", name);
  }
  return {};
}

/// Calls `read` for each part of a Sequence, under the member `key`.
Status each(const json& part, const char* key, const std::function<Status(const json&)>& read) {
  const auto list = part.find(key);
  if (list == part.end() || !list->is_array()) {
    return invalid(std::string(key) + " of a Sequence must be an array");
  }
  for (const json& entry : *list) TANDEM_TRY(read(entry));
  return {};
}

}  // namespace

Status read_normalizer(const json& part, std::vector<Normalizer>& out) {
  if (part.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(part, "normalizer"));
  if (type == "Sequence") {
    return each(part, "normalizers", [&out](const json& p) { return read_normalizer(p, out); });
  }
  using Type = Normalizer::Type;
  Normalizer n;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    n.type = Type::kForm;
    n.form = type == "NFC"    ? NormalForm::kNfc
             : type == "NFD"  ? NormalForm::kNfd
             : type == "NFKC" ? NormalForm::kNfkc
                              : NormalForm::kNfkd;
  } else if (type == "Lowercase") {
    n.type = Type::kLowercase;
  } else if (type == "Prepend") {
    n.type = Type::kPrepend;
    TANDEM_TRY(get(part, "prepend", n.content));
  } else if (type == "Replace") {
    n.type = Type::kReplace;
    TANDEM_TRY(get_pattern(part, n.pattern));
    TANDEM_TRY(get(part, "content", n.content));
  } else if (type == "Strip") {
    n.type = Type::kStrip;
    TANDEM_TRY(get(part, "strip_left", n.left));
    TANDEM_TRY(get(part, "strip_right", n.right));
  } else if (type == "StripAccents") {
    n.type = Type::kStripAccents;
  } else if (type == "ByteLevel") {
    n.type = Type::kByteLevel;
  } else {
    return unknown("normalizer", type);
  }
  out.push_back(std::move(n));
  return {};
}

Status read_pre_tokenizer(const json& part, std::vector<PreTokenizer>& out) {
  if (part.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(part, "pre_tokenizer"));
  if (type == "Sequence") {
    return each(part, "pretokenizers",
                [&out](const json& p) { return read_pre_tokenizer(p, out); });
  }
  using Type = PreTokenizer::Type;
  PreTokenizer p;
  if (type == "ByteLevel") {
    p.type = Type::kByteLevel;
    p.add_prefix_space = true;
    TANDEM_TRY(get(part, "add_prefix_space", p.add_prefix_space));
    TANDEM_TRY(get(part, "use_regex", p.use_regex));
  } else if (type == "Split") {
    p.type = Type::kSplit;
    TANDEM_TRY(get_pattern(part, p.pattern));
    TANDEM_TRY(get_behavior(part, p.behavior));
    TANDEM_TRY(get(part, "invert", p.invert));
  } else if (type == "CharDelimiterSplit") {
    p.type = Type::kSplit;
    TANDEM_TRY(get_character(part, "delimiter", p.pattern.text));
    p.behavior = SplitBehavior::kRemoved;
  } else if (type == "Digits") {
    p.type = Type::kDigits;
    TANDEM_TRY(get(part, "individual_digits", p.individual_digits));
  } else if (type == "Metaspace") {
    p.type = Type::kMetaspace;
    TANDEM_TRY(get_character(part, "replacement", p.replacement));
    TANDEM_TRY(get_prepend(part, p.prepend));
    TANDEM_TRY(get(part, "split", p.split));
  } else if (type == "Punctuation") {
    p.type = Type::kPunctuation;
    if (part.contains("behavior")) TANDEM_TRY(get_behavior(part, p.behavior));
  } else if (type == "Whitespace") {
    p.type = Type::kWhitespace;
  } else if (type == "WhitespaceSplit") {
    p.type = Type::kWhitespaceSplit;
  } else if (type == "FixedLength") {
    p.type = Type::kFixedLength;
    p.length = 5;
    if (part.contains("length")) TANDEM_TRY(get(part, "length", p.length));
    if (p.length == 0) return invalid("length of a FixedLength pre_tokenizer must not be 0");
  } else {
    return unknown("pre_tokenizer", type);
  }
  out.push_back(std::move(p));
  return {};
}

Status read_decoder(const json& part, std::vector<Decoder>& out) {
  using Type = Decoder::Type;
  Decoder d;
  if (part.is_null()) {
    d.type = Type::kJoinWithSpace;
    out.push_back(std::move(d));
    return {};
  }
  TANDEM_ASSIGN(const std::string type, type_of(part, "decoder"));
  if (type == "Sequence") {
    return each(part, "decoders", [&out](const json& p) {
      if (p.is_null()) return Status(invalid("a decoder in a Sequence is null"));
      return read_decoder(p, out);
    });
  }
  if (type == "ByteLevel") {
    d.type = Type::kByteLevel;
  } else if (type == "ByteFallback") {
    d.type = Type::kByteFallback;
  } else if (type == "Fuse") {
    d.type = Type::kFuse;
  } else if (type == "Replace") {
    d.type = Type::kReplace;
    TANDEM_TRY(get_pattern(part, d.pattern));
    TANDEM_TRY(get(part, "content", d.content));
  } else if (type == "Strip") {
    d.type = Type::kStrip;
    TANDEM_TRY(get_character(part, "content", d.content));
    TANDEM_TRY(get(part, "start", d.start));
    TANDEM_TRY(get(part, "stop", d.stop));
  } else if (type == "Metaspace") {
    d.type = Type::kMetaspace;
    TANDEM_TRY(get_character(part, "replacement", d.content));
    TANDEM_TRY(get_prepend(part, d.prepend));
  } else if (type == "BPEDecoder") {
    d.type = Type::kBpe;
    d.content = "</w>";
    if (part.contains("suffix")) TANDEM_TRY(get(part, "suffix", d.content));
  } else {
    return unknown("decoder", type);
  }
  out.push_back(std::move(d));
  return {};
}

namespace {

Status check_id(const json& id, const TokenizerSpec& spec, int32_t& out) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= spec.known.size() ||
      !spec.known[id.get<size_t>()]) {
    return invalid("post_processor names token id " + id.dump().substr(0, 60) +
                   ", which is not in the vocabulary");
  }
  out = id.get<int32_t>();
  return {};
}

/// A [token, id] pair of the older processors.
Status pair_id(const json& part, const char* key, const TokenizerSpec& spec, int32_t& out) {
  const auto pair = part.find(key);
  if (pair == part.end() || !pair->is_array() || pair->size() != 2) {
    return invalid(std::string(key) + " must be a pair of token and id");
  }
  return check_id((*pair)[1], spec, out);
}

Status read_template(const json& part, TokenizerSpec& spec) {
  const auto pieces = part.find("single");
  if (pieces == part.end() || !pieces->is_array()) {
    return invalid("single of a TemplateProcessing must be an array");
  }
  const json& specials = part.contains("special_tokens") ? part["special_tokens"] : json::object();
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool past_text = false;
  for (const json& piece : *pieces) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (past_text) return unsupported("a TemplateProcessing that repeats the text");
      past_text = true;
      continue;
    }
    if (!piece.is_object() || !piece.contains("SpecialToken") ||
        !piece["SpecialToken"].is_object()) {
      return invalid("a piece of a TemplateProcessing must be a Sequence or a SpecialToken");
    }
    std::string name;
    TANDEM_TRY(get(piece["SpecialToken"], "id", name));
    const auto special = specials.find(name);
    if (special == specials.end() || !special->is_object() || !special->contains("ids") ||
        !(*special)["ids"].is_array()) {
      return invalid("TemplateProcessing uses a token that its special_tokens lack");
    }
    for (const json& id : (*special)["ids"]) {
      int32_t value = 0;
      TANDEM_TRY(check_id(id, spec, value));
      (past_text ? after : before).push_back(value);
    }
  }
  spec.prefix_ids.insert(spec.prefix_ids.begin(), before.begin(), before.end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), after.begin(), after.end());
  return {};
}

}  // namespace

Status read_post_processor(const json& part, TokenizerSpec& spec) {
  if (part.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(part, "post_processor"));
  if (type == "Sequence") {
    return each(part, "processors",
                [&spec](const json& p) { return read_post_processor(p, spec); });
  }
  if (type == "ByteLevel") return {};  // it moves offsets only
  if (type == "TemplateProcessing") return read_template(part, spec);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    int32_t cls = 0;
    int32_t sep = 0;
    TANDEM_TRY(pair_id(part, "cls", spec, cls));
    TANDEM_TRY(pair_id(part, "sep", spec, sep));
    spec.prefix_ids.insert(spec.prefix_ids.begin(), cls);
    spec.suffix_ids.push_back(sep);
    return {};
  }
  return unknown("post_processor", type);
}

}  // namespace tandem::text
