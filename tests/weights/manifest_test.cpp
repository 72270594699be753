#include "weights/manifest.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "tests/weights/files.h"
#include "weights/manifest_cache.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

/// Keeps every test's cache in a folder of its own.
class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() { ::setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1); }
  ~ManifestTest() override { ::unsetenv("XDG_CACHE_HOME"); }

  [[nodiscard]] size_t cached_entries() const {
    const fs::path folder = manifest_cache_folder();
    if (!fs::exists(folder)) return 0;
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  [[nodiscard]] static fs::path only_entry() {
    return fs::directory_iterator(manifest_cache_folder())->path();
  }

  TemporaryFolder cache_;
  TemporaryFolder folder_;
};
using ModelLibraryTest = ManifestTest;

/// A checkpoint of one BF16 tensor with these bytes.
void write_model(const fs::path& folder, std::string_view data, std::string_view config = "{}",
                 std::string_view tensor = "w") {
  write_file(folder / "config.json", config);
  write_file(folder / "model.safetensors",
             safetensors("{\"" + std::string(tensor) + R"(":{"dtype":"BF16","shape":[)" +
                             std::to_string(data.size() / 2) + R"(],"data_offsets":[0,)" +
                             std::to_string(data.size()) + "]}}",
                         data));
}

std::unique_ptr<Checkpoint> open(const fs::path& folder) {
  auto checkpoint = Checkpoint::open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
}

Manifest manifest_of(const fs::path& folder) {
  auto manifest = make_manifest(*open(folder), 2, {});
  EXPECT_TRUE(manifest.ok()) << manifest.error().message;
  return manifest.ok() ? std::move(*manifest) : Manifest{};
}

/// Long enough that files written before are no longer too young to be trusted by the cache.
void let_files_age() {
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

/// A progress function that counts its calls, to see whether a model was hashed.
struct Counter {
  int calls = 0;
  HashProgress progress() {
    return [this](uint64_t, uint64_t) {
      ++calls;
      return true;
    };
  }
};

TEST_F(ManifestTest, HashesConfigAndEveryTensorWhateverTheThreads) {
  const auto checkpoint = open(source_path("tests/data/oracle/llama"));
  ::unsetenv("HOME");
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // counts as not set: nothing is kept
  const auto one = make_manifest(*checkpoint, 1, {});
  const auto four = make_manifest(*checkpoint, 4, {});
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ(model_hash(*one), model_hash(*four));
  EXPECT_EQ(one->config, sha256(read_file(source_path("tests/data/oracle/llama/config.json"))));
  ASSERT_EQ(one->tensors.size(), checkpoint->tensors().size());
  for (const ManifestTensor& tensor : one->tensors) {
    const auto data = checkpoint->read(tensor.info.name);
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(tensor.sha256, sha256(data->bytes));
    EXPECT_TRUE(verify(*one, *data).ok());
  }
}

TEST_F(ManifestTest, KnowsStorytellerByItsHash) {
  // The identity that rooms, caches and receipts rely on: it may only change together with the
  // canonical form's version.
  EXPECT_EQ(hex(model_hash(manifest_of(source_path("models/storyteller-draft")))),
            "e43a6c8786d9904ad9cf5b0590183f584befc174c06de21e7aebf3b1f0258126");
}

TEST_F(ManifestTest, IsTheSameHoweverAModelIsSharded) {
  write_file(folder_ / "one" / "config.json", "{}");
  write_file(folder_ / "one" / "model.safetensors",
             safetensors(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}})",
                         "AAAABB"));
  write_file(folder_ / "two" / "config.json", "{}");
  write_file(folder_ / "two" / "x.safetensors",
             safetensors(R"({"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", "BB"));
  write_file(folder_ / "two" / "y.safetensors",
             safetensors(R"({"a":{"shape":[2],"dtype":"BF16","data_offsets":[0,4]}})", "AAAA"));
  write_file(folder_ / "two" / "model.safetensors.index.json",
             R"({"weight_map":{"a":"y.safetensors","b":"x.safetensors"}})");
  EXPECT_EQ(model_hash(manifest_of(folder_ / "one")), model_hash(manifest_of(folder_ / "two")));
}

TEST_F(ManifestTest, DiffersWithAnythingThatMakesAModel) {
  write_model(folder_ / "a", "wwww");
  const Digest hash = model_hash(manifest_of(folder_ / "a"));
  write_model(folder_ / "bytes", "wwwx");
  EXPECT_NE(model_hash(manifest_of(folder_ / "bytes")), hash);
  write_model(folder_ / "name", "wwww", "{}", "v");
  EXPECT_NE(model_hash(manifest_of(folder_ / "name")), hash);
  write_model(folder_ / "config", "wwww", "{ }");
  EXPECT_NE(model_hash(manifest_of(folder_ / "config")), hash);
  write_file(folder_ / "shape" / "config.json", "{}");
  write_file(folder_ / "shape" / "model.safetensors",
             safetensors(R"({"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})", "wwww"));
  EXPECT_NE(model_hash(manifest_of(folder_ / "shape")), hash);
  write_file(folder_ / "type" / "config.json", "{}");
  write_file(folder_ / "type" / "model.safetensors",
             safetensors(R"({"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "wwww"));
  EXPECT_NE(model_hash(manifest_of(folder_ / "type")), hash);
}

TEST_F(ManifestTest, SerializesAndParsesToTheSame) {
  const Manifest manifest = manifest_of(source_path("tests/data/oracle/qwen2"));
  const auto bytes = manifest.serialize();
  const auto parsed = Manifest::parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->serialize(), bytes);
  EXPECT_EQ(model_hash(*parsed), model_hash(manifest));
  EXPECT_EQ(model_hash(manifest), sha256(bytes));
  EXPECT_NE(parsed->find("model.norm.weight"), nullptr);
  EXPECT_EQ(parsed->find("model.norm"), nullptr);
}

