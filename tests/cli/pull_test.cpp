// `tandem pull` and what runs on its models, as processes, against a server that misbehaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "fetch/endpoint.h"

namespace tandem::cli_test {
namespace {

namespace fs = std::filesystem;
using fetch_test::Endpoint;
using fetch_test::Fault;
using fetch_test::Request;
using Json = nlohmann::json;
using Kind = Fault::Kind;

constexpr const char* kWeights = "model.safetensors";
constexpr uint64_t kChunk = uint64_t{4} << 20;

std::map<std::string, std::string> storyteller() {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(source("models/storyteller"))) {
    files[entry.path().filename().string()] = read_file(entry.path().string());
  }
  return files;
}

/// Where the tensors of a layer lie in a file of safetensors: bytes, and those of all tensors whose
/// name has `part`.
uint64_t bytes_of(const std::string& file, const std::string& part) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  uint64_t total = 0;
  const Json header = Json::parse(file.substr(8, length));
  for (const auto& [name, tensor] : header.items()) {
    if (name.find(part) == std::string::npos) continue;
    total += tensor["data_offsets"][1].get<uint64_t>() - tensor["data_offsets"][0].get<uint64_t>();
  }
  return total;
}

class PullTest : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = temporary("pull-cache");
    fs::remove_all(cache_);
    files_ = storyteller();
    endpoint_ = std::make_unique<Endpoint>(files_);
  }
  void TearDown() override {
    endpoint_.reset();
    fs::remove_all(cache_);
  }

  [[nodiscard]] std::vector<std::string> environment() const {
    return {"TANDEM_CACHE=" + cache_, "HF_ENDPOINT=" + endpoint_->url(), "HF_TOKEN="};
  }
  [[nodiscard]] Output run(std::vector<std::string> arguments,
                           std::vector<std::string> more = {}) const {
    const auto usual = environment();
    more.insert(more.end(), usual.begin(), usual.end());
    return Process(arguments, more).finish();
  }
  Json pull(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"pull", "org/name", "--json"});
    const Output output = run(flags);
    EXPECT_EQ(output.code, 0) << output.err << output.out;
    notices_ = output.err;
    return Json::parse(output.out, nullptr, false);
  }
  [[nodiscard]] std::string folder() const { return cache_ + "/models/org/name"; }
  void expect_whole() const {
    for (const auto& [name, bytes] : files_) {
      EXPECT_TRUE(read_file(folder() + "/" + name) == bytes) << name;
    }
  }

  std::string cache_;
  std::map<std::string, std::string> files_;
  std::unique_ptr<Endpoint> endpoint_;
  std::string notices_;
};

