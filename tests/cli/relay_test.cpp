// Rooms whose devices can't reach each other: they go through the hub.
#include "cli/room_process.h"

namespace tandem::cli_test {
namespace {

const std::string kPrompt = "Tell me a story about a fox.";

/// Nobody listens there.
const std::vector<std::string> kNowhere{"--address", "127.0.0.1:1"};

std::vector<std::string> unreachable(const std::string& name) {
  std::vector<std::string> flags{"--name", name};
  flags.insert(flags.end(), kNowhere.begin(), kNowhere.end());
  return flags;
}

TEST_F(RoomProcesses, DevicesThatNobodyReachesAnswerThroughTheHub) {
  Joined one(at_, unreachable("one"));
  Joined two(at_, unreachable("two"));
  const Json expected = alone(kPrompt);
  const Json first = over_room(kPrompt);
  EXPECT_EQ(first["text"], expected["text"]);
  EXPECT_EQ(first["logits_sha256"], expected["logits_sha256"]);
  EXPECT_TRUE(has_event(first, "relayed")) << first["events"];
  EXPECT_TRUE(has_event(first, "measuring")) << first["events"];
  size_t placed = 0;
  size_t next = 0;
  const Json seen = view();
  for (const Json& device : seen["devices"]) {
    if (!device.contains("placement")) continue;
    EXPECT_EQ(device["placement"]["way"], "relay") << device;
    next += device["placement"]["next"] == "relay" ? 1 : 0;
    ++placed;
  }
  EXPECT_EQ(placed, 2U) << seen;
  EXPECT_EQ(next, 1U) << "the first one's output goes to the second one through the hub: " << seen;
  EXPECT_NE(tandem_ok({"room", code_}).find("relay, next by relay"), std::string::npos);
  // How fast the relayed links are was measured, and is known the second time.
  const Json second = over_room(kPrompt);
  EXPECT_EQ(second["logits_sha256"], expected["logits_sha256"]);
  EXPECT_FALSE(has_event(second, "measuring")) << second["events"];
}

TEST_F(RoomProcesses, ADeviceThatIsNowhereIsLeftOutWithAllReasons) {
  Joined one(at_, {"--name", "one"});
  Joined two(at_, unreachable("two"));
  two.process().signal(SIGSTOP);
  const Json answer = over_room(kPrompt);
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt)["logits_sha256"]);
  bool said = false;
  for (const Json& event : answer["events"]) {
    const std::string text = event.value("text", "");
    said = said || (event["kind"] == "left_out" && event["peer"] == "two" &&
                    text.find("127.0.0.1:1") != std::string::npos &&
                    text.find("through the hub") != std::string::npos);
  }
  EXPECT_TRUE(said) << answer["events"];
}

TEST_F(RoomProcesses, AnAddressHasToBeOne) {
  const Output wrong = tandem({"worker", "--join", at_, "--address", "nonsense"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("nonsense"), std::string::npos) << wrong.err;
  const Output alone = tandem({"worker", "--address", "127.0.0.1:1"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("--address needs --join"), std::string::npos) << alone.err;
}

}  // namespace
}  // namespace tandem::cli_test
