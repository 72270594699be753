// Which layers lie where.
#include "ring/plan.h"

#include <gtest/gtest.h>

namespace tandem::ring {
namespace {

std::string error(std::string_view split, uint32_t layers, uint32_t workers) {
  const auto ranges = parse_split(split, layers, workers);
  return ranges.ok() ? "" : ranges.error().message;
}

TEST(Split, NamesTheWorkersLayersInOrder) {
  const auto ranges = parse_split("0-3,4-7", 8, 2);
  ASSERT_TRUE(ranges.ok());
  EXPECT_EQ(*ranges, (std::vector<LayerRange>{{0, 4}, {4, 8}}));
}

TEST(Split, MayLeaveLayersToTheHostAnywhere) {
  const auto ranges = parse_split("2-3,5,8-9", 12, 3);
  ASSERT_TRUE(ranges.ok());
  EXPECT_EQ(*ranges, (std::vector<LayerRange>{{2, 4}, {5, 6}, {8, 10}}));
}

TEST(Split, SaysWhatIsWrong) {
  EXPECT_NE(error("0-3,3-7", 8, 2).find("3-7 overlap with 0-3"), std::string::npos);
  EXPECT_NE(error("4-7,0-3", 8, 2).find("out of order"), std::string::npos);
  EXPECT_NE(error("0-8", 8, 1).find("out of range"), std::string::npos);
  EXPECT_NE(error("3-0", 8, 1).find("ends before it starts"), std::string::npos);
  EXPECT_NE(error("0-3", 8, 2).find("fewer ranges than there are workers"), std::string::npos);
  EXPECT_NE(error("0-1,2-3,4-5", 8, 2).find("more ranges"), std::string::npos);
  for (const char* bad : {"", ",", "a-b", "0-", "-3", "0--3", "0-3,", "1-2-3", "0x1-2", " 0-1",
                          "99999999999-1", "+1-2"}) {
    EXPECT_NE(error(bad, 8, 1), "") << bad;
  }
}

TEST(Split, EvenSharesCoverAllLayers) {
  for (uint32_t layers = 1; layers < 40; ++layers) {
    for (uint32_t workers = 1; workers <= layers; ++workers) {
      const auto ranges = split_evenly(layers, workers);
      ASSERT_TRUE(ranges.ok());
      ASSERT_EQ(ranges->size(), workers);
      EXPECT_TRUE(check_split(*ranges, layers).ok());
      EXPECT_EQ(ranges->front().first, 0u);
      EXPECT_EQ(ranges->back().last, layers);
      EXPECT_LE(ranges->front().count() - ranges->back().count(), 1u);
    }
  }
}

TEST(Split, NeedsALayerForEachWorker) {
  EXPECT_NE(split_evenly(3, 4).error().message.find("too few"), std::string::npos);
  EXPECT_FALSE(split_evenly(3, 0).ok());
}

}  // namespace
TEST(FrameTokens, AreManyForOneStageAndFewerTheMoreStagesWait) {
  EXPECT_EQ(frame_tokens(512, 1), kMostTokensChosen);
  EXPECT_EQ(frame_tokens(1, 1), kMostTokensChosen);
  uint32_t before = kMostTokensChosen;
  for (uint32_t stages = 2; stages <= 64; ++stages) {
    const uint32_t tokens = frame_tokens(512, stages);
    EXPECT_LE(tokens, before);
    EXPECT_GE(tokens, 16U);
    EXPECT_EQ(tokens % 4, 0U);
    before = tokens;
  }
  EXPECT_EQ(frame_tokens(UINT32_MAX, 2), kMostTokensChosen);
  EXPECT_EQ(frame_tokens(0, 2), 16U);
}

}  // namespace tandem::ring
