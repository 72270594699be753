// The cache of quantized weights: what comes back is what was stored, or nothing.
#include "weights/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <chrono>
#include <random>

#include "arithmetic/format.h"
#include "weights/checksum.h"
#include "weights/files.h"
#include "weights/packed_file.h"

namespace tandem::weights {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

PackedMatrix random_matrix(WeightFormat format, uint32_t rows, uint32_t columns, uint32_t seed) {
  PackedMatrix matrix = kernels::make_packed(format, rows, columns);
  std::mt19937 random(seed);
  for (uint8_t& byte : matrix.data) byte = static_cast<uint8_t>(random());
  for (float& scale : matrix.row_scales) scale = static_cast<float>(random() % 1000) * 0x1p-12F;
  return matrix;
}

/// A layer's worth: 3.3 MB, so that there are several blocks of the checksum.
std::vector<PackedMatrix> matrices(uint32_t seed) {
  std::vector<PackedMatrix> all;
  all.push_back(random_matrix(WeightFormat::k8, 1500, 1100, seed));
  all.push_back(random_matrix(WeightFormat::k4, 1700, 1600, seed + 1));
  all.push_back(random_matrix(WeightFormat::k6, 17, 33, seed + 2));
  return all;
}

std::vector<PackedMatrix> shared(const std::vector<PackedMatrix>& all) {
  std::vector<PackedMatrix> views;
  views.reserve(all.size());
  for (const PackedMatrix& one : all) views.push_back(one.share());
  return views;
}

std::vector<PackedShape> shapes_of(const std::vector<PackedMatrix>& all) {
  std::vector<PackedShape> shapes;
  shapes.reserve(all.size());
  for (const PackedMatrix& one : all) shapes.push_back({one.format, one.rows, one.columns});
  return shapes;
}

bool equal(const std::vector<PackedMatrix>& a, const std::vector<PackedMatrix>& b) {
  return std::ranges::equal(a, b, [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.format == y.format && x.rows == y.rows && x.columns == y.columns &&
           std::ranges::equal(x.data, y.data) && std::ranges::equal(x.row_scales, y.row_scales);
  });
}

constexpr auto kForever = std::chrono::steady_clock::time_point::max();

class PackedCacheTest : public testing::Test {
 protected:
  PackedCacheTest() { reopen(); }
  void reopen(uint64_t limit = uint64_t{1} << 40) {
    cache_ = nullptr;
    cache_ = std::make_unique<PackedCache>(
        PackedCacheOptions{folder_.path() / "weights", limit, [this](const std::string& line) {
                             const std::lock_guard lock(mutex_);
                             notices_.push_back(line);
                           }});
  }
  void store(const Digest& key, const std::vector<PackedMatrix>& all) {
    cache_->store(key, shared(all));
    cache_->finish(kForever, nullptr, {});
  }
  auto load(const Digest& key, const std::vector<PackedMatrix>& like) {
    return cache_->load(key, shapes_of(like), pool_);
  }
  [[nodiscard]] std::filesystem::path file(const Digest& key) const {
    return folder_.path() / "weights" / (hex(key) + ".packed");
  }
  [[nodiscard]] size_t files() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "weights")) {
      (void)entry;
      ++count;
    }
    return count;
  }

  TemporaryFolder folder_;
  ThreadPool pool_{2};
  std::mutex mutex_;
  std::vector<std::string> notices_;
  std::unique_ptr<PackedCache> cache_;
  const Digest key_ = sha256("one");
  const std::vector<PackedMatrix> all_ = matrices(1);
};

TEST_F(PackedCacheTest, GivesBackWhatWasStored) {
  EXPECT_FALSE(load(key_, all_).has_value());
  store(key_, all_);
  for (int i = 0; i < 2; ++i) {
    const auto found = load(key_, all_);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(equal(*found, all_));
    for (const PackedMatrix& matrix : *found) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data.data()) % 64, 0U);
    }
    reopen();
  }
  EXPECT_EQ(cache_->usage().files, 1U);
  EXPECT_EQ(cache_->size_of(key_), cache_->usage().bytes);
  EXPECT_EQ(files(), 1U) << "something was left behind";
  EXPECT_TRUE(notices_.empty());
  struct stat status {};
  ASSERT_EQ(::stat(file(key_).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(cache_->clear().files, 1U);
  EXPECT_FALSE(load(key_, all_).has_value());
}

TEST_F(PackedCacheTest, WhatIsMappedOutlivesTheFileAndTheCache) {
  store(key_, all_);
  const auto found = load(key_, all_);
  cache_->clear();
  cache_ = nullptr;
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(equal(*found, all_));
}

TEST_F(PackedCacheTest, AFlippedBitAnywhereIsFoundAndTheFileGoes) {
  store(key_, all_);
  const std::string good = read_file(file(key_));
  std::mt19937 random(3);
  std::vector<size_t> places{0, 9, 13, 20, 50, 80, 90, 100, 130, 4096, good.size() - 1};
  for (int i = 0; i < 60; ++i) places.push_back(4096 + random() % (good.size() - 4096));
  for (const size_t place : places) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 1 << random() % 8);
    write_file(file(key_), bad);
    ASSERT_EQ(::chmod(file(key_).c_str(), 0600), 0);
    notices_.clear();
    EXPECT_FALSE(load(key_, all_).has_value()) << place;
    ASSERT_EQ(notices_.size(), 1U) << place;
    EXPECT_NE(notices_[0].find(hex(key_)), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(file(key_))) << place;
  }
  store(key_, all_);
  EXPECT_TRUE(load(key_, all_).has_value()) << "not healed";
}

