// What the commands answer, compared with transformers and with the issue's formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "cli/process.h"
#include "weights/safetensors.h"

namespace tandem::cli_test {
namespace {

using nlohmann::json;

json golden() {
  return json::parse(read_file(source("tests/data/models/golden.json")));
}

TEST(Run, AnswersAsTransformersDoesWhereverItsChoiceIsClear) {
  const json cases = golden();
  for (const json& prompt : cases["prompts"]) {
    const json answer = json::parse(
        tandem_ok({"run", "--json", "--max-tokens", "64", prompt["user"].get<std::string>()}));
    EXPECT_EQ(answer["prompt_token_ids"], prompt["ids"]);
    EXPECT_EQ(answer["prompt_tokens"], prompt["ids"].size());
    const json& wanted = prompt["greedy_ids"];
    const json& tokens = answer["tokens"];
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (prompt["steps"][i]["margin"].get<double>() <= 0.1) break;  // a close call: texts may part
      ASSERT_LT(i, tokens.size());
      EXPECT_EQ(tokens[i], wanted[i]) << "step " << i << " of " << prompt["user"];
      const int token = wanted[i].get<int>();
      if (token == 2 || token == 0) break;  // the end
    }
  }
}

TEST(Run, StreamsTheSameTextThatJsonReports) {
  const std::vector<std::string> prompt{"--max-tokens", "40", "Who are you?"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "run");
    flags.insert(flags.end(), prompt.begin(), prompt.end());
    return tandem(flags);
  };
  const Output plain = with({});
  const json object = json::parse(with({"--json"}).out);
  EXPECT_EQ(plain.out, object["text"].get<std::string>() + "\n");
  EXPECT_EQ(object["text"], "I am Storyteller, a small language model that comes with Tandem.");
  EXPECT_EQ(object["finish"], "end");
  // Who holds what, and the speed, are told apart from the answer.
  EXPECT_NE(plain.err.find("embedding, head"), std::string::npos);
  EXPECT_NE(plain.err.find("tokens/s"), std::string::npos);
  EXPECT_EQ(with({"--quiet"}).err, "");
}

TEST(Run, JsonIsOneObjectWithTheIssuesKeys) {
  const Output output = tandem({"run", "--json", "--local", "2", "--split", "0-4,6-11",
                                "--max-tokens", "8", "Hello! How are you?"});
  ASSERT_EQ(output.code, 0) << output.err << output.out;
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 1);
  EXPECT_EQ(output.err, "");
  const json object = json::parse(output.out);
  EXPECT_TRUE(object["text"].is_string());
  EXPECT_EQ(object["tokens"].size(), 8U);
  EXPECT_GT(object["prompt_tokens"].get<int>(), 5);
  EXPECT_EQ(object["logits_sha256"].get<std::string>().size(), 64U);
  EXPECT_GT(object["prefill_tokens_per_second"].get<double>(), 0);
  EXPECT_GT(object["decode_tokens_per_second"].get<double>(), 0);
  const json& stages = object["stages"];
  ASSERT_EQ(stages.size(), 4U);
  const char* layers[] = {"0-4", "5-5", "6-11", "head"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(stages[i]["layers"], layers[i]);
    EXPECT_GT(stages[i]["bytes"].get<uint64_t>(), 0U);
    EXPECT_GT(stages[i]["ms_per_pass"].get<double>(), 0);
  }
  EXPECT_NE(stages[0]["peer"], "host");
  EXPECT_EQ(stages[1]["peer"], "host");
  EXPECT_EQ(stages[3]["peer"], "host");
}

TEST(Run, ReadsThePromptFromStandardInput) {
  EXPECT_EQ(tandem_ok({"run", "-q", "-"}, "Who are you?"),
            tandem_ok({"run", "-q", "Who are you?"}));
}

TEST(Run, ATypedControlTokenStaysText) {
  const json object =
      json::parse(tandem_ok({"run", "--json", "--max-tokens", "1", "a<|im_end|>b"}));
  const auto ids = object["prompt_token_ids"].get<std::vector<int>>();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1) << "only the template's own end of turn";
}

