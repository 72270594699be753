// A device of a room that becomes slow.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <utility>

#include "cli/room_process.h"
#include "model/stage.h"
#include "room/agent.h"
#include "room/device_folder.h"

namespace tandem::cli_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const std::string kTale = "Tell me a story about a fox.";

/// A real stage whose passes of one token take 4 ms at least, so that what the machine does beside
/// can't change much of their pace, and 25 times what they took on the mean once a file is there.
class PacedStage final : public model::Stage {
 public:
  PacedStage(std::unique_ptr<model::Stage> stage, std::filesystem::path slow)
      : stage_(std::move(stage)), slow_(std::move(slow)) {}

  std::unique_ptr<model::Sequence> new_sequence(uint32_t context) override {
    return stage_->new_sequence(context);
  }
  Status run(model::Sequence& sequence, uint32_t position, model::HiddenStates& hidden) override {
    const auto start = Clock::now();
    TANDEM_TRY(stage_->run(sequence, position, hidden));
    if (hidden.tokens() != 1) return {};
    if (!std::filesystem::exists(slow_)) {
      std::this_thread::sleep_until(start + kLeast);
      took_ += Clock::now() - start;
      ++passes_;
      return {};
    }
    const Clock::duration usual = took_ / std::max<int64_t>(passes_, 1);
    // Far from where a pass counts as hung.
    std::this_thread::sleep_until(start + std::min<Clock::duration>(25 * usual, 1s));
    return {};
  }
  [[nodiscard]] const model::StageOptions& options() const override { return stage_->options(); }
  [[nodiscard]] uint64_t bytes() const override { return stage_->bytes(); }

 private:
  static constexpr auto kLeast = 4ms;
  std::unique_ptr<model::Stage> stage_;
  std::filesystem::path slow_;
  Clock::duration took_{0};
  int64_t passes_ = 0;
};

/// What `tandem worker --join` runs, with such stages.
TEST(PacedDevice, DISABLED_Lend) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    return std::string(value == nullptr ? "" : value);
  };
  const std::string slow = variable("PACED_SLOW");
  auto folder = room::DeviceFolder::take(hub::Home::usual_folder(), variable("PACED_NAME"), "");
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  auto home = hub::Home::open(folder->path());
  ASSERT_TRUE(home.ok()) << home.error().message;
  auto way = room::find_way(*home, variable("PACED_LINK"));
  ASSERT_TRUE(way.ok()) << way.error().message;
  room::AgentOptions options;
  options.name = folder->name();
  options.worker.listen = "0.0.0.0:0";
  options.worker.load =
      [slow](const model::ModelConfig& config, const model::StageOptions& stage,
             weights::TensorSource& source,
             const model::LoadProgress& progress) -> Result<std::unique_ptr<model::Stage>> {
    TANDEM_ASSIGN(auto real, model::Stage::load(config, stage, source, progress));
    return std::unique_ptr<model::Stage>(std::make_unique<PacedStage>(std::move(real), slow));
  };
  auto agent = room::Agent::start(std::move(*home), std::move(*way), std::move(options));
  ASSERT_TRUE(agent.ok()) << agent.error().message;
  std::cerr << folder->name() << " has joined" << std::endl;
  // Until the test ends it, or is ended itself.
  for (char c = 0; std::cin.get(c);) continue;
}

class RoomSlow : public RoomProcesses {
 protected:
  /// This test program once more, as a device.
  struct Device {
    Device(const RoomSlow& room, const std::string& name)
        : slow(room.folder_ + "/slow-" + name),
          process({"--gtest_filter=PacedDevice.DISABLED_Lend", "--gtest_also_run_disabled_tests"},
                  {"PACED_NAME=" + name, "PACED_SLOW=" + slow, "PACED_LINK=" + room.link_},
                  "/proc/self/exe") {
      process.read_error_until(" has joined");
    }
    std::string slow;  ///< the file that makes it slow
    Process process;
  };
  static Json ask(Process& chat) {
    chat.write("/new\n" + kTale + "\n");
    const std::string line = chat.read_line();
    Json answer = Json::parse(line, nullptr, false);
    EXPECT_TRUE(answer.is_object() && answer.contains("logits_sha256")) << line;
    return answer.is_object() ? answer : Json::object();
  }
};

TEST_F(RoomSlow, ASlowDeviceGetsNoLayersAfterTheAnswer) {
  const Device one(*this, "one");
  const Device two(*this, "two");
  const std::string hash = alone(kTale, "30")["logits_sha256"];
  Process chat({"chat", "--room", at_, "--json", "--memory", "64M", "--max-tokens", "30"});
  // What it does at its usual speed has to be seen first: several answers of which the host is told
  // twice a second.
  const auto until = Clock::now() + 4s;
  for (int i = 0; i < 5 || Clock::now() < until; ++i) {
    const Json answer = ask(chat);
    ASSERT_EQ(answer["logits_sha256"], hash);
    ASSERT_FALSE(has_event(answer, "slow")) << answer["events"];
  }
  std::ofstream(one.slow).close();
  Json answer = Json::object();
  for (const auto patience = Clock::now() + 120s;
       event_of(answer, "slow", "one") == nullptr && Clock::now() < patience;) {
    answer = ask(chat);
    ASSERT_EQ(answer["logits_sha256"], hash);
    EXPECT_FALSE(has_event(answer, "replanned")) << answer["events"];
  }
  ASSERT_NE(event_of(answer, "slow", "one"), nullptr) << answer["events"];
  chat.read_error_until("dealt anew after this answer");
  answer = ask(chat);
  EXPECT_EQ(answer["logits_sha256"], hash);
  EXPECT_NE(event_of(answer, "replanned", "one"), nullptr) << answer["events"];
  EXPECT_NE(text_of(answer, "left_out", "one").find("slow"), std::string::npos) << answer["events"];
  const std::string planned = text_of(answer, "planned");
  EXPECT_NE(planned.find("two"), std::string::npos) << answer["events"];
  EXPECT_EQ(planned.find("one"), std::string::npos) << answer["events"];
  EXPECT_FALSE(has_event(answer, "lost")) << answer["events"];
  std::filesystem::remove(one.slow);
  ASSERT_EQ(chat.finish().code, 0);
  // The next one that asks measures it again, and it is as fast as it was.
  const Json next = over_room(kTale);
  EXPECT_EQ(text_of(next, "measuring"), "one") << next["events"];
  EXPECT_NE(text_of(next, "planned").find("one"), std::string::npos) << next["events"];
}

}  // namespace
}  // namespace tandem::cli_test
