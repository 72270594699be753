// Experts that lie in files: when they are read, copied and given back, and who waits for it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "experts_support.h"

namespace tandem::kernels::mixture {
namespace {

// What a file's weights are to the backend, without a file.
class CountedWeights final : public OnDemand {
 public:
  void want() override { ++wanted; }
  [[nodiscard]] Status fetch() override {
    ++fetched;
    if (broken) return invalid("these weights are damaged");
    return {};
  }
  void drop() override { ++dropped; }
  std::atomic<int> wanted{0};
  std::atomic<int> fetched{0};
  std::atomic<int> dropped{0};
  bool broken = false;
};

// A Block takes any kind of them.
template <typename File>
std::vector<std::shared_ptr<OnDemand>> all(const std::vector<std::shared_ptr<File>>& files) {
  return {files.begin(), files.end()};
}

// Tries until it is so; false if it never comes to be.
bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<std::shared_ptr<CountedWeights>> files() {
  std::vector<std::shared_ptr<CountedWeights>> result;
  for (uint32_t e = 0; e < kExperts; ++e) result.push_back(std::make_shared<CountedWeights>());
  return result;
}

TEST(LateExperts, OnlyChosenExpertsAreFetchedAndOnlyOnceWhileTheyAreInUse) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const Way way = ways().front();
  const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
  const auto lying = files();
  Block block(model, "best", 2, way, all(lying));
  std::vector<uint32_t> chosen(kChosen);
  std::vector<float> weights(kChosen);
  ASSERT_TRUE(arithmetic::route({in.logits.data(), kExperts}, true, chosen, weights));
  for (int round = 0; round < 3; ++round) {
    Status status;
    const auto out = cpu::bits(block.run(in, 0, 1, way, &status));
    ASSERT_TRUE(status.ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
    for (uint32_t e = 0; e < kExperts; ++e) {
      const bool used = std::find(chosen.begin(), chosen.end(), e) != chosen.end();
      EXPECT_EQ(lying[e]->wanted, used ? 1 : 0) << e;
      EXPECT_EQ(lying[e]->fetched, used ? 1 : 0) << e;
      EXPECT_EQ(lying[e]->dropped, 0) << e;
    }
  }
}

TEST(LateExperts, ThoseUsedMostAreCopiedUpToTheLimitAndGiveTheSameBits) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const Mlp& one = model.experts.front();
  const uint64_t bytes = one.gate.matrix.bytes() + one.up.matrix.bytes() + one.down.matrix.bytes();
  for (const bool rests : {false, true}) {
    Way way = ways().front();
    way.rests = rests;
    const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
    for (const uint64_t copies : {uint64_t{0}, uint64_t{2}, uint64_t{kExperts}}) {
      const auto lying = files();
      Block block(model, "best", 2, way, all(lying));
      block.backend().limit_experts(copies * bytes * (rests ? 2 : 1));
      const auto dropped = [&] {
        return std::count_if(lying.begin(), lying.end(),
                             [](const auto& file) { return file->dropped > 0; });
      };
      const auto wanted = static_cast<ptrdiff_t>(copies);
      for (int round = 0; round < 2000 && (round < 20 || dropped() < wanted); ++round) {
        Status status;
        const auto out = cpu::bits(block.run(in, 0, kTokens, way, &status));
        ASSERT_TRUE(status.ok());
        ASSERT_EQ(out, expected) << round;
        if (round > 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(dropped(), wanted);
    }
  }
}

TEST(LateExperts, DamagedWeightsFailThePassThatNeedsThem) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const auto lying = files();
  for (const auto& file : lying) file->broken = true;
  Block block(model, "best", 2, ways().front(), all(lying));
  Status status;
  block.run(in, 0, 1, ways().front(), &status);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("damaged"), std::string::npos);
}

// A mapping of a file that holds some bytes, of which this process has touched none.
class UntouchedBytes {
 public:
  explicit UntouchedBytes(std::span<const uint8_t> bytes) : size_(bytes.size()) {
    const int file = ::memfd_create("weights", MFD_CLOEXEC);
    EXPECT_GE(file, 0);
    EXPECT_EQ(::write(file, bytes.data(), size_), static_cast<ssize_t>(size_));
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    EXPECT_NE(mapping, MAP_FAILED);
    bytes_ = static_cast<const uint8_t*>(mapping);
  }
  UntouchedBytes(const UntouchedBytes&) = delete;
  UntouchedBytes& operator=(const UntouchedBytes&) = delete;
  ~UntouchedBytes() { ::munmap(const_cast<uint8_t*>(bytes_), size_); }

