// A conversation's loop: prompt in batches, then token by token, until it ends. What earlier turns
// left in the stages' caches is used again wherever the token ids are the same.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "decode/sampler.h"
#include "model/stage.h"
#include "model/state_file.h"
#include "ring/host.h"
#include "text/tokenizer.h"

namespace tandem::ring {

/// What to answer, and how.
struct GenerateRequest {
  std::vector<uint32_t> prompt;  ///< at least one token
  decode::SamplerParameters sampler;
  uint64_t seed = 0;
  uint32_t max_tokens = 512;      ///< at least 1
  std::vector<uint32_t> end_ids;  ///< tokens that end the answer
  /// Hash the logits that tokens are chosen from. Takes about a millisecond for each megabyte.
  bool hash_logits = false;
  /// Called with each piece of text as soon as it is certain; false ends the answer. May be empty.
  std::function<bool(std::string_view text)> on_text;
  /// Called while the prompt runs, with the tokens done and in all. May be empty.
  std::function<void(uint32_t done, uint32_t total)> on_prompt;
  /// Called when something happens to the ring, on the thread of generate(). May be empty.
  Listener on_event;
};

/// Why an answer ended.
enum class Finish : uint8_t {
  kEnd,        ///< the model chose an end token
  kLength,     ///< max_tokens
  kContext,    ///< no position is left
  kCancelled,  ///< the caller asked to stop
};
/// "end", "length", "context", "cancelled".
std::string_view name(Finish finish);

struct Answer {
  std::vector<uint32_t> tokens;  ///< chosen ones, an end token included
  std::string text;              ///< of `tokens`, without special tokens
  Finish finish = Finish::kEnd;
  Digest logits_sha256{};  ///< of the float32 logits of every choice, in order
  uint32_t prompt_tokens = 0;
  uint32_t reused_tokens = 0;  ///< of them, those that the caches held already
  double prefill_seconds = 0;  ///< from the call to the first choice
  double decode_seconds = 0;   ///< from the first choice to the last
  uint32_t decode_passes = 0;  ///< choices after the first
  double head_ms = 0;          ///< mean of a pass's embedding, head and choice
  double pass_ms = 0;          ///< mean of a whole decode pass
  std::vector<Event> events;   ///< what happened to the ring meanwhile

  [[nodiscard]] double prefill_tokens_per_second() const;
  [[nodiscard]] double decode_tokens_per_second() const;
};

/// Tokens between two checkpoints of a conversation with recurrent layers, at most; with several
/// stages a prompt has one for every four times as many.
inline constexpr uint32_t kCheckpointTokens = 512;

/// One conversation over one ring. Not thread-safe; the ring must not be used by anybody else.
class Conversation {
 public:
  /// All must outlive it. `context` positions were reserved when the ring was opened. A null
  /// tokenizer leaves Answer::text empty. `cancel`, which may be null, is the ring's own.
  Conversation(Ring& ring, model::Ends& ends, uint32_t vocab, uint32_t context,
               const text::Tokenizer* tokenizer, const std::atomic<bool>* cancel)
      : ring_(ring),
        ends_(ends),
        vocab_(vocab),
        context_(context),
        tokenizer_(tokenizer),
        cancel_(cancel) {}

  /// Answers. Only what follows the longest beginning that `request.prompt` shares with the tokens
  /// run before is run, and always at least its last token, so the answer is the same as from an
  /// empty cache. Where layers are recurrent, what follows the last checkpoint within that
  /// beginning: there is one of the end of each prompt (good for each of its last positions), one
  /// of the end of each turn, and one for every kCheckpointTokens, thinned out to as many as there
  /// may be. After kPeer the next call puts the ring together again and runs everything; where the
  /// ring survives(), this call does, and goes on from where it was with the same bits.
  /// Errors: kInvalid (a parameter, or a prompt that leaves no position to answer in), kPeer (with
  /// a ring that survives: nobody could take over, or failures came one after the other without a
  /// token between them), …; being cancelled is no error.
  Result<Answer> generate(const GenerateRequest& request);
  /// What happened during the last generate() if that failed; the answer has it otherwise.
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }

  /// What the caches hold, to go on with in another process; `identity` of all layers. Errors as
  /// Ring::write_state.
  [[nodiscard]] Result<model::StateFile> save(const model::StateIdentity& identity) const;
  /// The way back. Errors: kInvalid (of another model, layers or bits, of other tokens than it
  /// says, or as Ring::read_state), after which nothing is held.
  Status load(const model::StateFile& file, const model::StateIdentity& identity);

  /// The tokens whose positions the caches hold.
  [[nodiscard]] const std::vector<uint32_t>& held() const { return held_; }

 private:
  [[nodiscard]] Status check(const GenerateRequest& request) const;
  Result<Answer> answer(const GenerateRequest& request);
  [[nodiscard]] Status prepare(const std::vector<uint32_t>& prompt);
  /// One call of the ring for tokens that follow those held.
  [[nodiscard]] Result<model::HiddenStates> pass(std::span<const uint32_t> tokens, uint32_t want);
  /// The same, and whatever it takes to get there.
  [[nodiscard]] Result<model::HiddenStates> run(std::span<const uint32_t> tokens, uint32_t want);
  /// After `error`: puts the ring together again and fills its caches with what was held.
  [[nodiscard]] Status recover(const Error& error);
  [[nodiscard]] Status replay(std::span<const uint32_t> tokens);
  [[nodiscard]] size_t chunk() const;
  void tell(Event event);
  [[nodiscard]] Result<model::HiddenStates> prefill(const GenerateRequest& request);
  [[nodiscard]] Status keep();
  [[nodiscard]] bool cancelled() const { return cancel_ != nullptr && cancel_->load(); }

  Ring& ring_;
  model::Ends& ends_;
  uint32_t vocab_;
  uint32_t context_;
  const text::Tokenizer* tokenizer_;
  const std::atomic<bool>* cancel_;
  std::vector<uint32_t> held_;
  bool broken_ = false;  ///< the ring failed and needs a reset
  double ends_ms_ = 0;   ///< embedding of the pass under way

  // Of the answer under way.
  const GenerateRequest* request_ = nullptr;
  std::chrono::steady_clock::time_point start_;
  std::vector<Event> events_;
  uint32_t failures_ = 0;  ///< since the last token or chunk of the prompt
  std::chrono::steady_clock::time_point failing_since_;
};

}  // namespace tandem::ring
