// The functions that JavaScript calls. Texts and arrays are an address and a count in the module's
// memory; handles are addresses. All but the helpers' own (runtime/helpers.cpp) belong to one
// thread.
//
// A function that can fail returns a status: 0, or 1 + ErrorKind; tandem_error_text then says what
// happened, until the next failure.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/self_test.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "web/engine/engine.h"

#define TANDEM_EXPORT(name) extern "C" __attribute__((export_name(#name))) auto name

using tandem::Result;
using tandem::Sha256;
using tandem::Status;
using tandem::web::Engine;

namespace {

std::string& error_text() {
  static std::string text;
  return text;
}

// A tokenizer and its last results.
struct Tokenizer {
  tandem::text::Tokenizer own;
  std::vector<tandem::text::TokenId> ids;
  std::string text;
};

uint32_t failed(const tandem::Error& error) {
  error_text() = error.message;
  return 1 + static_cast<uint32_t>(error.kind);
}

uint32_t done(const Status& status) {
  return status.ok() ? 0 : failed(status.error());
}

}  // namespace

/// The last failure's message, ended by a zero byte.
TANDEM_EXPORT(tandem_error_text)()->const char* {
  return error_text().c_str();
}

/// Memory for what JavaScript hands in: at a multiple of 16, null if there is none.
TANDEM_EXPORT(tandem_alloc)(uint32_t bytes)->void* {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
TANDEM_EXPORT(tandem_free)(void* memory)->void {
  std::free(memory);
}

/// Runs the known cases of an instruction set: "scalar" or "simd128".
TANDEM_EXPORT(tandem_self_test)(const char* isa, uint32_t length)->uint32_t {
  return done(tandem::kernels::self_test({isa, length}));
}

/// SHA-256 over any number of pieces; finish writes 32 bytes and ends the hash.
TANDEM_EXPORT(tandem_hash_new)()->Sha256* {
  return new Sha256;
}
TANDEM_EXPORT(tandem_hash_update)(Sha256* hash, const void* bytes, uint32_t length)->void {
  hash->update(std::span(static_cast<const std::byte*>(bytes), length));
}
TANDEM_EXPORT(tandem_hash_finish)(Sha256* hash, uint8_t* digest)->void {
  const tandem::Digest own = hash->digest();
  std::memcpy(digest, own.data(), own.size());
  delete hash;
}

/// An engine for the model of a config.json, on `threads` threads: the caller's and as many helpers
/// as have joined and are free. `weight_bits` is 16, 8 or 4, `isa` "best", "simd128" or "scalar".
/// Writes its handle to `engine`.
TANDEM_EXPORT(tandem_engine_new)
(const char* config, uint32_t config_length, uint32_t threads, uint32_t weight_bits,
 const char* isa, uint32_t isa_length, Engine** engine)
    ->uint32_t {
  Engine::Options options;
  options.threads = threads;
  if (!tandem::model::is_weight_bits(weight_bits)) {
    return failed(
        tandem::invalid("weights of " + std::to_string(weight_bits) + " bits: 16, 8 or 4"));
  }
  options.weights = static_cast<tandem::model::WeightBits>(weight_bits);
  const auto set = tandem::model::parse_isa({isa, isa_length});
  if (!set.ok()) return failed(set.error());
  options.isa = *set;
  auto made = Engine::make({config, config_length}, options);
  if (!made.ok()) return failed(made.error());
  *engine = (*made).release();
  return 0;
}
TANDEM_EXPORT(tandem_engine_free)(Engine* engine)->void {
  delete engine;
}

/// A safetensors file of `size` bytes that the import `read` knows as `file`.
TANDEM_EXPORT(tandem_engine_add_file)(Engine* engine, uint32_t file, double size)->uint32_t {
  if (!(size >= 0 && size < 9007199254740992.0)) {
    return failed(tandem::invalid("a file's size is no integer"));
  }
  return done(engine->add_file(file, static_cast<uint64_t>(size)));
}
/// Reads, quantizes and packs layers [first, last).
TANDEM_EXPORT(tandem_engine_load_layers)(Engine* engine, uint32_t first, uint32_t last)->uint32_t {
  return done(engine->load_layers(first, last));
}
/// The same for embedding, final norm and output head.
TANDEM_EXPORT(tandem_engine_load_ends)(Engine* engine)->uint32_t {
  return done(engine->load_ends());
}

TANDEM_EXPORT(tandem_engine_layers)(Engine* engine)->uint32_t {
  return engine->config().layers;
}
TANDEM_EXPORT(tandem_engine_hidden_size)(Engine* engine)->uint32_t {
  return engine->config().hidden_size;
}
TANDEM_EXPORT(tandem_engine_vocab)(Engine* engine)->uint32_t {
  return engine->config().vocab;
}
TANDEM_EXPORT(tandem_engine_context)(Engine* engine)->uint32_t {
  return engine->config().context;
}
/// Threads that the engine got.
TANDEM_EXPORT(tandem_engine_threads)(Engine* engine)->uint32_t {
  return engine->threads();
}
/// Bytes of weights that are loaded.
TANDEM_EXPORT(tandem_engine_bytes)(Engine* engine)->double {
  return static_cast<double>(engine->bytes());
}

/// A new, empty conversation in the loaded layers: writes its number. Loading layers ends all.
TANDEM_EXPORT(tandem_sequence_new)(Engine* engine, uint32_t* sequence)->uint32_t {
  const auto id = engine->new_sequence();
  if (!id.ok()) return failed(id.error());
  *sequence = *id;
  return 0;
}
TANDEM_EXPORT(tandem_sequence_free)(Engine* engine, uint32_t sequence)->uint32_t {
  return done(engine->free_sequence(sequence));
}
/// Forgets every position from `length` on.
TANDEM_EXPORT(tandem_sequence_rollback)
(Engine* engine, uint32_t sequence, uint32_t length)->uint32_t {
  const auto own = engine->sequence(sequence);
  return own.ok() ? done((*own)->rollback(length)) : failed(own.error());
}

/// Sets the hidden states to the embeddings of tokens at positions from `position` on.
TANDEM_EXPORT(tandem_embed)
(Engine* engine, const uint32_t* tokens, uint32_t count, uint32_t position)->uint32_t {
  return done(engine->embed({tokens, count}, position));
}
/// Makes room for the hidden states of `tokens` tokens, for values from another device.
TANDEM_EXPORT(tandem_hidden_resize)(Engine* engine, uint32_t tokens)->uint32_t {
  return done(engine->resize_hidden(tokens));
}
TANDEM_EXPORT(tandem_hidden_tokens)(Engine* engine)->uint32_t {
  return engine->hidden().tokens();
}
/// binary16 [tokens][hidden_size] and int16 [tokens] (docs/arithmetic.md, "The hidden state between
/// layers"). The addresses hold until the next call that changes the hidden states.
TANDEM_EXPORT(tandem_hidden_values)(Engine* engine)->uint16_t* {
  return engine->hidden().values.data();
}
TANDEM_EXPORT(tandem_hidden_exponents)(Engine* engine)->int16_t* {
  return engine->hidden().exponents.data();
}

/// Runs the loaded layers over the hidden states, which are at positions from `position` on: the
/// length of the sequence.
TANDEM_EXPORT(tandem_run)(Engine* engine, uint32_t sequence, uint32_t position)->uint32_t {
  return done(engine->run(sequence, position));
}

/// Computes binary32 [count][vocab] at tandem_logits_data, of tokens [first, first + count) of the
/// hidden states.
TANDEM_EXPORT(tandem_logits)(Engine* engine, uint32_t first, uint32_t count)->uint32_t {
  return done(engine->compute_logits(first, count));
}
TANDEM_EXPORT(tandem_logits_data)(Engine* engine)->const float* {
  return engine->logits().data();
}

/// A tokenizer from the texts of tokenizer.json and tokenizer_config.json (may be empty) and the
/// chat templates, joined (their added tokens are control tokens). Writes its handle.
TANDEM_EXPORT(tandem_tokenizer_new)
(const char* json, uint32_t json_length, const char* config, uint32_t config_length,
 const char* chat_template, uint32_t template_length, Tokenizer** tokenizer)
    ->uint32_t {
  tandem::text::TokenizerFiles files;
  files.tokenizer_json.assign(json, json_length);
  files.tokenizer_config_json.assign(config, config_length);
  files.chat_template.assign(chat_template, template_length);
  auto parsed = tandem::text::Tokenizer::parse(files);
  if (!parsed.ok()) return failed(parsed.error());
  *tokenizer = new Tokenizer{std::move(*parsed), {}, {}};
  return 0;
}
TANDEM_EXPORT(tandem_tokenizer_free)(Tokenizer* tokenizer)->void {
  delete tokenizer;
}
/// Ids of a text. `flags`: 1 adds special tokens, 2 lets control tokens in the text become ones
/// (not for a user's text). tandem_tokenizer_ids and _count are the result until the next call.
TANDEM_EXPORT(tandem_tokenizer_encode)
(Tokenizer* tokenizer, const char* text, uint32_t length, uint32_t flags)->uint32_t {
  auto ids = tokenizer->own.encode({text, length}, {(flags & 1U) != 0, (flags & 2U) != 0});
  if (!ids.ok()) return failed(ids.error());
  tokenizer->ids = std::move(*ids);
  return 0;
}
TANDEM_EXPORT(tandem_tokenizer_ids)(Tokenizer* tokenizer)->const int32_t* {
  return tokenizer->ids.data();
}
TANDEM_EXPORT(tandem_tokenizer_count)(Tokenizer* tokenizer)->uint32_t {
  return static_cast<uint32_t>(tokenizer->ids.size());
}
/// Text of ids, UTF-8; its length. Flag 1 shows special tokens. tandem_tokenizer_text is the result
/// until the next call.
TANDEM_EXPORT(tandem_tokenizer_decode)
(Tokenizer* tokenizer, const int32_t* ids, uint32_t count, uint32_t flags)->uint32_t {
  tokenizer->text = tokenizer->own.decode({ids, ids + count}, (flags & 1U) != 0);
  return static_cast<uint32_t>(tokenizer->text.size());
}
TANDEM_EXPORT(tandem_tokenizer_text)(Tokenizer* tokenizer)->const char* {
  return tokenizer->text.data();
}
