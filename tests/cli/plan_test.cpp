// tandem probe, tandem plan and run --plan auto, on worker processes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

nlohmann::json parsed(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return json;
}

TEST(Plan, MeasuresWorkersAndSaysWhatASplitIsWorth) {
  const WorkerProcess a({"--threads", "1"});
  const WorkerProcess b({"--threads", "1"});
  const std::string both = a.address() + "," + b.address();
  const auto probe = parsed(tandem_ok({"probe", "--workers", both, "--json"}));
  ASSERT_EQ(probe["devices"].size(), 3u);
  EXPECT_EQ(probe["links"].size(), 3u);
  EXPECT_EQ(probe["devices"][1]["device"], a.address());
  EXPECT_GT(probe["devices"][1]["alone"][0]["layer_ms"]["median"], 0);
  EXPECT_GT(probe["host_ms"], 0);

  const auto split =
      parsed(tandem_ok({"plan", "--workers", both, "--split", "0-5,6-11", "--json"}));
  ASSERT_EQ(split["stages"].size(), 2u);
  EXPECT_EQ(split["stages"][0]["layers"], "0-5");
  EXPECT_GT(split["predicted_tokens_per_second"], 0);
  // Three more in this process, where layers cost no hop.
  EXPECT_TRUE(split.contains("faster_alone"));

  const auto without = parsed(
      tandem_ok({"plan", "--workers", both, "--without", b.address(), "--memory", "0", "--json"}));
  ASSERT_EQ(without["stages"].size(), 1u);
  EXPECT_EQ(without["stages"][0]["device"], a.address());
  const auto with = parsed(tandem_ok({"plan", "--workers", both, "--with", "1G@0.0001", "--json"}));
  ASSERT_EQ(with["stages"].size(), 1u);
  EXPECT_EQ(with["stages"][0]["device"], "new");
}

TEST(Plan, SaysWhatIsShortBeforeAnythingIsLoaded) {
  const WorkerProcess a({"--threads", "1", "--memory", "46M"});
  const auto plan =
      parsed(tandem_ok({"plan", "--workers", a.address(), "--memory", "0", "--json"}));
  ASSERT_TRUE(plan.contains("short")) << plan.dump();
  EXPECT_EQ(plan["short"]["layers_needed"], 12);
  EXPECT_LT(plan["short"]["layers_held"], 12);
  EXPECT_GT(plan["short"]["bytes_short"], 1000000);
  EXPECT_EQ(plan["stages"].size(), 0u);
  bool enough = false;
  for (const auto& lender : plan["short"]["could_lend"]) enough = enough || lender["enough"];
  EXPECT_TRUE(enough);
  const std::string text = tandem_ok({"plan", "--workers", a.address(), "--memory", "0"});
  EXPECT_NE(text.find("of 12 layers fit"), std::string::npos) << text;
}

TEST(Plan, APlannedRunGivesTheSameAnswer) {
  const WorkerProcess a({"--threads", "1"});
  const WorkerProcess b({"--threads", "1"});
  const auto alone = parsed(tandem_ok({"run", "--json", "--max-tokens", "16", "Hello"}));
  const auto planned = parsed(tandem_ok({"run", "--json", "--max-tokens", "16", "--plan", "auto",
                                         "--workers", a.address() + "," + b.address(), "Hello"}));
  EXPECT_EQ(planned["logits_sha256"], alone["logits_sha256"]);
  EXPECT_EQ(planned["text"], alone["text"]);
}

TEST(Key, ClosesAWorkerToEverybodyElse) {
  const std::string key = temporary("room.key");
  std::ofstream(key) << "00112233445566778899aabbccddeeff\n";
  const std::string identity = temporary("worker.pem");
  WorkerProcess worker({"--threads", "1", "--key", key, "--identity", identity});
  const std::string said = worker.process().read_error_until("this device is ");
  const std::string fingerprint = (said + worker.process().read_error_until("\n"))
                                      .substr(said.find("this device is ") + 15, 64);
  const std::vector<std::string> ask{"--json", "--max-tokens", "8", "Hello"};
  auto run = [&](std::vector<std::string> flags, const std::string& input = "") {
    flags.insert(flags.begin(), "run");
    flags.insert(flags.end(), ask.begin(), ask.end());
    return tandem(flags, input);
  };
  const auto alone = parsed(run({}).out);
  const auto secure = run({"--workers", worker.address() + "#" + fingerprint, "--key", "-"},
                          "00112233445566778899AABBCCDDEEFF");
  EXPECT_EQ(secure.code, 0) << secure.out << secure.err;
  EXPECT_EQ(parsed(secure.out)["logits_sha256"], alone["logits_sha256"]);
  const auto other =
      run({"--workers", worker.address(), "--key", "-"}, "10112233445566778899aabbccddeeff");
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.out.find("room's key"), std::string::npos) << other.out;
  const auto none = run({"--workers", worker.address()});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.out.find("takes only devices that prove"), std::string::npos) << none.out;
  const auto wrong =
      run({"--workers", worker.address() + "#" + std::string(64, '0'), "--key", key});
  EXPECT_NE(wrong.out.find("another device answers there"), std::string::npos) << wrong.out;
  const auto bad = run({"--workers", worker.address(), "--key", "-"}, "secret");
  EXPECT_NE(bad.out.find("32 hexadecimal digits"), std::string::npos) << bad.out;
  EXPECT_EQ(bad.out.find("secret"), std::string::npos) << bad.out;
}

}  // namespace
}  // namespace tandem::cli_test
