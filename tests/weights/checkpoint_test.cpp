#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "tests/weights/files.h"
#include "weights/dtype.h"
#include "weights/shard_index.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

std::string one_tensor(std::string_view name, std::string_view data) {
  return safetensors("{\"" + std::string(name) + R"(":{"dtype":"BF16","shape":[)" +
                         std::to_string(data.size() / 2) + R"(],"data_offsets":[0,)" +
                         std::to_string(data.size()) + "]}}",
                     data);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr const char* kIndex = "model.safetensors.index.json";

/// A folder with config.json and two shards of one tensor each, and an index that is wrong in the
/// way a test wants.
class Sharded {
 public:
  explicit Sharded(std::string_view index) {
    write_file(folder_ / "config.json", "{}");
    write_file(folder_ / "m-1.safetensors", one_tensor("a", "AAAA"));
    write_file(folder_ / "m-2.safetensors", one_tensor("b", "BB"));
    write_file(folder_ / kIndex, index);
  }
  [[nodiscard]] Result<std::unique_ptr<Checkpoint>> open() const {
    return Checkpoint::open(folder_.path());
  }
  [[nodiscard]] fs::path operator/(std::string_view name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

constexpr const char* kGoodIndex =
    R"({"metadata":{"total_size":6},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";

TEST(Checkpoint, ReadsTheReferenceModels) {
  for (const char* name : {"llama", "llama-tied", "mistral", "qwen2", "qwen3", "gpt2", "gemma3",
                           "phi3", "olmo2", "smollm3", "granite"}) {
    SCOPED_TRACE(name);
    auto checkpoint = Checkpoint::open(source_path("tests/data/oracle") / name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_NE((*checkpoint)->config_json().find("\"vocab_size\": 512"), std::string::npos);
    for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
      const auto data = (*checkpoint)->read(tensor.name);
      ASSERT_TRUE(data.ok()) << data.error().message;
      EXPECT_EQ(data->bytes.size(), tensor.bytes());
      EXPECT_TRUE(check_finite(*data).ok());
    }
  }
}

TEST(Checkpoint, ReadsTheStoryteller) {
  auto checkpoint = Checkpoint::open(source_path("models/storyteller"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  uint64_t elements = 0;
  for (const TensorInfo& tensor : (*checkpoint)->tensors()) elements += tensor.elements();
  EXPECT_EQ(elements, 22'031'232u);
  const TensorInfo* embedding = (*checkpoint)->find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (std::vector<uint64_t>{8192, 384}));
  EXPECT_EQ((*checkpoint)->find("lm_head.weight"), nullptr);
  const auto missing = (*checkpoint)->read("lm_head.weight");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(missing.error().message.find("no tensor lm_head.weight"), std::string::npos);
}

TEST(Checkpoint, ReadsShards) {
  const Sharded folder(kGoodIndex);
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  ASSERT_EQ((*checkpoint)->tensors().size(), 2u);
  EXPECT_EQ((*checkpoint)->tensors()[0].name, "a");
  EXPECT_EQ(text_of((*checkpoint)->read("a")->bytes), "AAAA");
  EXPECT_EQ(text_of((*checkpoint)->read("b")->bytes), "BB");
  EXPECT_EQ((*checkpoint)->bytes(), 6u);
  EXPECT_EQ((*checkpoint)->unlisted(), 0u);
}

TEST(Checkpoint, PrefersTheSingleFileAsTransformersDoes) {
  const Sharded folder(kGoodIndex);
  write_file(folder / "model.safetensors", one_tensor("single", "xx"));
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_NE((*checkpoint)->find("single"), nullptr);
  EXPECT_EQ((*checkpoint)->find("a"), nullptr);
}

TEST(Checkpoint, LeavesOutTensorsThatTheIndexDoesNotName) {
  const Sharded folder(R"({"weight_map":{"b":"m-2.safetensors"}})");
  write_file(folder / "m-2.safetensors",
             safetensors(R"({"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                         R"("extra":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})",
                         "BBxx"));
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->tensors().size(), 1u);
  EXPECT_EQ((*checkpoint)->unlisted(), 1u);
  EXPECT_EQ((*checkpoint)->read("extra").error().kind, ErrorKind::kNotFound);
}

TEST(Checkpoint, TakesTheTensorFromTheShardThatTheIndexNames) {
  const Sharded folder(R"({"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors"}})");
  const auto both = [](std::string_view data) {
    return safetensors(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})",
                       data);
  };
  write_file(folder / "m-1.safetensors", both("1a1b"));
  write_file(folder / "m-2.safetensors", both("2a2b"));
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(text_of((*checkpoint)->read("a")->bytes), "2a");
  EXPECT_EQ(text_of((*checkpoint)->read("b")->bytes), "1b");
}

TEST(Checkpoint, RefusesEachBadIndexWithOneClearError) {
  const struct {
    const char* what;
    std::string index;
    const char* error;
  } cases[] = {
      {"no JSON", "{", "expected JSON"},
      {"an empty file", "", "expected JSON"},
      {"invalid UTF-8", "{\"weight_map\":{\"a\xff\":\"m-1.safetensors\"}}", "UTF-8"},
      {"deep nesting in the metadata",
       "{\"metadata\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "nested"},
      {"an array", "[]", "expected a JSON object"},
      {"no map", R"({"metadata":{}})", "expected a \"weight_map\", found none"},
      {"a map that is an array", R"({"weight_map":[]})", "\"weight_map\": expected an object"},
      {"an empty map", R"({"weight_map":{}})", "is empty"},
      {"two maps", R"({"weight_map":{"a":"m-1.safetensors"},"weight_map":{}})", "stands twice"},
      {"a tensor twice", R"({"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}})",
       "tensor a stands twice"},
      {"a shard that is a number", R"({"weight_map":{"a":1}})", "tensor a: expected the name"},
      {"a shard above the folder", R"({"weight_map":{"a":"../m-1.safetensors"}})",
       "plain file name that ends in .safetensors, found \"../m-1.safetensors\""},
      {"a shard in a subfolder", R"({"weight_map":{"a":"x/m-1.safetensors"}})", "plain file name"},
      {"an absolute shard", R"({"weight_map":{"a":"/etc/x.safetensors"}})", "plain file name"},
      {"a shard with a backslash", R"({"weight_map":{"a":"..\\m.safetensors"}})",
       "plain file name"},
      {"a shard with NUL", R"({"weight_map":{"a":"m-1\u0000.safetensors"}})", "plain file name"},
      {"a hidden shard", R"({"weight_map":{"a":".safetensors"}})", "plain file name"},
      {"two dots", R"({"weight_map":{"a":".."}})", "plain file name"},
      {"an empty shard name", R"({"weight_map":{"a":""}})", "plain file name"},
      {"another format", R"({"weight_map":{"a":"pytorch_model.bin"}})", "plain file name"},
      {"a shard name of 300 bytes",
       R"({"weight_map":{"a":")" + std::string(300, 'm') + R"(.safetensors"}})", "plain file name"},
      {"a missing shard", R"({"weight_map":{"a":"m-3.safetensors"}})",
       "names m-3.safetensors, which is missing"},
      {"a tensor in another shard", R"({"weight_map":{"a":"m-2.safetensors"}})",
       "m-2.safetensors: expected tensor a"},
      {"a tensor in no shard", R"({"weight_map":{"c":"m-1.safetensors"}})",
       "m-1.safetensors: expected tensor c"},
      {"a tensor with a path as its name", R"({"weight_map":{"../a":"m-1.safetensors"}})",
       "without path parts"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.what);
    const Sharded folder(bad.index);
    const auto checkpoint = folder.open();
    if (checkpoint.ok()) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    EXPECT_NE(checkpoint.error().message.find(bad.error), std::string::npos)
        << checkpoint.error().message;
    EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
  }
}