TEST_F(PackedCacheTest, ShortLongAndForeignFilesAreRefused) {
  store(key_, all_);
  const std::string good = read_file(file(key_));
  const auto refused = [&](const std::string& content) {
    write_file(file(key_), content);
    EXPECT_EQ(::chmod(file(key_).c_str(), 0600), 0);
    const bool found = load(key_, all_).has_value();
    return !found && !std::filesystem::exists(file(key_));
  };
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, size_t{4095}, size_t{4096},
                            good.size() / 2, good.size() - 1}) {
    EXPECT_TRUE(refused(good.substr(0, size))) << size;
  }
  EXPECT_TRUE(refused(good + std::string(4096, '\0')));
  EXPECT_TRUE(refused(std::string(good.size(), '\0')));
  // Sound, but another key's.
  const Digest other = sha256("other");
  store(other, matrices(9));
  EXPECT_TRUE(refused(read_file(file(other))));
  // Sound, but of other shapes.
  store(key_, all_);
  auto fewer = shapes_of(all_);
  fewer.pop_back();
  EXPECT_FALSE(cache_->load(key_, fewer, pool_).has_value());
}

TEST_F(PackedCacheTest, AnotherVersionIsRefused) {
  store(key_, all_);
  for (const size_t offset : {size_t{8}, size_t{12}}) {
    std::string other = read_file(file(key_));
    other[offset] = static_cast<char>(other[offset] + 1);
    // As a program of that version would have written it.
    const size_t length = 84 + 9 * all_.size();
    const Digest digest = sha256(std::string_view(other).substr(0, length));
    std::memcpy(other.data() + length, digest.data(), digest.size());
    write_file(file(key_), other);
    ASSERT_EQ(::chmod(file(key_).c_str(), 0600), 0);
    notices_.clear();
    EXPECT_FALSE(load(key_, all_).has_value());
    ASSERT_EQ(notices_.size(), 1U);
    EXPECT_NE(notices_[0].find("version"), std::string::npos) << notices_[0];
    store(key_, all_);
  }
}

TEST_F(PackedCacheTest, WhatOthersCanWriteToIsNotUsed) {
  store(key_, all_);
  ASSERT_EQ(::chmod(file(key_).c_str(), 0666), 0);
  EXPECT_FALSE(load(key_, all_).has_value());
  EXPECT_TRUE(std::filesystem::exists(file(key_)));
  std::filesystem::rename(file(key_), folder_.path() / "elsewhere");
  std::filesystem::create_symlink(folder_.path() / "elsewhere", file(key_));
  EXPECT_FALSE(load(key_, all_).has_value());
}

