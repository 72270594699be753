// Folders of tensors, and what they give: real files, real locks.
#include "fetch/shelf.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "fetch/stage_source.h"

namespace tandem::fetch {
namespace {

namespace fs = std::filesystem;

class ShelfTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("shelf-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    shelf_ = std::make_shared<Shelf>(Store(root_));
    manifest_.config = sha256(kConfig);
    uint8_t seed = 1;
    for (const char* name : {"a", "b", "c"}) {
      std::vector<std::byte> bytes(4 * kFloats);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(static_cast<uint8_t>(i * 7 + seed));
      }
      ++seed;
      manifest_.tensors.push_back({{name, weights::DType::kF32, {kFloats}}, sha256(bytes)});
      bytes_[name] = std::move(bytes);
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  /// A source that has some of the tensors; one of them may be wrong in a byte.
  std::unique_ptr<Source> source(const std::string& name, const std::string& has,
                                 const std::string& wrong = "") {
    return source_of_tensors(SourceKind::kPeer, name,
                             [this, name, has, wrong](const std::string& tensor, uint64_t offset,
                                                      std::span<std::byte> out) -> Status {
                               ++asked_[name];
                               if (has.find(tensor) == std::string::npos) {
                                 return Error{ErrorKind::kNotFound, "none"};
                               }
                               if (dead_ == name) return Error{ErrorKind::kPeer, "it died"};
                               std::copy_n(bytes_[tensor].begin() + static_cast<ptrdiff_t>(offset),
                                           out.size(), out.begin());
                               given_[name] += out.size();
                               if (tensor == wrong && offset == 0) out[5] ^= std::byte{1};
                               return {};
                             });
  }
  Result<std::unique_ptr<weights::TensorSource>> open(
      std::vector<std::unique_ptr<Source>> sources) {
    StageSourceOptions options;
    options.model.name = "model";
    options.sources = std::move(sources);
    options.shelf = shelf_;
    options.slot = "me";
    options.limit = uint64_t{1} << 30;
    options.manifest = &manifest_;
    options.config_json = kConfig;
    options.tensors = {"a", "b", "c"};
    options.notice = [this](const std::string& line) { notices_ += line + "\n"; };
    return open_stage_source(std::move(options));
  }
  void expect_all(weights::TensorSource& source) {
    for (const auto& [name, bytes] : bytes_) {
      const auto data = source.read(name);
      ASSERT_TRUE(data.ok()) << data.error().message;
      EXPECT_TRUE(std::equal(data->bytes.begin(), data->bytes.end(), bytes.begin(), bytes.end()));
    }
  }
  static std::vector<std::unique_ptr<Source>> list(std::unique_ptr<Source> a,
                                                   std::unique_ptr<Source> b = nullptr) {
    std::vector<std::unique_ptr<Source>> all;
    all.push_back(std::move(a));
    if (b != nullptr) all.push_back(std::move(b));
    return all;
  }
  fs::path folder() const { return root_ / stage_folder(model_hash(manifest_), "me"); }

  static constexpr uint64_t kFloats = 300'001;  // 1.2 MB each: pieces have several tensors
  static constexpr const char* kConfig = "{\"a\": 1}";
  fs::path root_;
  std::shared_ptr<Shelf> shelf_;
  weights::Manifest manifest_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::map<std::string, int> asked_;
  std::map<std::string, uint64_t> given_;
  std::string dead_;
  std::string notices_;
};

TEST_F(ShelfTest, TensorsComeFromWhoHasThemAndStay) {
  {
    const auto source = open(list(this->source("one", "a"), this->source("two", "abc")));
    ASSERT_TRUE(source.ok()) << source.error().message;
    expect_all(**source);
  }
  EXPECT_EQ(given_["one"], 4 * kFloats);
  EXPECT_EQ(given_["two"], 8 * kFloats);
  const auto listed = Shelf(Store(root_)).list();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].model_hash, model_hash(manifest_));
  EXPECT_EQ(listed[0].tensors.size(), 3U);
  EXPECT_EQ(listed[0].config_json, kConfig);
  // Nobody is asked again.
  const auto again = open(list(this->source("three", "")));
  ASSERT_TRUE(again.ok());
  expect_all(**again);
  EXPECT_EQ(asked_["three"], 0);
}

TEST_F(ShelfTest, TensorsOfOnePieceComeFromSeveralAndNothingTwice) {
  // One piece has all three. Each has what the others lack, and nobody has all.
  auto sources = list(this->source("one", "b"), this->source("two", "a"));
  sources.push_back(this->source("three", "c"));
  const auto opened = open(std::move(sources));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(notices_, "");
  for (const char* name : {"one", "two", "three"}) EXPECT_EQ(given_[name], 4 * kFloats) << name;
  expect_all(**opened);
  EXPECT_EQ(given_["one"] + given_["two"] + given_["three"], 12 * kFloats);
}

TEST_F(ShelfTest, WhatIsThereIsGivenInBoundsOnly) {
  ASSERT_TRUE(open(list(source("one", "ab"))).ok());
  const Digest model = model_hash(manifest_);
  std::vector<std::byte> out(1000);
  Shelf other{Store(root_)};
  ASSERT_TRUE(other.read(model, "b", 77, out).ok());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes_["b"].begin() + 77));
  EXPECT_EQ(other.read(model, "c", 0, out).error().kind, ErrorKind::kNotFound) << "not here";
  EXPECT_EQ(other.read(model, "../a", 0, out).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(other.read(model, "b", 4 * kFloats - 999, out).error().kind, ErrorKind::kInvalid);
  EXPECT_EQ(other.read(model, "b", UINT64_MAX - 10, out).error().kind, ErrorKind::kInvalid);
  EXPECT_EQ(other.read(Digest{}, "b", 0, out).error().kind, ErrorKind::kNotFound);
  // Fetched for somebody else than who asks.
  EXPECT_EQ(other.read(model, "b", 0, out, ".room-1").error().kind, ErrorKind::kNotFound);
  EXPECT_TRUE(other.list(".room-1").empty());
  std::ofstream(folder() / ".room-1") << "";
  EXPECT_TRUE(other.read(model, "b", 0, out, ".room-1").ok());
  // A manifest that is not the one that the folder is called by gives nothing.
  std::ofstream(folder() / kStageManifest, std::ios::binary | std::ios::app) << "x";
  EXPECT_EQ(Shelf(Store(root_)).read(model, "b", 0, out).error().kind, ErrorKind::kNotFound);
}

