// How a room goes on without one of its devices, and what it measures again: with the real
// processes.
#include <sstream>

#include "cli/room_process.h"

namespace tandem::cli_test {
namespace {

const std::string kPrompt = "Tell me a story about a fox.";
using Flags = std::vector<std::string>;

class RoomHeals : public RoomProcesses {
 protected:
  static const Json* event_of(const Json& answer, const std::string& kind,
                              const std::string& peer = "") {
    for (const Json& event : answer["events"]) {
      if (event["kind"] == kind && (peer.empty() || event.value("peer", "") == peer)) return &event;
    }
    return nullptr;
  }
  static std::string text_of(const Json& answer, const std::string& kind) {
    const Json* event = event_of(answer, kind);
    return event == nullptr ? "" : event->value("text", "");
  }
  static const Json* device(const Json& room, const std::string& name) {
    for (const Json& one : room["devices"]) {
      if (one["name"] == name) return &one;
    }
    return nullptr;
  }
  /// Name of the device that holds layers, or stands by.
  static std::string holder(const Json& room, const std::string& state) {
    for (const Json& one : room["devices"]) {
      if (one.contains("placement") && one["placement"].value("state", "") == state) {
        return one["name"];
      }
    }
    return "";
  }
};

TEST_F(RoomHeals, ADeviceWithoutLayersStandsByAndTakesOver) {
  std::map<std::string, std::unique_ptr<Joined>> workers;
  for (const char* name : {"one", "two"}) {
    workers[name] = std::make_unique<Joined>(at_, Flags{"--name", name, "--memory", "60M"});
  }
  // One of them holds all layers then.
  const Flags flags{"chat", "--room",      at_,       "--json",       "--memory", "0",
                    "-q",   "--objective", "fastest", "--max-tokens", "24"};
  const std::string expected = tandem_ok({"chat", "--json", "--max-tokens", "24", "-q"},
                                         "Tell me a story.\nAnd another one.\n");
  Process chat(flags);
  chat.write("Tell me a story.\n");
  const std::string first = chat.read_until("}\n");
  std::string worker;
  std::string spare;
  wait_for_view([&](const Json& room) {
    worker = holder(room, "ready");
    spare = holder(room, "spare");
    return !worker.empty() && !spare.empty();
  });
  ASSERT_NE(worker, spare);
  const Json seen = view();
  EXPECT_EQ((*device(seen, spare))["placement"]["spare_for"], Json::parse(R"(["0-11"])"));
  workers[worker]->process().signal(SIGKILL);
  chat.write("And another one.\n");
  const Output answers = chat.finish();
  ASSERT_EQ(answers.code, 0) << answers.err << answers.out;
  std::istringstream got(answers.out);
  std::istringstream wanted(expected);
  std::string line;
  std::string other;
  Json last;
  size_t turns = 0;
  for (; std::getline(got, line) && std::getline(wanted, other); ++turns) {
    last = Json::parse(line);
    EXPECT_EQ(last["logits_sha256"], Json::parse(other)["logits_sha256"]);
  }
  EXPECT_EQ(turns, 2U) << answers.out;
  EXPECT_NE(event_of(last, "lost", worker), nullptr) << last["events"];
  EXPECT_NE(event_of(last, "spare", spare), nullptr) << last["events"];
  EXPECT_EQ(event_of(last, "replanned"), nullptr) << last["events"];
}

TEST_F(RoomHeals, SparesAreShownInPlansAndCanBeSwitchedOff) {
  Joined a(at_, {"--name", "one", "--memory", "60M"});
  Joined b(at_, {"--name", "two", "--memory", "60M"});
  const Flags plan{"plan", "--room", code_, "--json", "--memory", "0", "--objective", "fastest"};
  const Json found = Json::parse(tandem_ok(plan));
  ASSERT_EQ(found["spares"].size(), 1U) << found;
  EXPECT_EQ(found["spares"][0]["layers"], "0-11");
  EXPECT_NE(found["spares"][0]["device"], found["stages"][0]["device"]);
  Process chat({"chat", "--room", at_, "--json", "--memory", "0", "-q", "--objective", "fastest",
                "--no-spares", "--max-tokens", "8"});
  chat.write("Tell me a story.\n");
  chat.read_until("}\n");
  EXPECT_EQ(holder(view(), "spare"), "");
  chat.write("Another one.\n");
  const Output answers = chat.finish();
  EXPECT_EQ(answers.out.find("standby"), std::string::npos) << answers.out;
  const Json other = Json::parse(tandem_ok(
      {"room", "create", "--hub", address_, "--no-spares", "--context", "256", "--json"}));
  const std::string there = other["link"];
  Joined c(there, {"--name", "three", "--memory", "60M"});
  Joined d(there, {"--name", "four", "--memory", "60M"});
  const Json without = Json::parse(tandem_ok({"plan", "--room", there, "--json", "--memory", "0"}));
  EXPECT_TRUE(without["spares"].empty()) << without;
}

TEST_F(RoomHeals, AModelThatFitsHereSaysWhatSharingItOutWouldCost) {
  Joined a(at_, {"--name", "one", "--memory", "60M", "--isa", "scalar"});
  const Flags plan{"plan", "--room", code_, "--memory", "200M", "--objective", "fastest"};
  Flags json = plan;
  json.emplace_back("--json");
  const Json found = Json::parse(tandem_ok(json));
  const std::string text = tandem_ok(plan);
  ASSERT_EQ(found["stages"].size(), 1U) << found;
  EXPECT_EQ(found["stages"][0]["device"], "host") << found;
  EXPECT_EQ(found["shared_out"]["devices"], 2) << found;
  EXPECT_GT(found["shared_out"]["tokens_per_second"], 0) << found;
  EXPECT_NE(text.find("answers fastest here alone"), std::string::npos) << text;
  EXPECT_NE(text.find("--objective " + found["shared_out"]["objective"].get<std::string>()),
            std::string::npos)
      << text;
  const Output run = tandem({"run", "--room", at_, "--objective", "memory", "--json",
                             "--max-tokens", "4", "--memory", "60M", kPrompt});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["stages"].size(), 3U) << "host, one, and the head";
  EXPECT_EQ(tandem({"run", "--objective", "memory", kPrompt}).code, 2);
  EXPECT_EQ(tandem({"run", "--no-spares", kPrompt}).code, 2);
}

TEST_F(RoomHeals, WhoSaysNoToItsLayersIsLeftOut) {
  Joined a(at_, {"--name", "one"});
  auto b = std::make_unique<Joined>(at_, Flags{"--name", "two"});
  const Json one = alone(kPrompt);
  EXPECT_EQ(over_room(kPrompt)["logits_sha256"], one["logits_sha256"]);
  // The same device, as far as anybody has measured; but it takes tensors from nobody.
  b.reset();
  b = std::make_unique<Joined>(at_, Flags{"--name", "two", "--sources", "cache", "--cache", "off"});
  Process run({"run", "--room", at_, "--json", "--max-tokens", "12", "--memory", "64M", kPrompt});
  const Output output = run.finish();
  ASSERT_EQ(output.code, 0) << output.err << output.out;
  const Json answer = Json::parse(output.out);
  EXPECT_EQ(answer["logits_sha256"], one["logits_sha256"]);
  EXPECT_EQ(event_of(answer, "measuring"), nullptr) << answer["events"];
  ASSERT_NE(event_of(answer, "lost", "two"), nullptr) << answer["events"];
  EXPECT_NE(event_of(answer, "replanned"), nullptr) << answer["events"];
  EXPECT_NE(output.err.find("without two the layers are dealt anew"), std::string::npos)
      << output.err;
  for (const Json& stage : answer["stages"]) EXPECT_NE(stage["peer"], "two");
}

TEST_F(RoomHeals, WhoSaysNoToMeasuringIsLeftOut) {
  Joined a(at_, {"--name", "one"});
  Joined b(at_, {"--name", "two", "--sources", "cache", "--cache", "off"});
  const Json answer = over_room(kPrompt);
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt)["logits_sha256"]);
  const Json* left_out = event_of(answer, "left_out", "two");
  ASSERT_NE(left_out, nullptr) << answer["events"];
  EXPECT_NE((*left_out)["text"].get<std::string>().find("does not take tensors from hosts"),
            std::string::npos)
      << *left_out;
}

