#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "text/byte_level.h"
#include "text/chat_files.h"
#include "text/detokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_json.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxIdleScratch = 16;

bool is_white_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    if ((CharClasses::get().of(c.code_point) & kSpace) == 0) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

/// Replaces what is not UTF-8; the marks follow.
void make_valid(std::string& text, std::string* marks) {
  std::string out;
  std::string out_marks;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(std::string_view(text).substr(at));
    out += c.valid ? std::string_view(text).substr(at, c.length) : kReplacementUtf8;
    if (marks != nullptr) out_marks.resize(out.size(), (*marks)[at]);
    at += c.length;
  }
  text = std::move(out);
  if (marks != nullptr) *marks = std::move(out_marks);
}

}  // namespace

Result<std::shared_ptr<const TokenizerImpl>> TokenizerImpl::build(const TokenizerFiles& files) {
  const std::shared_ptr<TokenizerImpl> impl(new TokenizerImpl());
  auto spec = read_tokenizer_json(files.tokenizer_json);
  if (!spec.ok()) return spec.error().in("tokenizer.json");
  impl->spec_ = std::move(*spec);
  const Status prepared = impl->prepare(files.chat_template);
  if (!prepared.ok()) return prepared.error().in("tokenizer.json");
  const Status config = impl->read_config(files.tokenizer_config_json);
  if (!config.ok()) return config.error().in("tokenizer_config.json");
  return std::shared_ptr<const TokenizerImpl>(impl);
}

Result<std::shared_ptr<const TokenizerImpl>> TokenizerImpl::build(
    const Vocabulary& vocabulary, const std::string& chat_template) {
  const std::shared_ptr<TokenizerImpl> impl(new TokenizerImpl());
  TANDEM_ASSIGN(impl->spec_, vocabulary_spec(vocabulary));
  TANDEM_TRY(impl->prepare(chat_template));
  impl->bos_id_ = vocabulary.bos_id;
  impl->eos_id_ = vocabulary.eos_id;
  return std::shared_ptr<const TokenizerImpl>(impl);
}

Status TokenizerImpl::prepare(const std::string& chat_template) {
  const size_t count = spec_.tokens.size();
  by_spelling_.reserve(count);
  for (size_t id = 0; id < count; ++id) {
    if (!spec_.known[id]) continue;
    by_spelling_.insert(spec_.tokens[id], static_cast<TokenId>(id));
  }
  TANDEM_TRY(choose_control(chat_template));
  TANDEM_ASSIGN(normalizers_, NormalizerChain::build(spec_.normalizers));
  TANDEM_ASSIGN(pre_tokenizers_, PreTokenizerChain::build(spec_.pre_tokenizers));
  TANDEM_ASSIGN(bpe_, Bpe::build(spec_, pre_tokenizers_.raw_bytes(), control_));
  for (const Decoder& decoder : spec_.decoders) {
    if (decoder.type != Decoder::Type::kReplace || !decoder.pattern.is_regex) continue;
    TANDEM_ASSIGN(Regex regex, Regex::compile(decoder.pattern.text));
    decoder_patterns_.push_back(std::move(regex));
  }
  return add_matchers();
}

Status TokenizerImpl::choose_control(const std::string& chat_template) {
  control_.assign(spec_.tokens.size(), false);
  special_.assign(spec_.tokens.size(), false);
  for (const AddedToken& token : spec_.added) {
    const auto id = static_cast<size_t>(token.id);
    special_[id] = token.special;
    control_[id] = token.special || (chat_template.find(token.content) != std::string::npos &&
                                     !is_white_space(token.content));
  }
  return {};
}

Status TokenizerImpl::add_matchers() {
  // The order decides between contents that become equal by normalization: special ones first.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : spec_.added) {
      if (token.special != special) continue;
      const bool control = control_[static_cast<size_t>(token.id)];
      if (!token.normalized) {
        raw_matcher_.add(token, control);
        continue;
      }
      AddedToken normal = token;
      TANDEM_TRY(normalizers_.apply(normal.content, nullptr));
      normalized_matcher_.add(normal, control);
    }
  }
  return {};
}

Status TokenizerImpl::read_config(const std::string& text) {
  if (text.empty()) return {};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return invalid("must be a JSON object");
  const auto token = [&](const char* key, std::optional<TokenId>& out) -> Status {
    TANDEM_ASSIGN(const std::string spelling, config_token(json, key));
    if (spelling.empty()) return {};
    const TokenId id = find(spelling);
    if (id < 0) {
      return invalid(std::string(key) + " \"" + spelling + "\" is not in the vocabulary");
    }
    out = id;
    return {};
  };
  TANDEM_TRY(token("bos_token", bos_id_));
  return token("eos_token", eos_id_);
}

