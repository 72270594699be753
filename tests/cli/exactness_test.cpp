// The promise: the answer is a function of the model, the prompt and the seed. Not of the
// instruction set, the threads, the width of a pass, the number of processes, or where the model is
// cut.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "cli/process.h"
#include "weights/safetensors.h"

namespace tandem::cli_test {
namespace {

const std::string kTokens = "1,439,271,201,1824,708,373,261,5525,644,496,261,1635,278,261,2557,16";

/// `tandem logits` with these flags: 64 hexadecimal digits.
std::string logits_hash(std::vector<std::string> flags) {
  std::vector<std::string> arguments{"logits", "--tokens", kTokens};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::string hash = tandem_ok(arguments);
  EXPECT_EQ(hash.size(), 65U) << hash;
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef\n"), std::string::npos) << hash;
  return hash;
}

/// True if this machine's kernels pass and exist.
bool has_isa(const std::string& isa) {
  return tandem({"logits", "--tokens", "1", "--isa", isa}).code == 0;
}

class Exactness : public testing::TestWithParam<const char*> {
 protected:
  std::string hash(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--weights", GetParam()});
    return logits_hash(std::move(flags));
  }
};

TEST_P(Exactness, EveryInstructionSetGivesTheSameLogits) {
  const std::string reference = hash({"--isa", "scalar"});
  EXPECT_EQ(hash({}), reference);
  for (const std::string isa : {"avx2", "avx512", "amx", "neon", "dotprod", "i8mm"}) {
    if (has_isa(isa)) {
      EXPECT_EQ(hash({"--isa", isa}), reference) << isa;
    }
  }
}

TEST_P(Exactness, EveryNumberOfThreadsGivesTheSameLogits) {
  const std::string one = hash({"--threads", "1"});
  for (const char* threads : {"2", "4", "7"}) EXPECT_EQ(hash({"--threads", threads}), one);
}

TEST_P(Exactness, EveryWidthOfAPassGivesTheSameLogits) {
  const std::string all = hash({"--pass-width", "48"});
  for (const char* width : {"1", "2", "5", "16"}) EXPECT_EQ(hash({"--pass-width", width}), all);
}

TEST_P(Exactness, ACutAtEveryBoundaryGivesTheSameLogits) {
  const std::string whole = hash({});
  WorkerProcess first({"--models", source("models"), "--threads", "1"});
  WorkerProcess second({"--models", source("models"), "--threads", "1"});
  const std::string workers = first.address() + "," + second.address();
  for (int cut = 1; cut < 12; ++cut) {
    const std::string split = "0-" + std::to_string(cut - 1) + "," + std::to_string(cut) + "-11";
    EXPECT_EQ(hash({"--workers", workers, "--split", split, "--pass-width", "5"}), whole) << split;
  }
}

TEST_P(Exactness, TwoToFiveProcessesGiveTheSameLogits) {
  const std::string whole = hash({});
  for (const char* count : {"1", "2", "3", "4"}) {
    EXPECT_EQ(hash({"--local", count, "--threads", "1"}), whole) << count;
  }
  // The host computes the layers that no worker has: before, between and after.
  EXPECT_EQ(hash({"--local", "2", "--split", "2-3,7-9"}), whole);
  EXPECT_EQ(hash({"--local", "1", "--split", "0"}), whole);
}

INSTANTIATE_TEST_SUITE_P(Weights, Exactness, testing::Values("8", "4", "16"),
                         [](const auto& bits) { return std::string("Bits") + bits.param; });

TEST(Exactness, TheHashIsThatOfTheLogitsInTheFile) {
  const std::string path = temporary("logits.safetensors");
  const std::string hash =
      tandem_ok({"logits", "--tokens", kTokens, "--hidden", "--out", path, "--pass-width", "3"});
  auto file = weights::SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto* logits = (*file)->find("logits");
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->shape, (std::vector<uint64_t>{17, 8192}));
  const auto* hidden = (*file)->find("hidden");
  ASSERT_NE(hidden, nullptr);
  EXPECT_EQ(hidden->shape, (std::vector<uint64_t>{13, 17, 384}));
  const auto raw = (*file)->read_raw(*logits);
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(hex(sha256(raw->bytes)) + "\n", hash);
}

TEST(Exactness, TokensFromAFileAndFromStandardInputAreTheSame) {
  const std::string path = temporary("tokens.txt");
  std::string spaced = kTokens;
  for (char& c : spaced) {
    if (c == ',') c = '\n';
  }
  FILE* file = fopen(path.c_str(), "w");
  fputs(spaced.c_str(), file);
  fclose(file);
  const std::string hash = logits_hash({});
  EXPECT_EQ(tandem_ok({"logits", "--tokens-file", path}), hash);
  EXPECT_EQ(tandem_ok({"logits", "--tokens-file", "-"}, spaced), hash);
}

nlohmann::json run(std::vector<std::string> flags) {
  std::vector<std::string> arguments{"run", "--json", "Write a story about a mouse and a clock."};
  arguments.insert(arguments.end() - 1, flags.begin(), flags.end());
  return nlohmann::json::parse(tandem_ok(arguments));
}

TEST(Exactness, SampledAnswersDependOnTheSeedAndOnNothingElse) {
  const std::vector<std::string> sampling{"--temperature", "0.8", "--top-p",      "0.9",
                                          "--seed",        "5",   "--max-tokens", "24"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sampling.begin(), sampling.end());
    return run(more);
  };
  const auto one = with({"--threads", "1"});
  for (const auto& other :
       {with({"--threads", "3"}), with({"--local", "3"}), with({"--isa", "scalar"}),
        with({"--local", "2", "--split", "1-4,9"})}) {
    EXPECT_EQ(other["tokens"], one["tokens"]);
    EXPECT_EQ(other["logits_sha256"], one["logits_sha256"]);
  }
  EXPECT_NE(with({"--seed", "6"})["tokens"], one["tokens"]);
}

}  // namespace
}  // namespace tandem::cli_test