TEST_F(RoomHeals, OnlyWhoIsNewIsMeasured) {
  Joined a(at_, {"--name", "one"});
  Joined b(at_, {"--name", "two"});
  EXPECT_EQ(text_of(over_room(kPrompt), "measuring"), "host, one, two");
  Joined c(at_, {"--name", "three"});
  const Json second = over_room(kPrompt);
  EXPECT_EQ(text_of(second, "measuring"), "three") << second["events"];
  EXPECT_EQ(second["logits_sha256"], alone(kPrompt)["logits_sha256"]);
  bool used = false;
  for (const Json& stage : second["stages"]) used = used || stage["peer"] == "three";
  EXPECT_TRUE(used) << second["stages"];
  EXPECT_EQ(event_of(over_room(kPrompt), "measuring"), nullptr);
}

TEST_F(RoomHeals, ErrorsSayWhatHappened) {
  Joined a(at_, {"--name", "small", "--memory", "6M"});
  const Output run = tandem({"run", "--room", at_, "--memory", "0", "--json", kPrompt});
  EXPECT_EQ(run.code, 1);
  const Json short_room = Json::parse(run.out);
  EXPECT_NE(short_room["error"]["message"].get<std::string>().find("is short"), std::string::npos);
  EXPECT_TRUE(short_room["events"].is_array()) << short_room;
  const Output nobody = tandem({"run", "--workers", "127.0.0.1:1", "--json", kPrompt});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(Json::parse(nobody.out)["events"].is_array()) << nobody.out;
  // A worker that dies in the middle, and nobody who may take over.
  auto worker = std::make_unique<WorkerProcess>(Flags{"--models", source("models")});
  Process chat({"chat", "--json", "-q", "--max-tokens", "8", "--no-recovery", "--workers",
                worker->address()});
  chat.write("Hello.\n");
  chat.read_until("}\n");
  worker->process().signal(SIGKILL);
  chat.write("Hello again.\n");
  const Output gone = chat.finish();
  EXPECT_EQ(gone.code, 1);
  const Json error = Json::parse(gone.out.substr(gone.out.find('\n') + 1));
  EXPECT_EQ(error["error"]["kind"], "peer") << error;
  EXPECT_TRUE(error["events"].is_array()) << error;
}

}  // namespace
}  // namespace tandem::cli_test
