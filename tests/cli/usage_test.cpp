// Help, wrong flags, missing files: what a user sees before anything is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

const std::vector<std::string> kCommands{
    "run",    "chat",  "worker", "models", "logits", "perplexity", "tokenize", "bench",
    "verify", "probe", "plan",   "room",   "join",   "devices",    "settings", "hub"};

TEST(Help, EachFitsAScreenAndHasAnExample) {
  const std::string all = tandem_ok({"--help"});
  for (const std::string& command : kCommands) {
    EXPECT_NE(all.find("\n  " + command + " "), std::string::npos) << command;
    const std::string help = tandem_ok({command, "--help"});
    EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 42) << command;
    EXPECT_NE(help.find("Usage: tandem " + command), std::string::npos) << command;
    EXPECT_NE(help.find("Examples:\n  tandem " + command), std::string::npos) << command;
    size_t begin = 0;
    for (size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
      EXPECT_LE(end - begin, 100U) << command << ": " << help.substr(begin, end - begin);
    }
  }
}

TEST(Help, VersionNamesTheArithmeticContract) {
  EXPECT_NE(tandem_ok({"--version"}).find("arithmetic contract"), std::string::npos);
}

struct Wrong {
  std::vector<std::string> arguments;
  std::string says;
};

TEST(WrongUse, EndsWith2AndTheReason) {
  const std::vector<Wrong> cases{
      {{}, "Usage: tandem COMMAND"},
      {{"rum", "Hello"}, "unknown command 'rum'; did you mean 'run'?"},
      {{"run"}, "PROMPT is required"},
      {{"run", "--tempreature", "1", "Hi"},
       "unknown flag --tempreature; did you mean --temperature?"},
      {{"run", "--thread=3", "Hi"}, "unknown flag --thread; did you mean --threads?"},
      {{"run", "two", "words"}, "unexpected argument 'words'"},
      {{"run", "--threads", "0", "Hi"}, "--threads is '0'; expected a whole number from 1 to 256"},
      {{"run", "--threads", "-1", "Hi"}, "--threads is '-1'"},
      {{"run", "--temperature", "-1", "Hi"}, "temperature is -1; expected 0 to 100"},
      {{"run", "--temperature", "nan", "Hi"}, "temperature is nan"},
      {{"run", "--temperature", "warm", "Hi"}, "--temperature"},
      {{"run", "--top-p", "2", "Hi"}, "top_p is 2; expected 0 to 1"},
      {{"run", "--weights", "5", "Hi"}, "--weights is '5'; expected one of 16, 8, 4"},
      {{"run", "--isa", "sse", "Hi"},
       "--isa is 'sse'; expected one of best, scalar, avx2, avx512, "
       "amx, neon, dotprod, i8mm"},
      {{"run", "--split", "0-11", "Hi"}, "--split needs --workers or --local"},
      {{"run", "--local", "2", "--workers", "a:1", "Hi"}, "exclude each other"},
      {{"run", "--local", "2", "--plan", "auto", "--split", "0-5,6-11", "Hi"},
       "--plan auto and --split exclude each other"},
      {{"plan", "--objective", "best"}, "expected one of fastest, throughput, memory"},
      {{"run", "--seed", "-3", "Hi"}, "--seed is '-3'; expected a whole number"},
      {{"worker", "--memory", "lots"}, "--memory: 'lots' is no size; expected one like 8G"},
      {{"logits"}, "expected either --tokens or --tokens-file"},
      {{"perplexity"}, "--text is missing"},
  };
  for (const Wrong& one : cases) {
    const Output output = tandem(one.arguments);
    EXPECT_EQ(output.code, 2) << one.says;
    EXPECT_NE(output.err.find(one.says), std::string::npos) << one.says << "\n" << output.err;
    EXPECT_EQ(output.out, "");
  }
}

TEST(Failure, EndsWith1AndOneLine) {
  const std::vector<Wrong> cases{
      {{"run", "-m", "no-such-model", "Hi"}, "no-such-model: there is no such model folder"},
      {{"run", "-m", source("src"), "Hi"}, "config.json"},
      {{"models", "/no/such/folder"}, "/no/such/folder: there is no such folder"},
      {{"models", source("src")}, "config.json"},
      {{"perplexity", "--text", "/no/such/file"}, "/no/such/file: can't open the file"},
      {{"logits", "--tokens-file", "/no/such/file"}, "/no/such/file: can't open the file"},
      {{"logits", "--tokens", "1,x"}, "'x' is no token id"},
      {{"logits", "--tokens", "1,8192"}, "token 8192 is outside the vocabulary of 8192"},
      {{"logits", "--tokens", ","}, "no tokens given"},
      {{"run", "--local", "2", "--split", "0-3", "Hi"},
       "names fewer ranges than there are workers (2)"},
      {{"run", "--local", "1", "--split", "3-1", "Hi"}, "3-1"},
      {{"run", "--local", "1", "--split", "0-12", "Hi"}, "12"},
      {{"run", "--local", "13", "Hi"}, "13"},
      {{"run", "--workers", "127.0.0.1:1", "Hi"}, "127.0.0.1:1"},
      {{"run", "--workers", "nonsense", "Hi"}, "nonsense"},
  };
  for (const Wrong& one : cases) {
    const Output output = tandem(one.arguments);
    EXPECT_EQ(output.code, 1) << one.says;
    EXPECT_NE(output.err.find(one.says), std::string::npos) << one.says << "\n" << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_EQ(output.out, "");
  }
}

TEST(Failure, WithJsonItIsAnObjectOnStandardOutput) {
  const Output output = tandem({"run", "--json", "-m", "no-such-model", "Hi"});
  EXPECT_EQ(output.code, 1);
  const auto object = nlohmann::json::parse(output.out);
  EXPECT_EQ(object["error"]["kind"], "not_found");
  EXPECT_EQ(object["error"]["message"], "no-such-model: there is no such model folder or file");
}

TEST(Bench, AProfileNamesThePartsOfAPass) {
  const auto object = nlohmann::json::parse(tandem_ok(
      {"bench", "--profile", "--json", "--prompt", "40", "--generate", "6", "--repeat", "1"}));
  const auto& decode = object["profile"]["decode"];
  EXPECT_EQ(decode["tokens"], 5) << "the first token comes from the prompt's pass";
  std::string parts;
  double share = 0;
  for (const auto& part : decode["parts"]) {
    parts += part["part"].get<std::string>() + "; ";
    share += part["time_share"].get<double>();
  }
  EXPECT_EQ(
      parts,
      "boundary; norm; head; q, k, v; heads; attention; o; add; gate, up; activation; down; ");
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_EQ(object["profile"]["prefill"]["tokens"], 40);
  const Output refused = tandem({"bench", "--profile", "--local", "2"});
  EXPECT_EQ(refused.code, 2);
}

}  // namespace
}  // namespace tandem::cli_test
