// Rooms from one end to the other: a hub, workers that join, and hosts that ask, as processes.
#include "cli/room_process.h"

namespace tandem::cli_test {
namespace {

const std::string kPrompt = "Tell me a story about a fox.";

TEST_F(RoomProcesses, ThreeWorkersOfOneMachineAnswerAsOneProcessDoes) {
  Joined a(at_);
  Joined b(at_);
  Joined c(at_);
  const Json one = alone(kPrompt);
  const Json first = over_room(kPrompt);
  EXPECT_EQ(first["text"], one["text"]);
  EXPECT_EQ(first["logits_sha256"], one["logits_sha256"]);
  EXPECT_EQ(first["tokens"], one["tokens"]);
  EXPECT_TRUE(has_event(first, "measuring"));
  EXPECT_TRUE(has_event(first, "planned"));
  size_t remote = 0;
  for (const Json& stage : first["stages"]) remote += stage["peer"] != "host" ? 1 : 0;
  EXPECT_EQ(remote, 3U) << first["stages"];
  // What was measured is known the second time.
  const Json second = over_room(kPrompt);
  EXPECT_EQ(second["logits_sha256"], one["logits_sha256"]);
  EXPECT_FALSE(has_event(second, "measuring"));
  const Json seen = view();
  ASSERT_EQ(seen["devices"].size(), 4U) << "three devices that lend, and the one that asks";
  size_t layers = 0;
  for (const Json& device : seen["devices"]) {
    if (!device["lends"]) continue;
    EXPECT_TRUE(device["takes_work"]) << device;
    EXPECT_TRUE(device["placement"].contains("ms_per_pass")) << device;
    EXPECT_GT(device["placement"]["bytes_received"], 0) << device;
    layers += device["placement"]["layers"].get<std::string>().empty() ? 0 : 1;
  }
  EXPECT_EQ(layers, 3U);
  EXPECT_TRUE(seen["turn"].is_null()) << "nobody asks any more";
}

TEST_F(RoomProcesses, APlanWithoutLoading) {
  Joined a(at_, {"--name", "attic", "--memory", "50M"});
  const Json plan = Json::parse(tandem_ok({"plan", "--room", code_, "--json", "--memory", "40M"}));
  EXPECT_GT(plan["predicted_tokens_per_second"], 0);
  bool named = false;
  for (const Json& stage : plan["stages"]) named = named || stage["device"] == "attic";
  EXPECT_TRUE(named) << plan;
  EXPECT_EQ(plan["objective"], "memory");
}

TEST_F(RoomProcesses, AShortRoomSaysSoBeforeAnythingIsLoaded) {
  Joined a(at_, {"--name", "small", "--memory", "46M"});
  const Output plan = tandem({"plan", "--room", code_, "--json", "--memory", "0"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  const Json found = Json::parse(plan.out);
  ASSERT_TRUE(found.contains("short")) << found;
  EXPECT_EQ(found["short"]["layers_needed"], 12);
  EXPECT_LT(found["short"]["layers_held"], 12);
  EXPECT_GT(found["short"]["layers_held"], 0);
  EXPECT_GT(found["short"]["bytes_short"], 0);
  bool could = false;
  for (const Json& lender : found["short"]["could_lend"]) could |= lender["device"] == "small";
  EXPECT_TRUE(could) << found;
  const Output run = tandem({"run", "--room", code_, "--memory", "0", kPrompt});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("is short"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("of 12 layers fit"), std::string::npos) << run.err;
  a.process().signal(SIGTERM);
  const Output worker = a.process().finish();
  EXPECT_EQ(worker.code, 0) << worker.err;
  EXPECT_EQ(worker.err.find("loading"), std::string::npos) << worker.err;
}

TEST_F(RoomProcesses, LinksComeFromFilesAndStandardInput) {
  Process worker({"worker", "--join", "-", "--threads", "1", "--name", "piped"});
  worker.write(link_ + "\n");
  worker.close_input();
  worker.read_error_until("piped has joined");
  Process run({"run", "--room", "-", "--json", "--max-tokens", "4", "--memory", "64M", kPrompt});
  run.write(link_);
  const Output answer = run.finish();
  EXPECT_EQ(answer.code, 0) << answer.err << answer.out;
  // No process shows the key.
  const std::string key = link_.substr(link_.find("k=") + 2, 22);
  const std::string shown = read_file("/proc/" + std::to_string(worker.pid()) + "/cmdline");
  EXPECT_EQ(shown.find(key), std::string::npos);
  EXPECT_EQ(answer.err.find(key), std::string::npos);
}

TEST_F(RoomProcesses, WrongLinksAreRefused) {
  std::string wrong = link_;
  char& digit = wrong[wrong.find("k=") + 3];
  digit = digit == 'A' ? 'B' : 'A';
  const Output worker = tandem({"worker", "--join", wrong});
  EXPECT_EQ(worker.code, 1);
  EXPECT_NE(worker.err.find("the link's key is not that of the room"), std::string::npos)
      << worker.err;
  EXPECT_EQ(worker.err.find(wrong.substr(wrong.find("k=") + 2, 22)), std::string::npos);
  const Output run = tandem({"run", "--room", wrong, kPrompt});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("the link's key is not that of the room"), std::string::npos) << run.err;
  const Output malformed = tandem({"run", "--room", "https://x/room/??", kPrompt});
  EXPECT_EQ(malformed.code, 1);
  const Output unknown = tandem({"worker", "--join", "222222"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.err.find("no room of that code"), std::string::npos) << unknown.err;
  // Still good after that.
  Joined right(at_);
}

TEST_F(RoomProcesses, AWorkerWithoutAKeyIsNoDeviceOfTheRoom) {
  Joined a(at_, {"--name", "member"});
  const std::string printed = a.process().read_until("\n");
  std::string port = printed.substr(printed.rfind(':') + 1);
  port.erase(port.find('\n'));
  // Who comes without the key, and who has another one.
  const Output plain = tandem({"run", "--workers", "127.0.0.1:" + port, kPrompt});
  EXPECT_EQ(plain.code, 1);
  EXPECT_NE(plain.err.find("prove the room's key"), std::string::npos) << plain.err;
  std::ofstream(folder_ + "/key") << "00112233445566778899aabbccddeeff\n";
  const Output other =
      tandem({"run", "--workers", "127.0.0.1:" + port, "--key", folder_ + "/key", kPrompt});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("another room's key"), std::string::npos) << other.err;
}

TEST_F(RoomProcesses, ACodeAloneWaitsInTheLobby) {
  const std::vector<std::string> stranger{other_home("stranger")};
  Process asks({"join", code_, "--hub", address_, "--json"}, stranger);
  asks.read_error_until("waiting in the lobby");
  Json lobby;
  wait_for_view([&](const Json& room) {
    lobby = room["lobby"];
    return !lobby.empty();
  });
  tandem_ok({"room", code_, "--allow", lobby[0]["device"]});
  const Output joined = asks.finish();
  ASSERT_EQ(joined.code, 0) << joined.err;
  EXPECT_EQ(Json::parse(joined.out)["code"], code_);
  // It has the room's key from the host now, and names the room by its code.
  Joined worker(code_, {"--name", "guest"}, stranger);
  Process run({"run", "--room", code_, "--json", "--max-tokens", "4", "--memory", "64M", kPrompt},
              stranger);
  const Output answer = run.finish();
  ASSERT_EQ(answer.code, 0) << answer.err << answer.out;
  EXPECT_EQ(Json::parse(answer.out)["logits_sha256"], alone(kPrompt, "4")["logits_sha256"]);
  // One that is denied.
  Process other({"join", code_, "--hub", address_}, {other_home("other")});
  other.read_error_until("waiting in the lobby");
  wait_for_view([&](const Json& room) {
    lobby = room["lobby"];
    return !lobby.empty();
  });
  tandem_ok({"room", code_, "--deny", lobby[0]["device"]});
  const Output denied = other.finish();
  EXPECT_EQ(denied.code, 1);
  EXPECT_NE(denied.err.find("said no"), std::string::npos) << denied.err;
}

TEST_F(RoomProcesses, APausedDeviceIsLeftOutWithTheReason) {
  Joined a(at_, {"--name", "one"});
  Joined b(at_, {"--name", "two"});
  tandem_ok({"settings", "--name", "two", "--pause"});
  b.process().read_error_until("takes no work: ");
  const Json answer = over_room(kPrompt);
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt)["logits_sha256"]);
  bool said = false;
  for (const Json& event : answer["events"]) {
    said = said || (event["kind"] == "left_out" && event["peer"] == "two" &&
                    event["text"].get<std::string>().find("paused") != std::string::npos);
  }
  EXPECT_TRUE(said) << answer["events"];
  tandem_ok({"settings", "--name", "two", "--resume"});
  b.process().read_error_until("takes work\n");
  wait_for_view([](const Json& room) {
    for (const Json& device : room["devices"]) {
      if (device["name"] == "two") return device["takes_work"].get<bool>();
    }
    return false;
  });
  const Json after = over_room(kPrompt);
  bool used = false;
  for (const Json& stage : after["stages"]) used = used || stage["peer"] == "two";
  EXPECT_TRUE(used) << after["stages"];
}

TEST_F(RoomProcesses, AFileSaysWhatIsLent) {
  const std::string file = folder_ + "/lend.toml";
  std::ofstream(file) << "memory = 100000000\n";
  Joined a(at_, {"--name", "one", "--settings", file});
  wait_for_view([](const Json& room) {
    for (const Json& device : room["devices"]) {
      // What the program takes itself is no loan.
      if (device["name"] == "one")
        return device["memory"] > 50000000 && device["memory"] < 90000000;
    }
    return false;
  });
  std::ofstream(file) << "paused = true\n";
  a.process().read_error_until("takes no work: ");
  std::ofstream(file) << "nonsense\n";
  a.process().read_error_until("its settings file can't be read");
  const Output wrong = tandem({"worker", "--join", at_, "--settings", file});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_NE(wrong.err.find("lend.toml"), std::string::npos) << wrong.err;
}

TEST_F(RoomProcesses, AnAnswerGoesOnWhileTheHubIsAway) {
  Joined a(at_, {"--name", "one"});
  Joined b(at_, {"--name", "two"});
  Process chat({"chat", "--room", at_, "--json", "--memory", "64M", "--max-tokens", "24", "-q"});
  chat.write("Tell me a story.\n");
  const Json before = Json::parse(chat.read_until("}\n"));
  const std::string listen = "127.0.0.1:" + port();
  hub_->signal(SIGKILL);
  hub_.reset();
  chat.write("And another one.\n");
  const std::string during = chat.read_until("\"finish\":\"length\",\"logits_sha256\"");
  start_hub(listen);
  chat.write("One more.\n");
  const Output rest = chat.finish();
  EXPECT_EQ(rest.code, 0) << rest.err << rest.out;
  const std::string all = during + rest.out;
  EXPECT_EQ(std::count(rest.out.begin(), rest.out.end(), '\n'), 3) << rest.out;
  // The devices are still of the room, and take work once the hub has heard of them again.
  wait_for_view([](const Json& room) {
    size_t able = 0;
    for (const Json& device : room["devices"]) able += device["takes_work"] ? 1 : 0;
    return able == 2;
  });
  const Json after = over_room(kPrompt);
  EXPECT_EQ(after["logits_sha256"], alone(kPrompt)["logits_sha256"]);
  size_t remote = 0;
  for (const Json& stage : after["stages"]) remote += stage["peer"] != "host" ? 1 : 0;
  EXPECT_EQ(remote, 2U) << after;
}

TEST_F(RoomProcesses, AWorkerThatDiesIsReplacedByTheOthers) {
  auto a = std::make_unique<Joined>(at_, std::vector<std::string>{"--name", "one"});
  Joined b(at_, {"--name", "two"});
  const Json expected =
      Json::parse(tandem_ok({"chat", "--json", "--max-tokens", "100"}, "Tell me a story.\n"));
  Process chat({"chat", "--room", at_, "--json", "--memory", "64M", "--max-tokens", "100"});
  chat.write("Tell me a story.\n");
  // Both hold layers by now, and the answer may be at any token.
  wait_for_view([](const Json& room) {
    size_t ready = 0;
    for (const Json& device : room["devices"]) {
      ready += device.contains("placement") && device["placement"].contains("state") ? 1 : 0;
    }
    return ready == 2;
  });
  a->process().signal(SIGKILL);
  chat.write("And now a very long one, please.\n");
  const Output answers = chat.finish();
  EXPECT_EQ(answers.code, 0) << answers.err << answers.out;
  const auto end = answers.out.find('\n');
  ASSERT_NE(end, std::string::npos) << answers.out;
  const Json first = Json::parse(answers.out.substr(0, end));
  const Json second = Json::parse(answers.out.substr(end + 1));
  EXPECT_EQ(first["logits_sha256"], expected["logits_sha256"]);
  EXPECT_TRUE(has_event(first, "lost") || has_event(second, "lost")) << answers.out;
  EXPECT_TRUE(has_event(first, "replanned") || has_event(second, "replanned")) << answers.out;
}

TEST_F(RoomProcesses, OneAsksAtATime) {
  Joined a(at_, {"--name", "one"});
  Process chat({"chat", "--room", at_, "--json", "--memory", "64M", "--max-tokens", "4", "-q"});
  chat.write("Hello.\n");
  chat.read_until("}\n");
  Process run({"run", "--room", at_, "--json", "--max-tokens", "4", "--memory", "64M", kPrompt});
  run.read_error_until("waiting for another process of this device");
  chat.close_input();
  EXPECT_EQ(chat.finish().code, 0);
  const Output answer = run.finish();
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_TRUE(has_event(Json::parse(answer.out), "waiting"));
}

TEST_F(RoomProcesses, AWorkerThatStopsLeaves) {
  auto a = std::make_unique<Joined>(at_, std::vector<std::string>{"--name", "one"});
  Joined b(at_, {"--name", "two"});
  const Output twice = tandem({"worker", "--join", at_, "--name", "one"});
  EXPECT_EQ(twice.code, 1);
  EXPECT_NE(twice.err.find("a worker called one runs here already"), std::string::npos);
  a->process().signal(SIGTERM);
  EXPECT_EQ(a->process().finish().code, 0);
  const Json room = view();
  for (const Json& device : room["devices"]) EXPECT_NE(device["name"], "one");
  // It comes back as the same device.
  a = std::make_unique<Joined>(at_, std::vector<std::string>{"--name", "one"});
  const Json answer = over_room(kPrompt);
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt)["logits_sha256"]);
}

}  // namespace
}  // namespace tandem::cli_test