  [[nodiscard]] std::span<const uint8_t> bytes() const { return {bytes_, size_}; }
  // True once a page of it is in this process's page table.
  [[nodiscard]] bool touched() const {
    const int pages = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    std::vector<uint64_t> entries((size_ + page - 1) / page);
    const auto read =
        ::pread(pages, entries.data(), entries.size() * sizeof(uint64_t),
                static_cast<off_t>(reinterpret_cast<uintptr_t>(bytes_) / page * sizeof(uint64_t)));
    ::close(pages);
    return read == static_cast<ssize_t>(entries.size() * sizeof(uint64_t)) &&
           std::any_of(entries.begin(), entries.end(),
                       [](uint64_t entry) { return (entry >> 63) != 0; });
  }

 private:
  const size_t size_;
  const uint8_t* bytes_ = nullptr;
};

// Whether touched() can be told: not on an emulated processor, whose addresses are others.
bool touch_is_seen() {
  const std::array<uint8_t, 1> one{1};
  const UntouchedBytes bytes(one);
  const bool before = bytes.touched();
  const volatile uint8_t* byte = bytes.bytes().data();
  return !before && *byte == 1 && bytes.touched();
}

// What is read when a test says so.
class ToldWeights final : public OnDemand {
 public:
  void want() override {}
  [[nodiscard]] Status fetch() override {
    ++fetched;
    if (on_fetch) on_fetch(fetched);
    return {};
  }
  void drop() override { ++dropped; }
  std::function<void(int)> on_fetch;
  std::atomic<int> fetched{0};
  std::atomic<int> dropped{0};
};

// The expert that is read last is read only once all products of all others are done: were they
// waiting for it, it would never come.
TEST(LateExperts, ASlowOneHoldsUpNoOtherOfItsPass) {
  if (!touch_is_seen()) GTEST_SKIP() << "the system does not say which pages were touched";
  const Inputs in = inputs(kTokens);
  for (const uint32_t threads : {1U, 3U}) {
    for (const Way& way : ways()) {
      Model model;
      const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
      std::vector<std::shared_ptr<UntouchedBytes>> others;
      std::vector<std::shared_ptr<ToldWeights>> lying;
      for (uint32_t e = 0; e < kExperts; ++e) {
        lying.push_back(std::make_shared<ToldWeights>());
        if (e == 0) continue;
        Mlp& expert = model.experts[e];
        for (Rows* rows : {&expert.gate, &expert.up, &expert.down}) {
          for (PackedMatrix* plane : {&rows->matrix, &rows->rest}) {
            if (plane == &rows->rest && !way.rests) continue;
            others.push_back(std::make_shared<UntouchedBytes>(
                std::span<const uint8_t>(plane->data.data(), plane->data.size())));
            plane->data = tandem::Block<uint8_t>(others.back()->bytes(), others.back());
          }
        }
      }
      bool in_time = false;
      lying[0]->on_fetch = [&](int) {
        in_time = comes_true([&] {
          return std::all_of(others.begin(), others.end(),
                             [](const auto& bytes) { return bytes->touched(); });
        });
      };
      Block block(model, "best", threads, way, all(lying));
      for (const auto& bytes : others) ASSERT_FALSE(bytes->touched());
      Status status;
      const auto out = cpu::bits(block.run(in, 0, kTokens, way, &status));
      ASSERT_TRUE(status.ok());
      EXPECT_EQ(out, expected);
      EXPECT_TRUE(in_time) << threads << " threads";
      EXPECT_EQ(lying[0]->fetched, 1);
    }
  }
}

// Copies are made by another thread, whose reading passes never wait for, of whatever conversation.
TEST(LateExperts, ACopyThatIsBeingReadHoldsUpNoPass) {
  const Model model;
  const Inputs in = inputs(kTokens);
  const Way way = ways().front();
  const std::vector<uint32_t> expected = cpu::bits(reference(model, in, way));
  std::vector<std::shared_ptr<ToldWeights>> lying;
  std::atomic<bool> blocked{false};
  std::atomic<bool> released{false};
  std::atomic<bool> in_time{true};
  for (uint32_t e = 0; e < kExperts; ++e) {
    lying.push_back(std::make_shared<ToldWeights>());
    lying.back()->on_fetch = [&](int time) {
      if (time == 1) return;  // by a pass
      blocked = true;
      if (!comes_true([&] { return released.load(); })) in_time = false;
    };
  }
  Block block(model, "best", 2, way, all(lying));
  block.backend().limit_experts(uint64_t{1} << 40);
  const auto pass = [&] {
    Status status;
    EXPECT_EQ(cpu::bits(block.run(in, 0, kTokens, way, &status)), expected);
    EXPECT_TRUE(status.ok());
  };
  EXPECT_TRUE(comes_true([&] {
    pass();
    return blocked.load();
  }));
  for (int i = 0; i < 50; ++i) pass();
  for (const auto& file : lying) EXPECT_EQ(file->dropped, 0);
  EXPECT_TRUE(in_time);
  released = true;
  EXPECT_TRUE(comes_true([&] {
    pass();
    return std::all_of(lying.begin(), lying.end(),
                       [](const auto& file) { return file->dropped > 0; });
  }));
}

}  // namespace
}  // namespace tandem::kernels::mixture
