// The state of a conversation: rolled back to every position, saved and restored, written and read,
// it is what it would be had the rest never run.
#include "model/state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kernels/recurrent.h"
#include "model/state_stretch.h"
#include "model/support.h"

namespace tandem::model {
namespace {

constexpr uint32_t kTokens = 48;

class State : public testing::TestWithParam<const char*> {
 protected:
  State() : files_(open(GetParam())), model_(load(files_, with(2, Isa::kBest))) {
    tokens_ = test_tokens(files_.config, kTokens);
    auto sequence = model_.stage->new_sequence();
    for (uint32_t i = 0; i < kTokens; ++i) {
      digests_.push_back(digest(*sequence));
      logits_.push_back(model_.logits(*sequence, std::span(tokens_).subspan(i, 1)));
    }
    digests_.push_back(digest(*sequence));
  }
  static std::string digest(const Sequence& sequence) {
    const auto digest = sequence.digest();
    EXPECT_TRUE(digest.ok()) << digest.error().message;
    return digest.ok() ? hex(*digest) : std::string();
  }
  void run(Sequence& sequence, uint32_t end, uint32_t width = kTokens) {
    while (sequence.length() < end) {
      const uint32_t count = std::min(width, end - sequence.length());
      (void)model_.logits(sequence, std::span(tokens_).subspan(sequence.length(), count));
    }
  }
  /// The sequence is what `position` tokens leave, and goes on as it should.
  void expect_at(Sequence& sequence, uint32_t position, const std::string& what) {
    ASSERT_EQ(sequence.length(), position) << what;
    EXPECT_EQ(digest(sequence), digests_[position]) << what;
    if (position == kTokens) return;
    EXPECT_EQ(model_.logits(sequence, std::span(tokens_).subspan(position, 1)), logits_[position])
        << what;
    EXPECT_EQ(digest(sequence), digests_[position + 1]) << what;
  }