TEST_F(ShelfTest, WrongBytesAreNamedAndComeFromElsewhere) {
  const auto opened = open(list(source("liar", "abc", "b"), source("good", "abc")));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  expect_all(**opened);
  EXPECT_NE(notices_.find("liar gave wrong bytes of tensor b"), std::string::npos) << notices_;
  // With nobody who is right there is an error, and nothing wrong stays.
  fs::remove_all(root_);
  fs::create_directories(root_);
  const auto alone = open(list(source("liar", "abc", "b")));
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ((*alone)->read("b").error().kind, ErrorKind::kInvalid);
  EXPECT_TRUE((*alone)->read("c").ok());
}

TEST_F(ShelfTest, OneThatHasTheTensorAloneIsEnoughToMendAPiece) {
  const auto opened = open(list(source("liar", "abc", "b"), source("good", "b")));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_NE(notices_.find("liar gave wrong bytes of tensor b"), std::string::npos) << notices_;
  expect_all(**opened);
  EXPECT_EQ(given_["good"], 4 * kFloats);
}

TEST_F(ShelfTest, AnotherModelOfTheSameNameDoesNotTouchWhatWasPulled) {
  // As `tandem pull` leaves it: a folder of files under the model's name.
  const std::string header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  std::string contents(8, '\0');
  contents[0] = static_cast<char>(header.size());
  contents += header + "12345678";
  const std::string file = contents;
  const std::string config = "{\"b\": 2}";
  {
    auto folder = Folder::open(root_ / "model", std::chrono::seconds(1), nullptr);
    ASSERT_TRUE(folder.ok());
    ASSERT_TRUE((*folder)->set_model("model", "main", "").ok());
    for (const auto& [name, text] :
         {std::pair("config.json", &config), std::pair("model.safetensors", &file)}) {
      const auto index = (*folder)->add(name, text->size(), std::nullopt);
      ASSERT_TRUE(index.ok());
      ASSERT_TRUE((*folder)->write(*index, 0, std::as_bytes(std::span(*text)), "x").ok());
    }
  }
  const auto size = fs::file_size(root_ / "model" / weights::kJournalName);
  const auto opened = open(list(source("one", "abc")));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  expect_all(**opened);
  std::ifstream kept(root_ / "model" / "model.safetensors", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), file);
  EXPECT_EQ(fs::file_size(root_ / "model" / weights::kJournalName), size) << "nothing was lost";
  EXPECT_NE(notices_.find("left alone"), std::string::npos) << notices_;
}

TEST_F(ShelfTest, AFolderInUseIsNotRemovedForRoom) {
  { ASSERT_TRUE(open(list(source("one", "abc"))).ok()); }
  const Store store(root_);
  const int reader = ::open((folder() / weights::kJournalName).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_EQ(::flock(reader, LOCK_SH), 0);
  EXPECT_FALSE(store.make_room(100, 1000, root_ / "other", {}).ok());
  EXPECT_TRUE(fs::exists(folder() / kStageTensors));
  ::close(reader);
  EXPECT_TRUE(store.make_room(100, 1000, root_ / "other", {}).ok());
  EXPECT_FALSE(fs::exists(folder() / kStageTensors));
  // What was there is not given any more, and may come again.
  std::vector<std::byte> out(10);
  EXPECT_FALSE(shelf_->read(model_hash(manifest_), "a", 0, out).ok());
  const auto again = open(list(source("one", "abc")));
  ASSERT_TRUE(again.ok()) << again.error().message;
  expect_all(**again);
}

TEST_F(ShelfTest, WhoWaitedForARemovedFolderHasItsOwn) {
  const fs::path path = root_ / "folder";
  fs::create_directories(path);
  const fs::path lock = path / kLockName;
  const int remover = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(remover, LOCK_EX), 0);
  Result<std::unique_ptr<Folder>> folder = Error{};
  std::thread waits([&] { folder = Folder::open(path, std::chrono::seconds(60), nullptr); });
  // It has the old lock open once the file has another reader; a little later does no harm.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ::unlink(lock.c_str());
  ::rmdir(path.c_str());
  ::close(remover);
  waits.join();
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  const auto second = Folder::open(path, std::chrono::milliseconds(0), nullptr);
  ASSERT_FALSE(second.ok()) << "two processes write to one folder";
  EXPECT_EQ(second.error().kind, ErrorKind::kPeer);
}

TEST_F(ShelfTest, SizesThatNoDiskHasAreRefused) {
  auto folder = Folder::open(root_ / "folder", std::chrono::seconds(1), nullptr);
  ASSERT_TRUE(folder.ok());
  const auto huge = (*folder)->add("model.safetensors", uint64_t{1} << 50, std::nullopt);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().kind, ErrorKind::kUnsupported);
  weights::Manifest manifest = manifest_;
  manifest.tensors[0].info.shape = {uint64_t{1} << 60};
  uint64_t size = 0;
  EXPECT_EQ(stage_spots(manifest, size).error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace tandem::fetch