std::unique_ptr<BpeScratch> TokenizerImpl::take_scratch() const {
  {
    const std::lock_guard lock(scratch_mutex_);
    if (!scratch_.empty()) {
      std::unique_ptr<BpeScratch> scratch = std::move(scratch_.back());
      scratch_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<BpeScratch>();
}

void TokenizerImpl::give_scratch(std::unique_ptr<BpeScratch> scratch) const {
  const std::lock_guard lock(scratch_mutex_);
  if (scratch_.size() < kMaxIdleScratch) scratch_.push_back(std::move(scratch));
}

Result<std::vector<TokenId>> TokenizerImpl::encode(std::string_view text, const std::string* marks,
                                                   bool from_outside,
                                                   bool add_special_tokens) const {
  if (text.size() > Tokenizer::kMaxTextBytes) {
    return invalid("text of " + std::to_string(text.size()) + " bytes to encode, at most " +
                   std::to_string(Tokenizer::kMaxTextBytes) + " are allowed");
  }
  std::string valid_text;
  std::string valid_marks;
  if (!is_valid_utf8(text)) {
    valid_text = text;
    if (marks != nullptr) valid_marks = *marks;
    make_valid(valid_text, marks != nullptr ? &valid_marks : nullptr);
    text = valid_text;
    if (marks != nullptr) marks = &valid_marks;
  }
  std::vector<TokenId> ids;
  std::unique_ptr<BpeScratch> scratch = take_scratch();
  const Status status = encode_text(text, {marks, from_outside}, *scratch, ids);
  give_scratch(std::move(scratch));
  if (!status.ok()) return status.error();
  if (!add_special_tokens) return ids;
  const std::vector<TokenId>& prefix = spec_.prefix_ids;
  // A template that writes its own BOS has it already.
  const bool doubled = marks != nullptr && ids.size() >= prefix.size() &&
                       std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!doubled) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  ids.insert(ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
  return ids;
}

Status TokenizerImpl::encode_text(std::string_view text, const Marks& marks, BpeScratch& scratch,
                                  std::vector<TokenId>& out) const {
  std::vector<Stretch> stretches;
  raw_matcher_.find(text, marks, stretches);
  out.reserve(text.size() / 4 + 16);
  std::string part;
  std::string part_marks;
  for (const Stretch& stretch : stretches) {
    if (stretch.id >= 0) {
      out.push_back(stretch.id);
      continue;
    }
    const size_t length = stretch.end - stretch.begin;
    part.assign(text, stretch.begin, length);
    const bool need_marks = marks.each != nullptr && !normalized_matcher_.empty();
    if (need_marks) part_marks.assign(*marks.each, stretch.begin, length);
    TANDEM_TRY(encode_plain(part, need_marks ? &part_marks : nullptr, marks.all_from_outside,
                            stretch.begin == 0, scratch, out));
  }
  return {};
}

Status TokenizerImpl::encode_plain(std::string& text, std::string* marks, bool from_outside,
                                   bool at_start, BpeScratch& scratch,
                                   std::vector<TokenId>& out) const {
  TANDEM_TRY(normalizers_.apply(text, marks));
  if (normalized_matcher_.empty()) return encode_pieces(text, at_start, scratch, out);
  std::vector<Stretch> stretches;
  normalized_matcher_.find(text, {marks, from_outside}, stretches);
  std::string part;
  for (const Stretch& stretch : stretches) {
    if (stretch.id >= 0) {
      out.push_back(stretch.id);
      continue;
    }
    part.assign(text, stretch.begin, stretch.end - stretch.begin);
    TANDEM_TRY(encode_pieces(part, at_start && stretch.begin == 0, scratch, out));
  }
  return {};
}

Status TokenizerImpl::encode_pieces(std::string& text, bool at_start, BpeScratch& scratch,
                                    std::vector<TokenId>& out) const {
  std::vector<Piece> pieces;
  TANDEM_TRY(pre_tokenizers_.split(text, at_start, pieces));
  for (const Piece piece : pieces) {
    bpe_->encode(std::string_view(text).substr(piece.begin, piece.end - piece.begin), scratch, out);
  }
  return {};
}

Result<Tokenizer> Tokenizer::parse(const TokenizerFiles& files) {
  TANDEM_ASSIGN(auto impl, TokenizerImpl::build(files));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::from_vocabulary(const Vocabulary& vocabulary,
                                             const std::string& chat_template) {
  TANDEM_ASSIGN(auto impl, TokenizerImpl::build(vocabulary, chat_template));
  return Tokenizer(std::move(impl));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return impl_->encode(text, nullptr, !options.parse_control, options.add_special_tokens);
}

Result<std::vector<TokenId>> Tokenizer::encode(const MarkedText& text,
                                               bool add_special_tokens) const {
  return impl_->encode(text.text(), &text.marks(), false, add_special_tokens);
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool show_special) const {
  Detokenizer detokenizer(*this, show_special);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

uint32_t Tokenizer::vocab_size() const {
  return static_cast<uint32_t>(impl_->spec().tokens.size());
}

std::optional<std::string_view> Tokenizer::token_text(TokenId id) const {
  if (!impl_->has(id)) return std::nullopt;
  return impl_->spec().tokens[static_cast<size_t>(id)];
}

std::optional<TokenId> Tokenizer::token_id(std::string_view spelling) const {
  const TokenId id = impl_->find(spelling);
  if (id < 0) return std::nullopt;
  return id;
}

bool Tokenizer::is_control(TokenId id) const {
  return impl_->is_control(id);
}
bool Tokenizer::is_special(TokenId id) const {
  return impl_->is_special(id);
}
std::optional<TokenId> Tokenizer::bos_id() const {
  return impl_->bos_id();
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return impl_->eos_id();
}

}  // namespace tandem::text
