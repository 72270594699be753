// Runs the tool that makes checkpoints and reads what it wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include <nlohmann/json.hpp>

#include "tests/weights/files.h"
#include "weights/checkpoint.h"
#include "weights/dtype.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

/// Exit status of make_checkpoint with these arguments.
int make(const std::string& arguments) {
  const std::string command =
      std::string(TANDEM_BINARY_DIR) + "/make_checkpoint " + arguments + " >/dev/null 2>&1";
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c)
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MakeCheckpoint, WritesFiniteWeightsOfTheWantedSpread) {
  const TemporaryFolder folder;
  for (const char* shape :
       {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral", "tiny-gpt2", "tiny-qwen3-moe"}) {
    SCOPED_TRACE(shape);
    ASSERT_EQ(make(std::string(shape) + " " + (folder / shape).string()), 0);
    auto checkpoint = Checkpoint::open(folder / shape);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
      const auto data = (*checkpoint)->read(tensor.name);
      ASSERT_TRUE(data.ok());
      EXPECT_TRUE(check_finite(*data).ok());
      if (tensor.shape.size() != 2) continue;
      std::vector<float> values(tensor.elements());
      ASSERT_TRUE(widen(tensor.dtype, data->bytes, values).ok());
      double sum = 0;
      double squares = 0;
      for (const float value : values) {
        sum += value;
        squares += double{value} * value;
      }
      const auto count = static_cast<double>(values.size());
      const double deviation = std::sqrt(squares / count);
      EXPECT_GT(deviation, 0.009) << tensor.name;
      EXPECT_LT(deviation, 0.11) << tensor.name;
      EXPECT_LT(std::abs(sum / count), 4 * deviation / std::sqrt(count)) << tensor.name;
    }
  }
}

TEST(MakeCheckpoint, SplitsWeightsIntoShards) {
  const TemporaryFolder folder;
  ASSERT_EQ(make("tiny-mistral " + (folder / "whole").string()), 0);
  ASSERT_EQ(make("tiny-mistral --shard-mb 1 " + (folder / "split").string()), 0);
  auto whole = Checkpoint::open(folder / "whole");
  auto split = Checkpoint::open(folder / "split");
  ASSERT_TRUE(whole.ok() && split.ok());
  EXPECT_EQ((*split)->files().size(), 2u);
  ASSERT_EQ((*split)->tensors().size(), (*whole)->tensors().size());
  for (const TensorInfo& tensor : (*whole)->tensors()) {
    const auto one = (*whole)->read(tensor.name);
    const auto two = (*split)->read(tensor.name);
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_TRUE(std::ranges::equal(one->bytes, two->bytes)) << tensor.name;
  }
}

TEST(MakeCheckpoint, GivesEqualFilesForEqualSeeds) {
  const TemporaryFolder folder;
  const auto weights = [&](const char* name) {
    return read_file(folder / name / "model.safetensors");
  };
  ASSERT_EQ(make("tiny-qwen3 --seed 7 " + (folder / "a").string()), 0);
  ASSERT_EQ(make("tiny-qwen3 --seed 7 " + (folder / "b").string()), 0);
  ASSERT_EQ(make("tiny-qwen3 --seed 8 " + (folder / "c").string()), 0);
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));
}

TEST(MakeCheckpoint, WritesATokenizerInWhichEveryIdDecodes) {
  const TemporaryFolder folder;
  ASSERT_EQ(make("gpt2 --layers 1 " + (folder / "m").string()), 0);
  const auto config = nlohmann::json::parse(read_file(folder / "m" / "config.json"));
  EXPECT_EQ(config["n_layer"], 1);
  const auto tokenizer = nlohmann::json::parse(read_file(folder / "m" / "tokenizer.json"));
  const auto& vocab = tokenizer["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 50257u);
  std::set<uint32_t> ids;
  for (const auto& [token, id] : vocab.items()) ids.insert(id.get<uint32_t>());
  EXPECT_EQ(ids.size(), 50257u);
  EXPECT_EQ(*ids.rbegin(), 50256u);
  for (const auto& merge : tokenizer["model"]["merges"]) {
    ASSERT_TRUE(vocab.contains(merge[0].get<std::string>() + merge[1].get<std::string>()));
  }
  EXPECT_EQ(vocab["<|im_end|>"], 50255);
}

TEST(MakeCheckpoint, RefusesBadArguments) {
  const TemporaryFolder folder;
  const std::string path = (folder / "m").string();
  EXPECT_EQ(make("--help"), 0);
  EXPECT_EQ(make(""), 2);
  EXPECT_EQ(make("tiny-llama"), 2);
  EXPECT_EQ(make("tiny-llama --layers 0 " + path), 2);
  EXPECT_EQ(make("tiny-llama --seed x " + path), 2);
  EXPECT_EQ(make("tiny-llama --what " + path), 2);
  EXPECT_EQ(make("no-such-shape " + path), 1);
  EXPECT_FALSE(fs::exists(path));
  write_file(folder / "m" / "file", "x");
  EXPECT_EQ(make("tiny-llama " + path), 1);
}

}  // namespace
}  // namespace tandem::weights