TEST(Checkpoint, NamesTheShardThatIsBroken) {
  const Sharded folder(kGoodIndex);
  fs::resize_file(folder / "m-2.safetensors", fs::file_size(folder / "m-2.safetensors") - 1);
  const auto checkpoint = folder.open();
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_NE(checkpoint.error().message.find("m-2.safetensors: tensor b"), std::string::npos)
      << checkpoint.error().message;
}

TEST(Checkpoint, RefusesWhatIsNoModelFolder) {
  const TemporaryFolder folder;
  const auto error = [](const fs::path& path) {
    const auto checkpoint = Checkpoint::open(path);
    return checkpoint.ok() ? Error{ErrorKind::kInvalid, "was accepted"} : checkpoint.error();
  };
  EXPECT_EQ(error(folder / "none").kind, ErrorKind::kNotFound);
  EXPECT_NE(error(folder / "none").message.find("no such model folder"), std::string::npos);
  write_file(folder / "file", "x");
  EXPECT_NE(error(folder / "file").message.find("expected a model folder or a GGUF file"),
            std::string::npos);
  EXPECT_EQ(error(folder / "file" / "x").kind, ErrorKind::kNotFound);
  EXPECT_NE(error(folder.path()).message.find("config.json"), std::string::npos);
  EXPECT_EQ(error(folder.path()).kind, ErrorKind::kNotFound);

  write_file(folder / "config.json", "{}");
  EXPECT_NE(error(folder.path()).message.find("found neither"), std::string::npos);
  write_file(folder / "pytorch_model.bin", "x");
  EXPECT_NE(error(folder.path()).message.find("only pytorch_model.bin"), std::string::npos);

  write_file(folder / "config.json", std::string(kMaxConfigBytes + 1, ' '));
  EXPECT_NE(error(folder.path()).message.find("config.json: expected at most 1048576 bytes"),
            std::string::npos);
  fs::remove(folder / "config.json");
  fs::create_directory(folder / "config.json");
  EXPECT_NE(error(folder.path()).message.find("config.json: expected a regular file"),
            std::string::npos);
  fs::remove(folder / "config.json");
  write_file(folder / "config.json", std::string(kMaxConfigBytes, ' '));
  fs::create_symlink(folder / "gone", folder / "model.safetensors");
  EXPECT_NE(error(folder.path()).message.find("model.safetensors: can't open"), std::string::npos);
  fs::remove(folder / "model.safetensors");
  write_file(folder / "model.safetensors", safetensors("{}", ""));
  EXPECT_NE(error(folder.path()).message.find("tensors, found none"), std::string::npos);
}