TEST_F(PullTest, AModelIsPulledAndRunByItsName) {
  const Output before = run({"run", "-m", "org/name", "-q", "Once"});
  EXPECT_EQ(before.code, 1);
  EXPECT_NE(before.err.find("tandem pull org/name"), std::string::npos) << before.err;
  const Json pulled = pull({});
  EXPECT_EQ(pulled["complete"], true);
  EXPECT_EQ(pulled["commit"], endpoint_->commit);
  EXPECT_EQ(pulled["folder"], fs::canonical(folder()).string());
  expect_whole();
  EXPECT_EQ(endpoint_->repeated(), 0U);
  const Output answer = run({"run", "-m", "org/name", "-q", "--seed", "1", "Once upon a time"});
  const Output own = run({"run", "-q", "--seed", "1", "Once upon a time"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, own.out);
  const Json models = Json::parse(run({"models", "--json"}).out);
  ASSERT_EQ(models["pulled"].size(), 1U);
  EXPECT_EQ(models["pulled"][0]["model"], "org/name");
  EXPECT_EQ(models["pulled"][0]["complete"], true);
  // A second time nothing but one byte moves.
  endpoint_->forget_counts();
  pull({});
  EXPECT_LE(endpoint_->sent(), 1U);
}

TEST_F(PullTest, LayersAloneMoveTheirOwnBytes) {
  const uint64_t own =
      bytes_of(files_[kWeights], ".layers.3.") + bytes_of(files_[kWeights], ".layers.4.");
  const Json pulled = pull({"--layers", "3-4"});
  EXPECT_EQ(pulled["wanted_bytes"], own);
  EXPECT_EQ(pulled["missing_bytes"], 0U);
  EXPECT_EQ(pulled["complete"], false);
  EXPECT_LE(endpoint_->sent(), own + own / 100);
  EXPECT_EQ(endpoint_->repeated(), 0U);
  // What is not there is said, not computed with.
  const Output answer = run({"run", "-m", "org/name", "-q", "Once upon a time"});
  EXPECT_EQ(answer.code, 1);
  const Output tokens = run({"logits", "-m", "org/name", "--tokens", "1,2,3"});
  EXPECT_EQ(tokens.code, 1);
  EXPECT_NE(tokens.err.find("tandem pull org/name"), std::string::npos) << tokens.err;
  // The rest comes without what is there.
  pull({});
  expect_whole();
  EXPECT_EQ(endpoint_->sent(kWeights), files_[kWeights].size());
}

/// Lets a number of chunks through, and then holds the next one in its middle until it is told.
class Gate {
 public:
  Fault pass(const Request& request) {
    if (!request.storage || request.end - request.first < 100'000) return {};
    std::unique_lock lock(mutex_);
    if (left_ > 0) {
      --left_;
      return {};
    }
    // Half a chunk goes, and nothing more.
    blocked_ = true;
    changed_.notify_all();
    return {Kind::kStall, (request.end - request.first) / 2, 0, {}};
  }
  void open(int chunks) {
    const std::lock_guard lock(mutex_);
    left_ = chunks;
    blocked_ = false;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(3), [&] { return blocked_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_ = 0;
  bool blocked_ = false;
};

TEST_F(PullTest, KilledTenTimesItFetchesNothingTwiceButAChunkEach) {
  Gate gate;
  endpoint_->fault = [&](const Request& request) { return gate.pass(request); };
  for (int kill = 0; kill < 10; ++kill) {
    gate.open(1);
    const Process process({"pull", "org/name", "-q"}, environment());
    gate.wait();
    process.signal(SIGKILL);
  }
  gate.open(1000);
  const Json pulled = pull({});
  EXPECT_EQ(pulled["complete"], true);
  expect_whole();
  EXPECT_LE(endpoint_->repeated(), 10 * kChunk);
  EXPECT_LE(endpoint_->sent(kWeights), files_[kWeights].size() + 10 * kChunk);
}

#if defined(TANDEM_HUB)
TEST_F(PullTest, AHubServesWhatWasPulledOnceItIsWhole) {
  const std::string models = temporary("pull-served");
  fs::remove_all(models);
  pull({"--to", models + "/storyteller", "--layers", "0"});
  ::setenv("TANDEM_HOME", (cache_ + "-home").c_str(), 1);
  Process hub({"hub", "--listen", "127.0.0.1:0", "--data", cache_ + "-data", "--models", models,
               "--no-mdns"});
  std::string line = hub.read_until("\n");
  line.erase(line.find_last_not_of('\n') + 1);
  const std::vector<std::string> command{"pull", "storyteller", "--hub",
                                         line.substr(line.rfind(' ') + 1), "--json"};
  const Output partial = run(command);
  EXPECT_EQ(partial.code, 1);
  EXPECT_NE(partial.out.find("no such file"), std::string::npos) << partial.out;
  pull({"--to", models + "/storyteller"});
  const Output whole = run(command);
  EXPECT_EQ(whole.code, 0) << whole.out << whole.err;
  EXPECT_EQ(Json::parse(whole.out)["complete"], true);
  EXPECT_TRUE(read_file(cache_ + "/models/storyteller/" + kWeights) == files_[kWeights]);
  ::unsetenv("TANDEM_HOME");
  for (const std::string& folder : {models, cache_ + "-home", cache_ + "-data"}) {
    fs::remove_all(folder);
  }
}
#endif

TEST_F(PullTest, WrongBytesOfAPeerAreFoundNamedAndFetchedElsewhere) {
  Endpoint peer(files_);
  peer.chunk_hashes = false;
  Endpoint hub(files_);
  peer.fault = [](const Request& request) {
    const bool second = request.file == kWeights && request.first == kChunk;
    return second ? Fault{Kind::kCorrupt, 12345, 0, {}} : Fault();
  };
  const Json pulled = pull({"--sources", "peer,hub", "--peers", peer.url(), "--hub", hub.url()});
  expect_whole();
  EXPECT_EQ(pulled["wrong_pieces"], 1U);
  EXPECT_NE(notices_.find(peer.url() + " gave wrong bytes of model.safetensors, bytes 4194304"),
            std::string::npos)
      << notices_;
  EXPECT_GT(peer.sent(kWeights), files_[kWeights].size() / 2);
  EXPECT_EQ(endpoint_->requests().size(), 0U) << "not allowed";
}

TEST_F(PullTest, WithoutHashesOfChunksTheWholeFilesTells) {
  // The peer's list of chunks is as wrong as its bytes; Hugging Face's hash of the file is right.
  auto poisoned = files_;
  poisoned[kWeights][9'000'000] ^= 1;
  Endpoint peer(poisoned);
  const Json pulled = pull({"--peers", peer.url()});
  expect_whole();
  EXPECT_GE(pulled["wrong_pieces"], 1U);
  EXPECT_NE(notices_.find(peer.url() + " gave wrong bytes of model.safetensors"), std::string::npos)
      << notices_;
  EXPECT_NE(notices_.find("taken from " + endpoint_->url()), std::string::npos) << notices_;
}

TEST_F(PullTest, AWrongByteWithoutAnotherSourceIsAnErrorAndLeavesNothing) {
  endpoint_->fault = [](const Request& request) {
    const bool large = request.storage && request.end - request.first > 100'000;
    return large && request.first > 0 ? Fault{Kind::kCorrupt, 5, 0, {}} : Fault();
  };
  const Output output = run({"pull", "org/name", "-q"});
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.err.find("expected SHA-256"), std::string::npos) << output.err;
  EXPECT_NE(output.err.find(endpoint_->url()), std::string::npos) << output.err;
  endpoint_->fault = nullptr;
  pull({});
  expect_whole();
}

TEST_F(PullTest, CtrlCEndsItAtOnceAndAnotherOneWaitsForNobody) {
  Gate gate;
  endpoint_->fault = [&](const Request& request) { return gate.pass(request); };
  gate.open(1);
  Process process({"pull", "org/name", "--json"}, environment());
  gate.wait();
  const Output second = run({"pull", "org/name", "-q"});
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("another process is fetching"), std::string::npos) << second.err;
  process.signal(SIGINT);
  EXPECT_EQ(process.finish().code, 130);
  gate.open(1000);
  pull({});
  expect_whole();
}

TEST_F(PullTest, ADamagedCacheHeals) {
  pull({});
  {
    std::fstream file(folder() + "/" + kWeights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(20'000'000);
    file.put('\x55').put('\x56').put('\x57');
  }
  {
    std::ofstream file(folder() + "/config.json", std::ios::binary);
    file << "{}";
  }
  const Json pulled = pull({});
  expect_whole();
  EXPECT_GE(pulled["damaged_bytes"], kChunk);
  EXPECT_NE(notices_.find("damaged on this disk"), std::string::npos) << notices_;
}

TEST_F(PullTest, AChangedModelIsNotMixed) {
  Gate gate;
  endpoint_->fault = [&](const Request& request) { return gate.pass(request); };
  gate.open(3);
  {
    const Process process({"pull", "org/name", "-q"}, environment());
    gate.wait();
    process.signal(SIGKILL);
  }
  gate.open(1000);
  std::string& weights = files_[kWeights];
  for (size_t i = weights.size() / 2; i < weights.size(); ++i) weights[i] = static_cast<char>(i);
  endpoint_->change(kWeights, weights);
  endpoint_->commit = std::string(40, 'd');
  const Json pulled = pull({});
  EXPECT_EQ(pulled["commit"], endpoint_->commit);
  EXPECT_NE(notices_.find("another file by now"), std::string::npos) << notices_;
  expect_whole();
}

TEST_F(PullTest, GatedModelsNeedATokenThatIsSeenNowhere) {
  endpoint_->token = "hf_verysecret";
  const Output none = run({"pull", "org/name", "--json"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.out.find("gated"), std::string::npos) << none.out;
  Process process({"pull", "org/name", "--token-file", "-", "--layers", "0"}, environment());
  process.write("hf_verysecret\n");
  const Output given = process.finish();
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_EQ((given.out + given.err).find("verysecret"), std::string::npos);
  for (const auto& entry : fs::recursive_directory_iterator(cache_)) {
    if (!entry.is_regular_file() || entry.file_size() > 1'000'000) continue;
    EXPECT_EQ(read_file(entry.path().string()).find("verysecret"), std::string::npos);
  }
  for (const Request& request : endpoint_->requests()) {
    EXPECT_FALSE(request.storage && request.fields.contains("authorization"));
    EXPECT_EQ((request.path + request.query).find("verysecret"), std::string::npos);
  }
}

TEST_F(PullTest, TheCacheHasALimitButTakesNothingThatIsUsed) {
  pull({});
  // Another model of the same files, under another revision's name.
  const auto other = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"pull", "org/name@v2", "--json", "--limit", "60M"});
    return run(more);
  };
  {
    Process chat({"chat", "-m", "org/name", "-q"}, environment());
    chat.write("Once upon a time\n");
    chat.read_until(" ");
    const Output refused = other({});
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.out.find("bytes more are needed"), std::string::npos) << refused.out;
    EXPECT_TRUE(fs::exists(folder() + "/" + kWeights));
    chat.finish();
  }
  const Output taken = other({});
  EXPECT_EQ(taken.code, 0) << taken.out << taken.err;
  EXPECT_NE(taken.err.find("removed org/name"), std::string::npos) << taken.err;
  EXPECT_FALSE(fs::exists(folder()));
  EXPECT_TRUE(fs::exists(folder() + "@v2/" + std::string(kWeights)));
  EXPECT_EQ(run({"models", "--remove", "org/name@v2"}).code, 0);
  EXPECT_FALSE(fs::exists(folder() + "@v2"));
}