TEST_F(PackedCacheTest, ALockedFileIsLeftToItsWriterAndAnAbandonedOneIsTakenOver) {
  store(sha256("makes the folder"), matrices(4));
  const std::string writing = file(key_).string() + ".writing";
  write_file(writing, "half of an entry");
  {
    const int descriptor = ::open(writing.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
    store(key_, all_);
    EXPECT_FALSE(std::filesystem::exists(file(key_)));
    EXPECT_EQ(read_file(writing), "half of an entry");
    // Who needs the file at once writes it beside that one.
    const Digest needed = sha256("needed");
    const std::string other = file(needed).string() + ".writing";
    write_file(other, "half of another");
    const int second = ::open(other.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::flock(second, LOCK_EX), 0);
    EXPECT_TRUE(cache_->store_now(needed, shared(all_)).ok());
    EXPECT_TRUE(load(needed, all_).has_value());
    EXPECT_EQ(read_file(other), "half of another");
    ::close(second);
    ::close(descriptor);
  }
  store(key_, all_);
  EXPECT_TRUE(load(key_, all_).has_value());
  EXPECT_FALSE(std::filesystem::exists(writing));
  // Another entry's, too, is swept away, when a process first looks through the folder.
  reopen();
  const std::string other = file(sha256("other")).string() + ".writing";
  write_file(other, "half of an entry");
  store(sha256("third"), all_);
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_TRUE(notices_.empty()) << notices_[0];
}

TEST_F(PackedCacheTest, TheLimitDropsWhatWasUsedLongestAgo) {
  const auto age = [&](const Digest& key, int minutes) {
    std::filesystem::last_write_time(
        file(key), std::filesystem::file_time_type::clock::now() - std::chrono::minutes(minutes));
  };
  const Digest second = sha256("two");
  const Digest third = sha256("three");
  store(key_, all_);
  store(second, all_);
  const uint64_t one = cache_->size_of(key_);
  age(key_, 20);
  age(second, 10);
  reopen(2 * one + 100);
  EXPECT_TRUE(load(key_, all_).has_value()) << "which makes it the younger one";
  store(third, all_);
  EXPECT_NE(cache_->size_of(key_), 0U);
  EXPECT_EQ(cache_->size_of(second), 0U);
  EXPECT_NE(cache_->size_of(third), 0U);
  EXPECT_TRUE(notices_.empty());
  // What this process uses is not dropped: better to store no more.
  store(second, all_);
  EXPECT_EQ(cache_->size_of(second), 0U);
  EXPECT_NE(cache_->size_of(key_), 0U);
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_NE(notices_[0].find("limit"), std::string::npos);
  store(second, all_);
  EXPECT_EQ(notices_.size(), 1U) << "said twice";
}

TEST_F(PackedCacheTest, AFolderThatCantBeMadeIsANotice) {
  cache_ = std::make_unique<PackedCache>(
      PackedCacheOptions{"/proc/tandem/weights", uint64_t{1} << 40,
                         [this](const std::string& line) { notices_.push_back(line); }});
  EXPECT_FALSE(load(key_, all_).has_value());
  store(key_, all_);
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_NE(notices_[0].find("/proc/tandem"), std::string::npos);
  EXPECT_EQ(cache_->usage().files, 0U);
}

TEST_F(PackedCacheTest, AFullDiskIsANoticeAndLeavesNothing) {
  const std::string disk = (folder_.path() / "weights").string();
  std::filesystem::create_directories(disk);
  if (::mount("tandem-test", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "mounting needs root";
  }
  store(key_, all_);  // fits
  const Digest second = sha256("two");
  store(second, all_);
  const bool first_there = load(key_, all_).has_value();
  const size_t left = files();
  cache_ = nullptr;
  ASSERT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
  EXPECT_TRUE(first_there);
  EXPECT_EQ(left, 1U);
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_NE(notices_[0].find("disk is too full"), std::string::npos) << notices_[0];
}

TEST_F(PackedCacheTest, GivingUpLeavesNothingHalfWritten) {
  for (uint32_t i = 0; i < 20; ++i) {
    cache_->store(sha256("entry " + std::to_string(i)), shared(all_));
  }
  while (!std::filesystem::exists(folder_.path() / "weights")) std::this_thread::yield();
  reopen();
  for (uint32_t i = 0; i < 20; ++i) {
    const auto found = load(sha256("entry " + std::to_string(i)), all_);
    if (found) {
      EXPECT_TRUE(equal(*found, all_));
    }
  }
  EXPECT_TRUE(notices_.empty());
  EXPECT_EQ(files(), cache_->usage().files);
}

TEST(Checksum, IsTheSameByEveryWay) {
  std::mt19937 random(5);
  std::string bytes(5000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4999}}) {
    const auto part = std::as_bytes(std::span(bytes.data(), size));
    EXPECT_EQ(line_sums_by("avx2", part), line_sums_by("plain", part)) << size;
  }
  // Pinned: files on disk hold it.
  ThreadPool pool(2);
  std::vector<std::byte> counting(3'000'001);
  for (size_t i = 0; i < counting.size(); ++i)
    counting[i] = static_cast<std::byte>(i * 7 + i / 256);
  EXPECT_EQ(hex(checksum(counting, pool)),
            "cd8835e7d55d95f14b9463e9e426c03c8af767cf2c4a33aba5e0d7216afcd43e");
}

TEST(Checksum, SeesEverySingleWord) {
  std::vector<std::byte> bytes(64 * 100);
  const LineSums zero = line_sums(bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 7}) {
      bytes[i] = static_cast<std::byte>(1 << bit);
      EXPECT_NE(line_sums(bytes), zero) << i;
      bytes[i] = std::byte{0};
    }
  }
  // Lines that change places.
  bytes[0] = std::byte{1};
  const LineSums first = line_sums(bytes);
  std::swap(bytes[0], bytes[64]);
  EXPECT_NE(line_sums(bytes), first);
}

TEST(PackedFile, HeaderAndPlacesFollowFromTheShapes) {
  PackedHeader header;
  header.key = sha256("key");
  header.content = sha256("content");
  header.matrices = {{WeightFormat::k8, 17, 100}, {WeightFormat::k6, kMaxPackedRows, 65536}};
  const auto places = header.places();
  EXPECT_EQ(places[0].weights, 4096U);
  EXPECT_EQ(places[0].weight_bytes, 2U * 16 * 128);
  EXPECT_EQ(places[0].scales, 4096U + 4096);
  EXPECT_EQ(places[1].weights, 3U * 4096);
  EXPECT_GT(header.file_bytes(), uint64_t{1} << 43);
  const auto bytes = header.serialize();
  const auto parsed = PackedHeader::parse(bytes, header.file_bytes());
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->serialize(), bytes);
  EXPECT_FALSE(PackedHeader::parse(bytes, header.file_bytes() - 1).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(PackedHeader::parse(std::span(bytes).first(size), header.file_bytes()).ok());
  }
}

}  // namespace
}  // namespace tandem::weights