TEST(Checkpoint, OpensWithABufferThatCanNotBeAWeight) {
  const TemporaryFolder folder;
  write_file(folder / "config.json", "{}");
  write_file(folder / "model.safetensors",
             safetensors(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                         R"("w":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})",
                         "12345678ww"));
  auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->find("ids"), nullptr);
  const auto ids = (*checkpoint)->read("ids");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(ids.error().message.find("model.safetensors: tensor ids: expected F32, F16 or BF16"),
            std::string::npos)
      << ids.error().message;
  EXPECT_EQ(text_of((*checkpoint)->read("w")->bytes), "ww");
}

TEST(Checkpoint, FollowsLinksToFilesAsHubCachesMakeThem) {
  const TemporaryFolder folder;
  write_file(folder / "blobs" / "abc", one_tensor("w", "ww"));
  write_file(folder / "snapshot" / "config.json", "{}");
  fs::create_symlink("../blobs/abc", folder / "snapshot" / "model.safetensors");
  auto checkpoint = Checkpoint::open(folder / "snapshot");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->files()[0]->identity().path, (folder / "blobs" / "abc").string());
}

TEST(Checkpoint, GivesTensorsToManyThreads) {
  auto checkpoint = Checkpoint::open(source_path("tests/data/oracle/qwen3"));
  ASSERT_TRUE(checkpoint.ok());
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<uint64_t> bytes{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
        const auto data = (*checkpoint)->read(tensor.name);
        if (data.ok() && check_finite(*data).ok()) bytes += data->bytes.size();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bytes, 4 * (*checkpoint)->bytes());
}

/// Resident pages of mapped files in bytes (a sanitizer's own memory is not among them).
uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

TEST(Checkpoint, HoldsOneTensorAtATimeInMemory) {
  constexpr uint64_t kTensors = 50;
  constexpr uint64_t kBytes = uint64_t{4} << 20;  // 200 MiB in all
  const TemporaryFolder folder;
  write_file(folder / "config.json", "{}");
  std::vector<StoredTensor> tensors;
  for (uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({"t" + std::to_string(i), StoredType::kF32, {kBytes / 4}});
  }
  auto writer = SafetensorsWriter::create(folder / "model.safetensors", tensors);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  const std::vector<std::byte> block(kBytes, std::byte{1});
  for (uint64_t i = 0; i < kTensors; ++i) ASSERT_TRUE((*writer)->write(block).ok());
  ASSERT_TRUE((*writer)->finish().ok());

  auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  const uint64_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  uint64_t highest = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto data = (*checkpoint)->read(tensor.name);
    ASSERT_TRUE(data.ok());
    ASSERT_TRUE(check_finite(*data).ok());  // touches every page
    highest = std::max(highest, resident_bytes());
  }
  EXPECT_GE(highest, before + kBytes / 2) << "the pages were not touched";
  EXPECT_LT(highest, before + 4 * kBytes);
  EXPECT_LT(resident_bytes(), before + kBytes);
}

}  // namespace
}  // namespace tandem::weights