/// A worker that fetches its layers itself, into a cache of its own.
class FetchingWorkerTest : public PullTest {
 protected:
  void SetUp() override {
    PullTest::SetUp();
    const std::string path = temporary("pull.manifest");
    tandem_ok({"models", source("models/storyteller"), "--manifest", path});
    files_["tandem.manifest"] = read_file(path);
    fs::remove(path);
    endpoint_ = std::make_unique<Endpoint>(files_);
  }
  void TearDown() override {
    PullTest::TearDown();
    fs::remove_all(cache_ + "-worker");
  }
  /// Starts a worker; its address is the end of its first line.
  std::unique_ptr<Process> worker(std::vector<std::string> flags, std::string& address) const {
    flags.insert(flags.begin(), {"worker", "--listen", "127.0.0.1:0"});
    auto process = std::make_unique<Process>(
        flags, std::vector<std::string>{"TANDEM_CACHE=" + cache_ + "-worker",
                                        "HF_TOKEN=", "HF_ENDPOINT=" + endpoint_->url()});
    std::string line = process->read_until("\n");
    line.erase(line.find_last_not_of('\n') + 1);
    address = line.substr(line.rfind(' ') + 1);
    return process;
  }
  static std::string end(Process& worker) {
    worker.signal(SIGTERM);
    return worker.finish().err;
  }
};

