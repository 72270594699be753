// Where the devices of a room get their weights from: the host, each other, under the room's rule.
// Each worker has a cache of its own.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/room_process.h"
#include "fetch/endpoint.h"

namespace tandem::cli_test {
namespace {

namespace fs = std::filesystem;

const std::string kPrompt = "Tell me a story about a fox.";
constexpr uint64_t kChunk = uint64_t{4} << 20;

class RoomSources : public RoomProcesses {
 protected:
  /// Without spares: they would load what other devices have, too.
  void SetUp() override {
    RoomProcesses::SetUp();
    make_room({"--no-spares"});
  }
  [[nodiscard]] std::string cache(const std::string& name) const {
    return folder_ + "/cache-" + name;
  }
  [[nodiscard]] std::unique_ptr<Joined> worker(const std::string& name,
                                               std::vector<std::string> flags = {},
                                               std::vector<std::string> environment = {}) const {
    flags.insert(flags.end(), {"--name", name});
    environment.push_back("TANDEM_CACHE=" + cache(name));
    return std::make_unique<Joined>(at_, flags, environment);
  }
  static std::string end(Joined& worker) {
    worker.process().signal(SIGTERM);
    return worker.process().finish().err;
  }
  /// All layers on the devices, none on the host.
  Json run(const std::string& tokens = "4") const {
    return Json::parse(tandem_ok(
        {"run", "--room", at_, "--json", "--max-tokens", tokens, "--memory", "0", kPrompt}));
  }
  /// The folder of tensors that a device has fetched.
  [[nodiscard]] fs::path tensors(const std::string& name) const {
    for (const auto& one : fs::directory_iterator(cache(name) + "/models/by-hash")) {
      if (fs::exists(one.path() / "stage.tensors")) return one.path();
    }
    return {};
  }
  /// Pieces of tensors that a device's journal tells of.
  [[nodiscard]] size_t tensors_begun(const std::string& name) const {
    std::error_code code;
    if (!fs::exists(cache(name) + "/models/by-hash", code)) return 0;
    const fs::path folder = tensors(name);
    if (folder.empty()) return 0;
    size_t count = 0;
    std::istringstream journal(read_file((folder / "tandem.journal").string()));
    for (std::string line; std::getline(journal, line);) {
      count +=
          line.find(" have 2 ") != std::string::npos ? 1 : 0;  // the third file is the tensors'
    }
    return count;
  }
  static const Json* device(const Json& room, const std::string& name) {
    for (const Json& one : room["devices"]) {
      if (one["name"] == name) return &one;
    }
    return nullptr;
  }
  /// Layers of the model that a device says it has the weights of.
  static std::string cached_layers(const Json& room, const std::string& name) {
    const Json* one = device(room, name);
    return one == nullptr || !one->contains("cached") ? "" : (*one)["cached"][0]["layers"];
  }
  /// Bytes of weights that a device has given to others, as it last told the room.
  static uint64_t shared_bytes(const Json& room, const std::string& name) {
    const Json* one = device(room, name);
    return one == nullptr ? 0 : one->value("shared_bytes", uint64_t{0});
  }
  /// The stage of the only device that gets layers.
  static Json planned(std::vector<std::string> plan) {
    plan.emplace_back("--json");
    Json stages = Json::parse(tandem_ok(plan))["stages"];
    EXPECT_EQ(stages.size(), 1U) << stages;
    return stages[0];
  }
  /// A device that holds all layers' weights on its disk and lends too little for any of them.
  std::unique_ptr<Joined> library(const std::vector<std::string>& flags = {}) {
    {
      const auto first = worker("library");
      run();
      wait_for_view([&](const Json& room) { return cached_layers(room, "library") == "0-11"; });
      end(*first);
    }
    auto all = flags;
    all.insert(all.end(), {"--memory", "1M"});
    auto device = worker("library", all);
    wait_for_view([&](const Json& room) { return cached_layers(room, "library") == "0-11"; });
    return device;
  }
  /// Bytes that a worker says it got, by source.
  static std::map<std::string, uint64_t> came_from(const std::string& log) {
    std::map<std::string, uint64_t> bytes;
    std::istringstream lines(log);
    const std::string middle = " bytes of weights came from ";
    for (std::string line; std::getline(lines, line);) {
      const auto at = line.find(middle);
      if (at != std::string::npos) bytes[line.substr(at + middle.size())] += std::stoull(line);
    }
    return bytes;
  }
  /// Bytes of the tensors of all layers.
  static uint64_t layers_bytes() {
    const std::string file = read_file(source("models/storyteller/model.safetensors"));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    uint64_t total = 0;
    const Json header = Json::parse(file.substr(8, length));
    for (const auto& [name, tensor] : header.items()) {
      if (name.find(".layers.") == std::string::npos) continue;
      const Json& place = tensor["data_offsets"];
      total += place[1].get<uint64_t>() - place[0].get<uint64_t>();
    }
    return total;
  }
};

TEST_F(RoomSources, ThreeEmptyWorkersGetTheirLayersFromTheHost) {
  auto a = worker("a");
  auto b = worker("b");
  auto c = worker("c");
  const Json one = alone(kPrompt);
  const Json first = over_room(kPrompt);
  EXPECT_EQ(first["logits_sha256"], one["logits_sha256"]);
  size_t remote = 0;
  for (const Json& stage : first["stages"]) remote += stage["peer"] != "host" ? 1 : 0;
  EXPECT_EQ(remote, 3U) << first["stages"];
  EXPECT_TRUE(has_event(first, "ready"));
  // All of them have told the room what they hold now.
  wait_for_view([&](const Json& room) {
    return !cached_layers(room, "a").empty() && !cached_layers(room, "b").empty() &&
           !cached_layers(room, "c").empty();
  });
  for (const char* name : {"a", "b", "c"}) EXPECT_FALSE(tensors(name).empty()) << name;
  // Started again they load from their own disks.
  const std::string log = end(*a) + end(*b) + end(*c);
  EXPECT_GT(came_from(log)["host"], 0U) << log;
  a = worker("a");
  b = worker("b");
  c = worker("c");
  const Json second = over_room(kPrompt);
  EXPECT_EQ(second["logits_sha256"], one["logits_sha256"]);
  const std::string again = end(*a) + end(*b) + end(*c);
  EXPECT_EQ(came_from(again)["host"], 0U) << again;
}

TEST_F(RoomSources, APeerGivesWhatItHasAndNothingTwice) {
  auto giver = library();
  auto taker = worker("taker");
  const std::vector<std::string> plan{"plan", "--room", at_, "--memory", "0"};
  const Json answer = run();
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt, "4")["logits_sha256"]);
  wait_for_view([&](const Json& room) { return cached_layers(room, "taker") == "0-11"; });
  EXPECT_EQ(planned(plan)["cached_layers"], 12);
  EXPECT_NE(tandem_ok(plan).find("12 of 12"), std::string::npos) << tandem_ok(plan);
  auto bytes = came_from(end(*taker));
  const uint64_t own = layers_bytes();
  // What the giver sent, whether it was kept or not.
  uint64_t given = 0;
  wait_for_view([&](const Json& room) { return (given = shared_bytes(room, "library")) >= own; });
  EXPECT_LE(given, own + own / 100);
  EXPECT_EQ(bytes["host"], 0U);
  EXPECT_GE(bytes["peer library"], own);
  EXPECT_LE(bytes["peer library"], own + own / 100);
}