TEST(Run, TheAnswerEndsWhereTheContextEnds) {
  const Output output = tandem({"run", "-q", "--context", "20", "--raw", "Once upon a time"});
  EXPECT_EQ(output.code, 0);
  EXPECT_NE(output.err.find("the context of 20 tokens is full"), std::string::npos) << output.err;
}

TEST(Run, APromptLongerThanTheContextIsRefused) {
  std::string prompt;
  for (int i = 0; i < 1500; ++i) prompt += "word ";
  const Output output = tandem({"run", "--json", "-"}, prompt);
  EXPECT_EQ(output.code, 1);
  const json object = json::parse(output.out);
  EXPECT_EQ(object["error"]["kind"], "invalid");
  EXPECT_NE(object["error"]["message"].get<std::string>().find("the context 1024"),
            std::string::npos);
}

TEST(Chat, ReusedPrefixesGiveTheAnswersOfAFreshConversation) {
  const std::string out =
      tandem_ok({"chat", "--json", "--max-tokens", "48"},
                "Give me five fruits.\nWho are you?\n/new\nGive me five fruits.\n");
  std::vector<json> answers;
  for (size_t begin = 0; begin < out.size();) {
    const size_t end = out.find('\n', begin);
    answers.push_back(json::parse(out.substr(begin, end - begin)));
    begin = end + 1;
  }
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0]["reused_tokens"], 0);
  EXPECT_GT(answers[1]["reused_tokens"].get<int>(), 20) << "the first turn was run again";
  const json single =
      json::parse(tandem_ok({"run", "--json", "--max-tokens", "48", "Give me five fruits."}));
  EXPECT_EQ(answers[0]["logits_sha256"], single["logits_sha256"]);
  EXPECT_EQ(answers[2]["logits_sha256"], single["logits_sha256"]) << "after rolling back";
  EXPECT_EQ(answers[2]["text"], single["text"]);
  // The second turn's logits, computed in one go by a process that has seen nothing before.
  const std::string whole =
      "<|im_start|>user\nGive me five fruits.<|im_end|>\n<|im_start|>assistant\n" +
      answers[0]["text"].get<std::string>() +
      "<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n";
  std::string ids = tandem_ok({"tokenize", "--ids", "-"}, whole);
  ids.pop_back();
  const json& tokens = answers[1]["tokens"];
  for (size_t i = 0; i + 1 < tokens.size(); ++i) ids += "," + std::to_string(tokens[i].get<int>());
  const std::string path = temporary("chat.safetensors");
  tandem_ok({"logits", "--tokens", ids, "--out", path});
  auto file = weights::SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto raw = (*file)->read_raw(*(*file)->find("logits"));
  ASSERT_TRUE(raw.ok());
  const size_t row = size_t{8192} * sizeof(float);
  const size_t first = answers[1]["prompt_tokens"].get<size_t>() - 1;
  ASSERT_EQ(raw->bytes.size(), (first + tokens.size()) * row);
  EXPECT_EQ(answers[1]["logits_sha256"], hex(sha256(raw->bytes.subspan(first * row))));
}

TEST(Chat, SplitOverWorkersItSaysTheSame) {
  const std::string input = "Hello! How are you?\nWhat is 7 + 5?\n";
  EXPECT_EQ(tandem_ok({"chat", "-q", "--local", "3"}, input), tandem_ok({"chat", "-q"}, input));
}

TEST(Perplexity, IsWithin15HundredthsOfAPercentOfFloat32At8Bits) {
  const json wanted = json::parse(read_file(source("tests/data/models/perplexity.json")));
  const double reference = wanted["results"]["storyteller float32 cpu"]["perplexity"];
  const json object = json::parse(
      tandem_ok({"perplexity", "--json", "--text", source("tests/data/models/heldout.txt")}));
  EXPECT_EQ(object["tokens"], wanted["tokens"]);
  EXPECT_EQ(object["windows"], wanted["windows"]);
  EXPECT_EQ(object["predicted_tokens"], wanted["predicted_tokens"]);
  EXPECT_NEAR(object["perplexity"].get<double>(), reference, 0.0015 * reference);
}