  Files files_;
  Loaded model_;
  std::vector<uint32_t> tokens_;
  std::vector<std::string> digests_;        ///< after each number of tokens
  std::vector<std::vector<float>> logits_;  ///< of each token
};

INSTANTIATE_TEST_SUITE_P(Families, State, testing::Values("qwen3", "mistral", "qwen3_5"));

TEST_P(State, PassesOfAnyWidthLeaveTheSameState) {
  for (const uint32_t width : {2U, 5U, 16U, 33U, 48U}) {
    auto sequence = model_.stage->new_sequence();
    run(*sequence, kTokens, width);
    EXPECT_EQ(digest(*sequence), digests_[kTokens]) << "passes of " << width;
  }
}

TEST_P(State, RollsBackToEveryPositionOfTheLatestPass) {
  for (const uint32_t width : {1U, 2U, 7U, 16U, 32U}) {
    for (uint32_t back = 0; back <= width; ++back) {
      auto sequence = model_.stage->new_sequence();
      run(*sequence, 9, 4);
      (void)model_.logits(*sequence, std::span(tokens_).subspan(9, width));
      const uint32_t position = 9 + width - back;
      const Status status = sequence->rollback(position);
      ASSERT_TRUE(status.ok()) << status.error().message;
      expect_at(*sequence, position,
                "a pass of " + std::to_string(width) + ", back by " + std::to_string(back));
    }
  }
}

TEST_P(State, RollsBackStepByStepAndForwardAgain) {
  auto sequence = model_.stage->new_sequence();
  run(*sequence, 32, 16);
  for (const uint32_t position : {31U, 29U, 25U, 20U, 17U}) {
    ASSERT_TRUE(sequence->rollback(position).ok());
    EXPECT_EQ(digest(*sequence), digests_[position]);
  }
  run(*sequence, kTokens, 5);
  EXPECT_EQ(digest(*sequence), digests_[kTokens]);
  ASSERT_TRUE(sequence->rollback(0).ok());
  EXPECT_EQ(sequence->length(), 0U);
  run(*sequence, kTokens);
  EXPECT_EQ(digest(*sequence), digests_[kTokens]);
}

TEST_P(State, OfAWidePassTheLastPositionsCanBeReached) {
  for (const uint32_t position : {47U, 30U, 16U}) {
    auto sequence = model_.stage->new_sequence();
    run(*sequence, kTokens);
    ASSERT_TRUE(sequence->rollback(position).ok());
    expect_at(*sequence, position, "a pass of 48");
  }
  auto sequence = model_.stage->new_sequence();
  run(*sequence, kTokens);
  const bool recurrent = sequence->floor() != 0;
  EXPECT_EQ(recurrent, files_.config.recurrent_layers(0, files_.config.layers) != 0);
  if (!recurrent) return;
  EXPECT_EQ(sequence->floor(), kTokens - kernels::kRollbackWindow);
  EXPECT_FALSE(sequence->rollback(15).ok());
  EXPECT_EQ(digest(*sequence), digests_[kTokens]) << "what can't be done changes nothing";
  EXPECT_FALSE(sequence->rollback(kTokens + 1).ok());
}

TEST_P(State, ComesBackToItsCheckpoints) {
  auto sequence = model_.stage->new_sequence();
  run(*sequence, 5, 5);
  ASSERT_TRUE(sequence->save(3).ok());
  run(*sequence, 20, 5);
  ASSERT_TRUE(sequence->save(8).ok());
  run(*sequence, kTokens, 1);
  ASSERT_TRUE(sequence->restore(8, 20).ok());
  EXPECT_EQ(digest(*sequence), digests_[20]);
  // From a checkpoint the positions before it can be reached that could be reached then.
  ASSERT_TRUE(sequence->rollback(17).ok());
  expect_at(*sequence, 17, "rolled back from a checkpoint");
  EXPECT_FALSE(sequence->restore(8, 20).ok()) << "it lies in what was rolled back";
  EXPECT_FALSE(sequence->restore(3, 6).ok()) << "it is of another length";
  ASSERT_TRUE(sequence->restore(3, 5).ok());
  expect_at(*sequence, 5, "the first checkpoint");
  sequence->drop(3);
  EXPECT_FALSE(sequence->restore(3, 5).ok());
}

TEST_P(State, HasAsManyCheckpointsAsItMay) {
  auto sequence = model_.stage->new_sequence();
  run(*sequence, 2);
  const uint32_t limit = checkpoint_limit(files_.config);
  for (uint32_t slot = 0; slot < limit; ++slot) ASSERT_TRUE(sequence->save(slot).ok());
  EXPECT_FALSE(sequence->save(limit).ok());
  EXPECT_TRUE(sequence->save(0).ok()) << "in place of another one";
}

TEST_P(State, GoesOnElsewhereFromItsBytes) {
  for (const uint32_t position : {0U, 1U, 20U, 37U}) {
    auto sequence = model_.stage->new_sequence();
    run(*sequence, position, 16);
    const auto bytes = sequence->write();
    ASSERT_TRUE(bytes.ok());
    // Another stage, other kernels, and a sequence that held something else.
    Loaded other = load(files_, with(1, Isa::kScalar));
    auto copy = other.stage->new_sequence();
    (void)other.logits(*copy, std::span(tokens_).subspan(3, 9));
    const Status status = copy->read(*bytes);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(digest(*copy), digests_[position]);
    EXPECT_EQ(copy->floor(), sequence->floor());
    if (position > 1) {
      ASSERT_TRUE(copy->rollback(position - 1).ok());
      EXPECT_EQ(digest(*copy), digests_[position - 1]);
    }
    const uint32_t next = copy->length();
    EXPECT_EQ(other.logits(*copy, std::span(tokens_).subspan(next, 1)), logits_[next]);
  }
}

TEST_P(State, IsMadeLongerByRepeatingIt) {
  constexpr uint32_t kHeld = 20;
  constexpr uint32_t kLength = 47;
  auto sequence = model_.stage->new_sequence();
  run(*sequence, kHeld, 16);
  const auto bytes = sequence->write();
  ASSERT_TRUE(bytes.ok());
  const auto longer = stretch_state(*bytes, files_.config, kLength);
  if (std::string_view(GetParam()) != "qwen3") {
    ASSERT_FALSE(longer.ok()) << "windows and recurrent states don't grow like that";
    EXPECT_EQ(longer.error().kind, ErrorKind::kUnsupported);
    return;
  }
  ASSERT_TRUE(longer.ok()) << longer.error().message;
  auto copy = model_.stage->new_sequence();
  const Status status = copy->read(*longer);
  ASSERT_TRUE(status.ok()) << status.error().message;
  ASSERT_EQ(copy->length(), kLength);
  EXPECT_EQ(*copy->write(), *longer);
  EXPECT_EQ(model_.logits(*copy, std::span(tokens_).subspan(0, 1)).size(), files_.config.vocab);
  ASSERT_TRUE(copy->rollback(kHeld).ok());
  expect_at(*copy, kHeld, "what was held is still in front");
  // Each layer's positions come round again after kHeld of them.
  constexpr size_t kHead = 12;
  const size_t layer = (longer->size() - kHead) / files_.config.layers;
  const size_t position = layer / kLength;
  for (uint32_t i = 0; i < files_.config.layers; ++i) {
    const std::byte* own = longer->data() + kHead + i * layer;
    EXPECT_EQ(std::memcmp(own, own + kHeld * position, (kLength - kHeld) * position), 0) << i;
    EXPECT_EQ(std::memcmp(own, bytes->data() + kHead + i * kHeld * position, kHeld * position), 0);
  }
  EXPECT_FALSE(stretch_state(*bytes, files_.config, kHeld - 1).ok()) << "shorter";
  EXPECT_FALSE(stretch_state(std::span(*bytes).first(bytes->size() - 2), files_.config, 47).ok());
  EXPECT_FALSE(stretch_state({}, files_.config, 47).ok()) << "nothing";
}

TEST_P(State, RefusesBytesThatAreNone) {
  auto sequence = model_.stage->new_sequence();
  run(*sequence, 20, 16);
  const auto written = sequence->write();
  ASSERT_TRUE(written.ok());
  auto bytes = *written;
  const auto refused = [&](const std::string& what) {
    auto copy = model_.stage->new_sequence();
    run(*copy, 4);
    EXPECT_FALSE(copy->read(bytes).ok()) << what;
    EXPECT_EQ(copy->length(), 0U) << what;
    run(*copy, 20);
    EXPECT_EQ(digest(*copy), digests_[20]) << what;
  };
  bytes.pop_back();
  refused("one byte short");
  bytes = *written;
  bytes.push_back(std::byte{0});
  refused("one byte over");
  bytes = *written;
  bytes[2] = std::byte{0xff};
  refused("a length of millions");
  bytes.clear();
  refused("nothing");
  bytes = *written;
  std::memset(bytes.data() + 4, 0x7f, 2);
  refused("an exponent out of range");
  bytes = *written;
  const uint32_t none = 0x7fff7fff;  // as two values out of range too
  std::memcpy(bytes.data() + bytes.size() - 4, &none, 4);
  refused("not a number");
}

}  // namespace
}  // namespace tandem::model