/// A manifest of one tensor, spelled out, with whatever is wrong in it.
struct Raw {
  std::string magic = "TDMANIF1";
  uint32_t count = 1;
  std::string name = "w";
  uint32_t name_length = 1;
  uint8_t dtype = 2;
  std::vector<uint64_t> shape = {2, 3};
  int dims = -1;  ///< -1: as many as in shape
  std::string rest{};

  [[nodiscard]] std::vector<std::byte> bytes() const {
    ByteWriter writer;
    const auto text = [&](std::string_view value) {
      writer.append(std::as_bytes(std::span(value.data(), value.size())));
    };
    text(magic);
    text(std::string(32, 'c'));
    writer.write(count);
    writer.write(name_length);
    text(name);
    writer.write(dtype);
    writer.write(static_cast<uint8_t>(dims < 0 ? static_cast<int>(shape.size()) : dims));
    for (const uint64_t extent : shape) writer.write(extent);
    text(std::string(32, 'h'));
    text(rest);
    return writer.release();
  }
};

TEST_F(ManifestTest, RefusesEachBadFormWithOneClearError) {
  ASSERT_TRUE(Manifest::parse(Raw{}.bytes()).ok());
  ASSERT_TRUE(Manifest::parse(Raw{.shape = {}}.bytes()).ok());
  const auto another = Raw{.name = "a"}.bytes();
  const std::string second(reinterpret_cast<const char*>(another.data()) + 44, another.size() - 44);
  const struct {
    const char* what;
    std::vector<std::byte> bytes;
    const char* error;
  } cases[] = {
      {"nothing", {}, "expected it to begin with TDMANIF1"},
      {"another version", Raw{.magic = "TDMANIF2"}.bytes(), "begin with TDMANIF1"},
      {"no tensors", Raw{.count = 0}.bytes(), "found a count of 0"},
      {"a count that can't fit", Raw{.count = 100'000}.bytes(), "found a count of 100000"},
      {"a huge count", Raw{.count = 0xffffffff}.bytes(), "found a count of 4294967295"},
      {"a count over the limit", Raw{.count = 100'001, .rest = std::string(5'000'000, 'x')}.bytes(),
       "found a count of 100001"},
      {"a name past the end", Raw{.name_length = 500}.bytes(), "ends within a tensor"},
      {"a name over the limit", Raw{.name_length = 0xffffffff}.bytes(), "a name is too long"},
      {"an empty name", Raw{.name = "", .name_length = 0}.bytes(), "1 to 512 bytes, found 0"},
      {"a name with NUL", Raw{.name = std::string(1, '\0')}.bytes(), "control characters"},
      {"a name with a path", Raw{.name = "../x", .name_length = 4}.bytes(), "without path parts"},
      {"a name that is not UTF-8", Raw{.name = "\xff"}.bytes(), "in UTF-8"},
      {"an unknown type", Raw{.dtype = 20}.bytes(), "element type from 0 to 19, found 20"},
      {"half a block", Raw{.dtype = 7, .shape = {3, 33}}.bytes(), "of whole blocks"},
      {"a block without a row", Raw{.dtype = 7, .shape = {}}.bytes(), "of whole blocks"},
      {"five dimensions", Raw{.shape = {1, 1, 1, 1, 1}}.bytes(), "at most 4 dimensions, found 5"},
      {"255 dimensions", Raw{.dims = 255}.bytes(), "at most 4 dimensions, found 255"},
      {"an extent of 0", Raw{.shape = {1, 0}}.bytes(),
       "shape without 0, of whole blocks and below 2^63"},
      {"a product of 2^64", Raw{.shape = {uint64_t{1} << 32, uint64_t{1} << 31}}.bytes(),
       "shape without 0, of whole blocks and below 2^63"},
      {"a tensor that is missing", Raw{.count = 2, .rest = std::string(40, '\0')}.bytes(),
       "1 to 512 bytes, found 0"},
      {"names out of order", Raw{.count = 2, .rest = second}.bytes(),
       "rising order, found a after w"},
      {"bytes at the end", Raw{.rest = "x"}.bytes(), "found 1 more bytes"},
      {"more than 16 MiB", std::vector<std::byte>(kMaxManifestBytes + 1),
       "expected at most 16777216"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.what);
    const auto manifest = Manifest::parse(bad.bytes);
    if (manifest.ok()) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    EXPECT_NE(manifest.error().message.find(bad.error), std::string::npos)
        << manifest.error().message;
  }
  const auto good = Raw{}.bytes();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(Manifest::parse(std::span(good).first(size)).ok()) << size;
  }
}

TEST_F(ManifestTest, RefusesSizesWhoseSumOverflows) {
  ByteWriter writer;
  const uint64_t half = uint64_t{1} << 61;  // elements: 2^62 bytes each
  for (const char* name : {"a", "b"}) {
    writer.text(name);
    writer.write(uint8_t{2});
    writer.write(uint8_t{1});
    writer.write(half);
    writer.append(std::vector<std::byte>(32));
  }
  ByteWriter manifest;
  manifest.append(std::as_bytes(std::span("TDMANIF1", 8)));
  manifest.append(std::vector<std::byte>(32));
  manifest.write(uint32_t{2});
  manifest.append(writer.bytes());
  const auto parsed = Manifest::parse(manifest.bytes());
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("all tensors together"), std::string::npos);
}

TEST_F(ManifestTest, VerifyNoticesAnyDifference) {
  write_model(folder_.path(), "wwww");
  const auto checkpoint = open(folder_.path());
  const auto manifest = make_manifest(*checkpoint, 1, {});
  ASSERT_TRUE(manifest.ok());
  TensorData data = *checkpoint->read("w");
  EXPECT_TRUE(verify(*manifest, data).ok());

  const std::string other = "wwwx";
  TensorData changed = data;
  changed.bytes = std::as_bytes(std::span(other.data(), other.size()));
  EXPECT_NE(verify(*manifest, changed).error().message.find("tensor w: expected SHA-256"),
            std::string::npos);
  TensorData shorter = data;
  shorter.bytes = data.bytes.first(2);
  EXPECT_FALSE(verify(*manifest, shorter).ok());
  TensorData reshaped = data;
  reshaped.info.shape = {1, 2};
  EXPECT_FALSE(verify(*manifest, reshaped).ok());
  TensorData renamed = data;
  renamed.info.name = "v";
  EXPECT_EQ(verify(*manifest, renamed).error().kind, ErrorKind::kNotFound);
}

TEST_F(ManifestTest, KeepsTheResultAndUsesItAgain) {
  write_model(folder_.path(), std::string(2'000'000, 'w'));
  let_files_age();
  Counter first;
  const auto hashed = make_manifest(*open(folder_.path()), 2, first.progress());
  ASSERT_TRUE(hashed.ok());
  EXPECT_GT(first.calls, 1);
  ASSERT_EQ(cached_entries(), 1u);
  Counter second;
  const auto kept = make_manifest(*open(folder_.path()), 2, second.progress());
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(second.calls, 1);  // "all done"
  EXPECT_EQ(kept->serialize(), hashed->serialize());
}

TEST_F(ManifestTest, HashesAgainWhenAFileChangedEvenWithTheOldTime) {
  write_model(folder_.path(), "wwww");
  let_files_age();
  const Digest old_hash = model_hash(manifest_of(folder_.path()));
  ASSERT_EQ(cached_entries(), 1u);
  const auto time = fs::last_write_time(folder_ / "model.safetensors");
  write_model(folder_.path(), "wwwx");
  fs::last_write_time(folder_ / "model.safetensors", time);
  let_files_age();
  EXPECT_NE(model_hash(manifest_of(folder_.path())), old_hash);
  EXPECT_EQ(cached_entries(), 1u);  // the new entry took the old one's place
}

TEST_F(ManifestTest, TakesTheConfigFromTheFolderNotFromTheCache) {
  write_model(folder_.path(), "wwww");
  let_files_age();
  (void)manifest_of(folder_.path());
  write_file(folder_ / "config.json", "{ }");
  EXPECT_EQ(manifest_of(folder_.path()).config, sha256("{ }"));
}

TEST_F(ManifestTest, HashesAgainWhenTheIndexPointsElsewhere) {
  const auto both = [](std::string_view data) {
    return safetensors(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})",
                       data);
  };
  write_file(folder_ / "config.json", "{}");
  write_file(folder_ / "1.safetensors", both("1a1b"));
  write_file(folder_ / "2.safetensors", both("2a2b"));
  const auto index = folder_ / "model.safetensors.index.json";
  write_file(index, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  let_files_age();
  const Digest hash = model_hash(manifest_of(folder_.path()));
  write_file(index, R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  EXPECT_NE(model_hash(manifest_of(folder_.path())), hash);
}

TEST_F(ManifestTest, DoesNotKeepWhatWasWrittenAMomentAgo) {
  write_model(folder_.path(), "wwww");
  fs::last_write_time(folder_ / "model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  (void)manifest_of(folder_.path());
  EXPECT_EQ(cached_entries(), 0u);
}

TEST_F(ManifestTest, HealsACacheEntryThatIsBroken) {
  write_model(folder_.path(), "wwww");
  let_files_age();
  const Manifest good = manifest_of(folder_.path());
  ASSERT_EQ(cached_entries(), 1u);
  const fs::path entry = only_entry();
  const std::string content = read_file(entry);
  for (size_t i = 0; i < content.size(); ++i) {
    std::string broken = content;
    broken[i] = static_cast<char>(broken[i] ^ 1);
    write_file(entry, broken);
    ASSERT_FALSE(load_manifest(*open(folder_.path()))) << i;
  }
  for (const std::string& broken : {std::string(), std::string("x"), content.substr(0, 50),
                                    content + "x", std::string(100, '\xff')}) {
    write_file(entry, broken);
    EXPECT_EQ(manifest_of(folder_.path()).serialize(), good.serialize());
    EXPECT_EQ(read_file(entry), content);
  }
}

TEST_F(ManifestTest, NeverTrustsAnEntryOfAnotherModel) {
  write_model(folder_ / "a", "aaaa");
  write_model(folder_ / "b", "bbbb");
  let_files_age();
  (void)manifest_of(folder_ / "a");
  const fs::path entry_of_a = only_entry();
  const std::string content_of_a = read_file(entry_of_a);
  fs::remove(entry_of_a);
  const Manifest b = manifest_of(folder_ / "b");
  write_file(only_entry(), content_of_a);
  EXPECT_EQ(manifest_of(folder_ / "b").serialize(), b.serialize());
}

TEST_F(ManifestTest, WorksWithoutACache) {
  write_model(folder_.path(), "wwww");
  let_files_age();
  write_file(folder_ / "file", "");
  ::setenv("XDG_CACHE_HOME", (folder_ / "file").c_str(), 1);  // can't hold a folder
  EXPECT_EQ(manifest_of(folder_.path()).tensors.size(), 1u);
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", cache_.path().c_str(), 1);
  EXPECT_EQ(manifest_cache_folder(), cache_ / ".cache/tandem/manifests");
  EXPECT_EQ(manifest_of(folder_.path()).tensors.size(), 1u);
  EXPECT_EQ(cached_entries(), 1u);
}

TEST_F(ManifestTest, NoticesAFileThatChangesMeanwhile) {
  write_model(folder_.path(), std::string(2'000'000, 'w'));
  const auto checkpoint = open(folder_.path());
  fs::resize_file(folder_ / "model.safetensors", 1'500'000);
  const auto shrunk = make_manifest(*checkpoint, 2, {});
  ASSERT_FALSE(shrunk.ok());
  EXPECT_NE(shrunk.error().message.find("tensor w"), std::string::npos) << shrunk.error().message;

  write_model(folder_.path(), std::string(2'000'000, 'w'));
  const auto again = open(folder_.path());
  const auto written = make_manifest(*again, 1, [&](uint64_t, uint64_t) {
    fs::last_write_time(folder_ / "model.safetensors",
                        fs::file_time_type::clock::now() - std::chrono::hours(1));
    return true;
  });
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("changed while open"), std::string::npos);
  EXPECT_EQ(cached_entries(), 0u);
}

TEST_F(ManifestTest, ReportsProgressAndStopsWhenAskedTo) {
  write_model(folder_.path(), std::string(4'000'000, 'w'));
  const auto checkpoint = open(folder_.path());
  uint64_t last = 0;
  ASSERT_TRUE(make_manifest(*checkpoint, 3, [&](uint64_t done, uint64_t total) {
                EXPECT_EQ(total, 4'000'000u);
                EXPECT_GT(done, last);
                last = done;
                return true;
              }).ok());
  EXPECT_EQ(last, 4'000'000u);
  TemporaryFolder other;
  write_model(other.path(), std::string(4'000'000, 'w'));
  const auto stopped =
      make_manifest(*open(other.path()), 3, [](uint64_t, uint64_t) { return false; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
}

TEST_F(ModelLibraryTest, FindsAModelByItsContent) {
  write_model(folder_ / "first", "aaaa");
  write_model(folder_ / "vendor" / "second", "bbbb");
  write_model(folder_ / "third", "cccc", "{ }");
  TemporaryFolder elsewhere;
  write_model(elsewhere.path(), "dddd");
  fs::create_directory_symlink(elsewhere.path(), folder_ / "link");
  write_file(folder_ / "broken" / "config.json", "{}");
  write_file(folder_ / "broken" / "model.safetensors", "no");

  const auto library = ModelLibrary::open(folder_.path());
  ASSERT_TRUE(library.ok()) << library.error().message;
  EXPECT_EQ(library->folders().size(), 5u);
  for (const char* name : {"first", "vendor/second", "third", "link"}) {
    const Manifest wanted = manifest_of(folder_ / name);
    auto found = library->find(wanted, 1, {});
    ASSERT_TRUE(found.ok()) << name << ": " << found.error().message;
    EXPECT_EQ((*found)->folder(), fs::canonical(folder_ / name));
  }
  Manifest wanted = manifest_of(folder_ / "first");
  wanted.tensors[0].sha256[0] ^= 1;
  const auto none = library->find(wanted, 1, {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(none.error().message.find("none of 5 models"), std::string::npos);
  EXPECT_NE(none.error().message.find("1 could not be read"), std::string::npos);
}

TEST_F(ModelLibraryTest, LooksTwoLevelsDownAndFollowsLinksOnTheFirstOnly) {
  write_model(folder_.path(), "aaaa");
  write_model(folder_ / "1" / "2", "aaaa");
  write_model(folder_ / "1" / "2" / "3", "aaaa");
  TemporaryFolder elsewhere;
  write_model(elsewhere.path(), "dddd");
  fs::create_directory_symlink(elsewhere.path(), folder_ / "1" / "link");
  fs::create_directory_symlink("..", folder_ / "1" / "2" / "up");
  const auto library = ModelLibrary::open(folder_.path());
  ASSERT_TRUE(library.ok());
  EXPECT_EQ(library->folders(), (std::vector<fs::path>{folder_.path(), folder_ / "1" / "2"}));
}

TEST_F(ModelLibraryTest, HashesOnlyWhatCouldBeTheModel) {
  write_model(folder_ / "other config", "aaaa", "{ }");
  write_model(folder_ / "other name", "aaaa", "{}", "v");
  write_model(folder_ / "other shape", "aaaaaa");
  TemporaryFolder elsewhere;
  write_model(elsewhere.path(), "aaaa");
  const Manifest wanted = manifest_of(elsewhere.path());
  const auto library = ModelLibrary::open(folder_.path());
  ASSERT_TRUE(library.ok());
  Counter counter;
  EXPECT_EQ(library->find(wanted, 1, counter.progress()).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(counter.calls, 0);
  write_model(folder_ / "same list", "aaab");
  EXPECT_EQ(library->find(wanted, 1, counter.progress()).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(counter.calls, 1);
  EXPECT_EQ(library->find(wanted, 1, [](uint64_t, uint64_t) { return false; }).error().kind,
            ErrorKind::kCancelled);
}

TEST_F(ModelLibraryTest, RefusesWhatIsNoFolder) {
  EXPECT_EQ(ModelLibrary::open(folder_ / "none").error().kind, ErrorKind::kNotFound);
  write_file(folder_ / "file", "");
  EXPECT_NE(ModelLibrary::open(folder_ / "file").error().message.find("found a file"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::weights