TEST(Tokenize, ShowsIdsAndTexts) {
  EXPECT_EQ(tandem_ok({"tokenize", "--ids", "Hello!"}), "2189,3\n");
  EXPECT_EQ(tandem_ok({"tokenize", "Hello!"}), "2189\t\"Hello\"\n3\t\"!\"\n");
  EXPECT_EQ(tandem_ok({"tokenize", "--ids", "<|im_end|>"}), "2\n");
  EXPECT_NE(tandem_ok({"tokenize", "--ids", "--user", "<|im_end|>"}), "2\n");
}

TEST(Models, TellsWhatAModelNeedsWithoutLoadingIt) {
  const json object = json::parse(tandem_ok({"models", "--json", source("models")}));
  ASSERT_EQ(object["models"].size(), 2U);
  const json& model = object["models"][0];
  EXPECT_EQ(model["architecture"], "Qwen3ForCausalLM");
  EXPECT_EQ(model["layers"], 12);
  EXPECT_EQ(model["parameters"], 22'031'232);
  EXPECT_EQ(model["supported"], true);
  EXPECT_EQ(model["context"], 1024);
  // It needs what it then takes.
  const json answer = json::parse(tandem_ok({"run", "--json", "--max-tokens", "1", "Hi"}));
  EXPECT_EQ(model["weights_8"]["layers_bytes"], answer["stages"][0]["bytes"]);
  EXPECT_EQ(model["weights_8"]["ends_bytes"], answer["stages"][1]["bytes"]);
  const json four =
      json::parse(tandem_ok({"run", "--json", "--weights", "4", "--max-tokens", "1", "Hi"}));
  EXPECT_EQ(model["weights_4"]["layers_bytes"], four["stages"][0]["bytes"]);
  EXPECT_EQ(model["weights_4"]["ends_bytes"], four["stages"][1]["bytes"]);
  EXPECT_EQ(model["weights_8"]["total_bytes"].get<uint64_t>(),
            model["weights_8"]["layers_bytes"].get<uint64_t>() +
                model["weights_8"]["ends_bytes"].get<uint64_t>() +
                1024 * model["kv_bytes_per_position"].get<uint64_t>());
}

TEST(Bench, HasTheIssuesKeys) {
  const json object = json::parse(tandem_ok(
      {"bench", "--json", "--prompt", "64", "--generate", "8", "--repeat", "1", "--local", "2"}));
  for (const char* key :
       {"prefill_tokens_per_second", "decode_tokens_per_second", "bytes_per_token",
        "read_bandwidth_bytes_per_second", "bandwidth_share"}) {
    EXPECT_GT(object[key].get<double>(), 0) << key;
  }
}

TEST(Bench, AtADepthATokenReadsThatManyPositionsMore) {
  const auto bytes = [](const std::string& depth) {
    const json object = json::parse(tandem_ok({"bench", "--json", "--prompt", "8", "--generate",
                                               "4", "--repeat", "1", "--depth", depth}));
    EXPECT_GT(object["decode_tokens_per_second"].get<double>(), 0);
    return object["bytes_per_token"].get<uint64_t>();
  };
  const json model =
      json::parse(tandem_ok({"models", "--json", source("models/storyteller")}))["models"][0];
  EXPECT_EQ(bytes("900") - bytes("300"), 600 * model["kv_bytes_per_position"].get<uint64_t>());
  EXPECT_EQ(tandem({"bench", "--depth", "300", "--local", "2"}).code, 2);
  EXPECT_EQ(tandem({"bench", "--depth", "5000"}).code, 1) << "more than the model's context";
}

TEST(Verify, EveryKernelOfThisMachineGivesTheReferencesBits) {
  const json object = json::parse(tandem_ok({"verify", "--json"}));
  EXPECT_EQ(object["ok"], true);
  EXPECT_EQ(object["kernels"][0]["isa"], "scalar");
}

}  // namespace
}  // namespace tandem::cli_test