TEST_F(RoomSources, WrongBytesOfAPeerAreFoundNamedAndFetchedElsewhere) {
  auto giver = library();
  const fs::path file = tensors("library") / "stage.tensors";
  // The first tensor of the file, in the middle.
  std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
  std::string some(256, '\0');
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  damage.seekg(middle);
  damage.read(some.data(), static_cast<std::streamsize>(some.size()));
  for (char& byte : some) byte = static_cast<char>(byte ^ 1);
  damage.seekp(middle);
  damage.write(some.data(), static_cast<std::streamsize>(some.size()));
  damage.close();
  auto taker = worker("taker");
  const Json answer = run();
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt, "4")["logits_sha256"]);
  const std::string log = end(*taker);
  EXPECT_NE(log.find("library gave wrong bytes of tensor"), std::string::npos) << log;
  EXPECT_GT(came_from(log)["host"], 0U) << log;
  EXPECT_GT(came_from(log)["peer library"], 0U) << log;
}

TEST_F(RoomSources, APeerThatDiesIsASourceLess) {
  auto giver = library({"--share-rate", "6M"});
  auto taker = worker("taker");
  Process asks({"run", "--room", at_, "--json", "--max-tokens", "4", "--memory", "0", kPrompt});
  // Something came, and not all of it.
  for (int i = 0; i < 600 && tensors_begun("taker") == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  giver->process().signal(SIGKILL);
  const Output out = asks.finish();
  ASSERT_EQ(out.code, 0) << out.err << out.out;
  EXPECT_EQ(Json::parse(out.out)["logits_sha256"], alone(kPrompt, "4")["logits_sha256"]);
  const std::string log = end(*taker);
  EXPECT_GT(came_from(log)["host"], 0U) << log;
}

TEST_F(RoomSources, KilledTenTimesNothingComesTwiceButAChunkEach) {
  auto giver = library({"--share-rate", "12M"});
  for (int kill = 0; kill < 10; ++kill) {
    auto taker = worker("taker");
    Process asks({"run", "--room", at_, "--json", "--max-tokens", "4", "--memory", "0", kPrompt});
    const size_t before = tensors_begun("taker");
    for (int i = 0; i < 1000 && tensors_begun("taker") == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    taker->process().signal(SIGKILL);
    asks.finish();
  }
  auto taker = worker("taker");
  const Json answer = run();
  EXPECT_EQ(answer["logits_sha256"], alone(kPrompt, "4")["logits_sha256"]);
  end(*taker);
  // Each piece that was kept was fetched once.
  std::map<std::string, int> pieces;
  std::istringstream journal(read_file((tensors("taker") / "tandem.journal").string()));
  for (std::string line; std::getline(journal, line);) {
    EXPECT_EQ(line.find(" lost "), std::string::npos) << line;
    if (line.find(" have ") != std::string::npos) {
      std::istringstream words(line);
      std::string check;
      std::string kind;
      std::string file;
      std::string offset;
      words >> check >> kind >> file >> offset;
      EXPECT_EQ(++pieces[file + " " + offset], 1) << line;
    }
  }
  const uint64_t own = layers_bytes();
  uint64_t given = 0;
  wait_for_view([&](const Json& room) { return (given = shared_bytes(room, "library")) >= own; });
  EXPECT_LE(given, own + own / 100 + 10 * kChunk);
}

TEST_F(RoomSources, ASpareTakesWhatAnotherStageHasFromAPeer) {
  make_room();  // with spares
  auto giver = library();
  std::map<std::string, std::unique_ptr<Joined>> workers;
  for (const char* name : {"one", "two"}) workers[name] = worker(name, {"--memory", "60M"});
  // One of them gets all layers, and the other one stands by for it.
  Process chat({"chat", "--room", at_, "--json", "--memory", "0", "-q", "--objective", "fastest",
                "--max-tokens", "8"});
  chat.write(kPrompt + "\n");
  chat.read_until("}\n");
  std::map<std::string, std::string> name_of;
  wait_for_view([&](const Json& room) {
    for (const Json& device : room["devices"]) {
      if (device.contains("placement")) {
        name_of[device["placement"].value("state", "")] = device["name"];
      }
    }
    return workers.contains(name_of["spare"]) && workers.contains(name_of["ready"]);
  });
  ASSERT_NE(name_of["ready"], name_of["spare"]);
  workers[name_of["ready"]]->process().signal(SIGKILL);
  chat.write(kPrompt + "\n");
  const Output answers = chat.finish();
  ASSERT_EQ(answers.code, 0) << answers.err << answers.out;
  const Json last =
      Json::parse(answers.out.substr(answers.out.rfind("\n", answers.out.size() - 2) + 1));
  EXPECT_TRUE(has_event(last, "spare")) << last;
  const std::string expected =
      tandem_ok({"chat", "--json", "-q", "--max-tokens", "8"}, kPrompt + "\n" + kPrompt + "\n");
  EXPECT_EQ(
      last["logits_sha256"],
      Json::parse(expected.substr(expected.rfind("\n", expected.size() - 2) + 1))["logits_sha256"]);
  const std::string log = end(*workers[name_of["spare"]]);
  uint64_t of_peers = 0;
  auto bytes = came_from(log);
  for (const auto& [source, count] : bytes) of_peers += source.starts_with("peer ") ? count : 0;
  EXPECT_EQ(bytes["host"], 0U) << log;
  EXPECT_GE(of_peers, layers_bytes()) << log;
}

TEST_F(RoomSources, ATokenIsTheOwnersToUse) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(source("models/storyteller"))) {
    files[entry.path().filename().string()] = read_file(entry.path().string());
  }
  fetch_test::Endpoint endpoint(files);
  const std::vector<std::string> host{"TANDEM_CACHE=" + cache("host"),
                                      "HF_ENDPOINT=" + endpoint.url(), "HF_TOKEN="};
  const auto of_host = [&](const std::vector<std::string>& arguments) {
    const Output out = Process(arguments, host).finish();
    EXPECT_EQ(out.code, 0) << out.err << out.out;
    return out.out;
  };
  of_host({"pull", "org/name", "--json"});
  const Json room = Json::parse(
      of_host({"room", "create", "--hub", address_, "-m", "org/name", "--no-spares", "--objective",
               "memory", "--context", "256", "--sources", "cache,huggingface", "--json"}));
  link_ = room["link"];
  code_ = room["code"];
  std::ofstream(folder_ + "/link") << link_ << "\n";
  const auto tokens_sent = [&](const std::string& name, const std::vector<std::string>& flags) {
    endpoint.forget_counts();
    auto device = worker(name, flags, {"HF_ENDPOINT=" + endpoint.url(), "HF_TOKEN=hf_secret"});
    of_host({"run", "--room", at_, "-m", "org/name", "--json", "--max-tokens", "4", "--memory", "0",
             kPrompt});
    const std::string log = end(*device);
    EXPECT_EQ(log.find("hf_secret"), std::string::npos) << log;
    EXPECT_GE(endpoint.sent("model.safetensors"), layers_bytes()) << log;
    const auto requests = endpoint.requests();
    return std::count_if(requests.begin(), requests.end(), [](const fetch_test::Request& one) {
      return one.fields.contains("authorization");
    });
  };
  EXPECT_EQ(tokens_sent("one", {}), 0);
  EXPECT_GT(tokens_sent("two", {"--sources", "cache,huggingface"}), 0);
}

TEST_F(RoomSources, TheRoomsRuleIsHeld) {
  make_room({"--no-spares", "--sources", "cache,host"});
  EXPECT_EQ(view()["sources"], Json({"cache", "host"}));
  {
    auto giver = library();
    auto taker = worker("taker");
    run();
    auto bytes = came_from(end(*taker));
    EXPECT_EQ(bytes["peer library"], 0U) << "never from a peer";
    EXPECT_GT(bytes["host"], 0U);
  }
  // Never from the host either: there is nowhere else.
  make_room({"--no-spares", "--sources", "cache,peer"});
  const auto lonely = worker("lonely");
  const Output refused = tandem({"run", "--room", at_, "--memory", "0", kPrompt});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("none of the sources allowed"), std::string::npos) << refused.err;
  EXPECT_EQ(tandem({"worker", "--join", at_, "--share-rate", "1K"}).code, 2);
  const Output wrong = tandem({"room", "create", "--hub", address_, "--sources", "friends"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_NE(wrong.err.find("is no source"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace tandem::cli_test
