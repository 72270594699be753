// Memory: a load never needs much more than what stays, and what stays is what `tandem models`
// says.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace tandem::cli_test {
namespace {

namespace fs = std::filesystem;

/// A field of a process's status in bytes.
uint64_t status_of(pid_t pid, const std::string& field) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "no " << field << " of process " << pid;
  return 0;
}

/// A random model of a known shape, gone at the end.
class Model {
 public:
  Model(const std::string& shape, uint32_t layers) : path_(temporary(shape)) {
    fs::remove_all(path_);
    const std::string command = std::string(TANDEM_BINARY_DIR) + "/make_checkpoint " + shape + " " +
                                path_ + " --layers " + std::to_string(layers) + " > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c)
  }
  ~Model() { fs::remove_all(path_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint64_t stored() const {
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(path_)) bytes += entry.file_size();
    return bytes;
  }
  /// What `tandem models` says that it takes.
  [[nodiscard]] uint64_t said(const std::string& bits, uint32_t context) const {
    const auto found = nlohmann::json::parse(
        tandem_ok({"models", path_, "--json", "--context", std::to_string(context)}));
    const auto& one = found.at("models").at(0);
    return one.at("weights_" + bits).at("total_bytes").get<uint64_t>();
  }

 private:
  std::string path_;
};

// The program itself, tokenizer, buffers of a pass, and of each thread's work on a tensor.
constexpr uint64_t kBeside = uint64_t{90} << 20;

void expect_lean_load(const Model& model, const std::string& bits) {
  constexpr uint32_t kContext = 256;
  const uint64_t said = model.said(bits, kContext);
  // Else a load that keeps the file beside the weights would pass.
  ASSERT_GT(model.stored(), said / 10 + 2 * kBeside);
  Process chat({"chat", "-m", model.path(), "--json", "--cache", "off", "--weights", bits,
                "--threads", "2", "--context", std::to_string(kContext), "--max-tokens", "1"});
  chat.write("Hello\n");
  chat.read_until("}\n");
  const uint64_t peak = status_of(chat.pid(), "VmHWM");
  const uint64_t stays = status_of(chat.pid(), "VmRSS");
  EXPECT_EQ(chat.finish().code, 0);
  EXPECT_LT(peak, said + said / 10 + kBeside) << bits << " bits";
  EXPECT_LT(stays, said + kBeside) << bits << " bits";
  EXPECT_GT(stays, said - said / 10) << bits << " bits";
}

TEST(LoadMemory, ALoadPeaksNearWhatStays) {
  const Model model("smollm2-360m", 20);
  for (const char* bits : {"8", "4"}) expect_lean_load(model, bits);
}

TEST(LoadMemory, SoDoesThatOfAMixtureOfExperts) {
  const Model model("qwen3-moe-7b-a1b", 1);
  for (const char* bits : {"8", "4"}) expect_lean_load(model, bits);

  // Experts that stay on disk are not in memory of its own, at the first start and at the second.
  constexpr uint64_t kExperts = uint64_t{64} * 3 * 2048 * 1024;
  constexpr uint64_t kLimit = uint64_t{40} << 20;
  const std::string cache = temporary("experts");
  fs::remove_all(cache);
  const uint64_t said = model.said("8", 256);
  for (int start = 0; start < 2; ++start) {
    Process chat({"chat", "-m", model.path(), "--json", "--cache", cache, "--threads", "2",
                  "--context", "256", "--max-tokens", "1", "--experts-memory",
                  std::to_string(kLimit)});
    chat.write("Hello\n");
    chat.read_until("}\n");
    EXPECT_LT(status_of(chat.pid(), "VmHWM"), said + said / 10 + kBeside) << "start " << start;
    EXPECT_LT(status_of(chat.pid(), "RssAnon"), said - kExperts + kLimit + kBeside)
        << "start " << start;
    EXPECT_EQ(chat.finish().code, 0);
  }
  fs::remove_all(cache);
}

}  // namespace
}  // namespace tandem::cli_test