TEST_F(FetchingWorkerTest, TakesItsLayersFromHuggingFaceForAHostThatHasTheEndsAlone) {
  const Json pulled = pull({"--ends"});
  EXPECT_EQ(pulled["complete"], false);
  endpoint_->forget_counts();
  std::string address;
  const auto lender = worker({"--sources", "cache,huggingface"}, address);
  const Output answer =
      run({"run", "-m", "org/name", "-q", "--seed", "1", "--workers", address, "Once upon a time"});
  EXPECT_EQ(answer.code, 0) << answer.err << end(*lender);
  EXPECT_EQ(answer.out, run({"run", "-q", "--seed", "1", "Once upon a time"}).out);
  const uint64_t own = bytes_of(files_[kWeights], ".layers.");
  EXPECT_GE(endpoint_->sent(kWeights), own);
  EXPECT_LE(endpoint_->sent(kWeights), own + own / 100);
  EXPECT_EQ(endpoint_->repeated(), 0U);
}

TEST_F(FetchingWorkerTest, WrongBytesAreFoundByTheHostsManifest) {
  // A hub whose bytes and hashes of chunks are wrong: only the host's manifest tells.
  auto poisoned = files_;
  const std::string& weights = files_[kWeights];
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const Json list = Json::parse(weights.substr(8, header));
  std::string tensor;
  for (const auto& [name, entry] : list.items()) {
    if (name.find(".layers.2.mlp.") != std::string::npos) tensor = name;
  }
  ASSERT_FALSE(tensor.empty());
  poisoned[kWeights][8 + header + list[tensor]["data_offsets"][0].get<uint64_t>()] ^= 1;
  Endpoint hub(poisoned);
  // The model server knows models by their names alone.
  const std::string model = temporary("pull-host") + "/name";
  fs::create_directories(model);
  for (const auto& [name, bytes] : files_) {
    std::ofstream(model + "/" + name, std::ios::binary) << bytes;
  }
  const std::vector<std::string> command{
      "run", "-m", model, "-q", "--seed", "1", "Once upon a time", "--workers"};
  std::string address;
  {
    const auto lender = worker({"--sources", "cache,hub", "--hub", hub.url()}, address);
    auto arguments = command;
    arguments.push_back(address);
    const Output refused = run(arguments);
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("expected SHA-256"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find(tensor), std::string::npos) << refused.err;
    end(*lender);
  }
  const auto lender = worker({"--sources", "cache,hub,host", "--hub", hub.url()}, address);
  auto arguments = command;
  arguments.push_back(address);
  const Output answer = run(arguments);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, run({"run", "-q", "--seed", "1", "Once upon a time"}).out);
  const std::string said = end(*lender);
  EXPECT_NE(said.find("taken from the host"), std::string::npos) << said;
  EXPECT_GT(hub.sent(kWeights), bytes_of(weights, ".layers.") / 2);
  fs::remove_all(fs::path(model).parent_path());
}

}  // namespace
}  // namespace tandem::cli_test
