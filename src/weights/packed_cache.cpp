#include "weights/packed_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/block.h"
#include "weights/checksum.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".packed";

// A whole file mapped to be read, and unmapped with the last matrix in it.
struct Mapping {
  const std::byte* bytes = nullptr;
  uint64_t size = 0;

  Mapping(int file, uint64_t length) {
    void* memory = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return;
    bytes = static_cast<const std::byte*>(memory);
    size = length;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (bytes != nullptr) ::munmap(const_cast<std::byte*>(bytes), size);
  }

  // Brings the pages in, many at a time: one by one, faults cost more than the checksum.
  void populate(ThreadPool& pool) const {
    constexpr uint64_t kPiece = uint64_t{8} << 20;
    pool.split((size + kPiece - 1) / kPiece, 1, [&](uint64_t begin, uint64_t end) {
      const uint64_t from = begin * kPiece;
      ::madvise(const_cast<std::byte*>(bytes) + from, std::min(size, end * kPiece) - from,
                MADV_POPULATE_READ);  // advice: without it they come when they are touched
    });
  }
};

struct Descriptor {
  int value = -1;
  explicit Descriptor(int descriptor) : value(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

struct Loaded {
  std::optional<std::vector<kernels::PackedMatrix>> matrices;
  std::string problem;  ///< why an entry that is there is not used
  bool remove = false;  ///< and is of no use to anybody
};

Loaded refused(std::string problem, bool remove = true) {
  return {std::nullopt, std::move(problem), remove};
}

// An entry's data: in a mapping that a backend moves out of, or, if a matrix is so large that it
// would then be in memory twice for a while, read at once.
struct Data {
  std::shared_ptr<const void> owner;  // null: there is no memory for it
  const std::byte* bytes = nullptr;
  Digest content{};
  bool whole = true;  // it could be read to its end
  bool mapped = false;
};
constexpr uint64_t kMostMapped = uint64_t{64} << 20;

bool read_at(int file, uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = ::pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return true;
}

// Each block is summed up while it is in a core's cache.
Data read_data(int file, uint64_t offset, uint64_t length, ThreadPool& pool) {
  Data data;
  const std::shared_ptr<void> memory = allocate_zeroed(length);
  if (memory == nullptr) return data;
  const std::span<std::byte> bytes(static_cast<std::byte*>(memory.get()), length);
  std::vector<LineSums> sums((length + kChecksumBlock - 1) / kChecksumBlock);
  std::atomic<bool> whole{true};
  pool.split(sums.size(), 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t from = i * kChecksumBlock;
      const auto block = bytes.subspan(from, std::min(kChecksumBlock, length - from));
      if (!read_at(file, offset + from, block)) whole = false;
      sums[i] = line_sums(block);
    }
  });
  data.bytes = bytes.data();
  data.owner = memory;
  data.content = checksum(length, sums);
  data.whole = whole;
  return data;
}

Data map_data(int file, uint64_t offset, uint64_t size, ThreadPool& pool) {
  Data data;
  const auto mapping = std::make_shared<const Mapping>(file, size);
  if (mapping->bytes == nullptr) return data;
  mapping->populate(pool);
  data.bytes = mapping->bytes + offset;
  data.owner = mapping;
  data.content = checksum({data.bytes, size - offset}, pool);
  data.mapped = true;
  return data;
}

// An entry's header, with the file open behind it.
struct Entry {
  Descriptor file;
  uint64_t size = 0;
  PackedHeader header;
  Loaded refusal;  // with a problem: it can't be used; else, without a file, there is none

  explicit Entry(const fs::path& path)
      : file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {}

  // False: see `refusal`.
  bool read(const Digest& key, std::span<const PackedShape> shapes) {
    if (file.value < 0) return false;
    struct stat status {};
    if (::fstat(file.value, &status) != 0 || !S_ISREG(status.st_mode)) {
      return refuse("it is not a file", false);
    }
    if ((status.st_uid != ::geteuid() && status.st_uid != 0) || (status.st_mode & 022) != 0) {
      return refuse("others can write to it", false);
    }
    size = static_cast<uint64_t>(status.st_size);
    if (size < kMaxPackedHeader) return refuse("it is too short", true);
    std::array<std::byte, kMaxPackedHeader> start{};
    if (!read_at(file.value, 0, start)) return refuse("it can't be read", false);
    auto parsed = PackedHeader::parse(start, size);
    if (!parsed.ok()) return refuse(parsed.error().message, true);
    if (parsed->key != key || !std::ranges::equal(parsed->matrices, shapes)) {
      return refuse("it holds something else", true);
    }
    header = std::move(*parsed);
    return true;
  }

 private:
  bool refuse(std::string problem, bool remove) {
    refusal = refused(std::move(problem), remove);
    return false;
  }
};

// The matrices of an entry whose data is at `bytes`.
std::vector<kernels::PackedMatrix> matrices_of(const PackedHeader& header, const std::byte* bytes,
                                               const std::shared_ptr<const void>& owner,
                                               bool mapped) {
  std::vector<kernels::PackedMatrix> matrices;
  const auto places = header.places();
  const uint64_t offset = header.data_offset();
  for (size_t i = 0; i < places.size(); ++i) {
    const PackedShape& shape = header.matrices[i];
    const auto* weights = reinterpret_cast<const uint8_t*>(bytes + (places[i].weights - offset));
    const auto* scales = reinterpret_cast<const float*>(bytes + (places[i].scales - offset));
    matrices.push_back({shape.format, shape.rows, shape.columns,
                        Block<uint8_t>({weights, places[i].weight_bytes}, owner),
                        Block<float>({scales, places[i].scale_bytes / sizeof(float)}, owner),
                        mapped});
  }
  return matrices;
}

Loaded read_entry(const fs::path& path, const Digest& key, std::span<const PackedShape> shapes,
                  bool copied, ThreadPool& pool) {
  Entry entry(path);
  if (!entry.read(key, shapes)) return std::move(entry.refusal);
  const int file = entry.file.value;
  const uint64_t offset = entry.header.data_offset();
  const bool at_once =
      copied || std::ranges::any_of(entry.header.places(), [](const PackedHeader::Place& place) {
        return place.weight_bytes > kMostMapped;
      });
  const Data data = at_once ? read_data(file, offset, entry.size - offset, pool)
                            : map_data(file, offset, entry.size, pool);
  if (data.owner == nullptr) return refused("there is no memory for it", false);
  if (!data.whole) return refused("it can't be read", false);
  if (data.content != entry.header.content) return refused("its content is damaged");
  ::futimens(file, nullptr);  // used now: what was used longest ago is dropped first
  Loaded loaded;
  loaded.matrices = matrices_of(entry.header, data.bytes, data.owner, data.mapped);
  return loaded;
}

// An entry that is checked when it is first fetched.
class LateEntry final : public kernels::OnDemand {
 public:
  LateEntry(fs::path path, std::shared_ptr<const Mapping> mapping, uint64_t offset, Digest content)
      : path_(std::move(path)), mapping_(std::move(mapping)), offset_(offset), content_(content) {}

  void want() override { advise(MADV_WILLNEED); }
  void drop() override { advise(MADV_DONTNEED); }
  [[nodiscard]] Status fetch() override {
    ThreadPool alone(1);
    mapping_->populate(alone);
    if (checked_.load(std::memory_order_acquire)) return {};
    // Without a lock: a pass that needs the expert checks it once more rather than wait for the
    // thread of lowest priority that may be at it.
    const std::span<const std::byte> data(mapping_->bytes + offset_, mapping_->size - offset_);
    if (checksum(data, alone) != content_) {
      ::unlink(path_.c_str());
      return Error{ErrorKind::kIo, path_.string() +
                                       ": quantized weights are damaged; the file was deleted, and "
                                       "the next start makes it again"};
    }
    checked_.store(true, std::memory_order_release);
    return {};
  }

 private:
  void advise(int advice) {
    ::madvise(const_cast<std::byte*>(mapping_->bytes), mapping_->size, advice);
  }

  const fs::path path_;
  const std::shared_ptr<const Mapping> mapping_;
  const uint64_t offset_;
  const Digest content_;
  std::atomic<bool> checked_{false};
};

fs::path absolute_variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
}

}  // namespace

fs::path cache_folder() {
  if (fs::path own = absolute_variable("TANDEM_CACHE"); !own.empty()) return own;
  const char* value = std::getenv("TANDEM_CACHE");  // NOLINT(concurrency-mt-unsafe)
  if (value != nullptr && std::string_view(value) == "off") return {};
  if (const fs::path cache = absolute_variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "tandem";
  }
  const fs::path home = absolute_variable("HOME");
  return home.empty() ? fs::path() : home / ".cache" / "tandem";
}

PackedCache::PackedCache(PackedCacheOptions options)
    : options_(std::move(options)),  // File systems stamp with a clock that is a little behind.
      started_(fs::file_time_type::clock::now() - std::chrono::seconds(1)) {}

PackedCache::~PackedCache() {
  stop_ = true;
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

fs::path PackedCache::path_of(const Digest& key) const {
  return options_.folder / (hex(key) + kSuffix);
}

void PackedCache::notice(const std::string& line) const {
  if (options_.notice) options_.notice("cache: " + line);
}

std::optional<std::vector<kernels::PackedMatrix>> PackedCache::load(
    const Digest& key, std::span<const PackedShape> shapes, ThreadPool& pool) {
  const fs::path path = path_of(key);
  Loaded loaded = read_entry(path, key, shapes, options_.copied, pool);
  if (!loaded.problem.empty()) give_up(path, loaded.problem, loaded.remove);
  return std::move(loaded.matrices);
}

void PackedCache::give_up(const fs::path& path, const std::string& problem, bool remove) const {
  notice(path.string() + ": " + problem + (remove ? "; it is made again" : "; it is not used"));
  if (remove) ::unlink(path.c_str());
}

std::optional<std::vector<kernels::PackedMatrix>> PackedCache::load_on_demand(
    const Digest& key, std::span<const PackedShape> shapes) {
  const fs::path path = path_of(key);
  Entry entry(path);
  if (!entry.read(key, shapes)) {
    const Loaded& refusal = entry.refusal;
    if (!refusal.problem.empty()) give_up(path, refusal.problem, refusal.remove);
    return std::nullopt;
  }
  const auto mapping = std::make_shared<const Mapping>(entry.file.value, entry.size);
  if (mapping->bytes == nullptr) return std::nullopt;
  ::futimens(entry.file.value, nullptr);
  const uint64_t offset = entry.header.data_offset();
  auto matrices = matrices_of(entry.header, mapping->bytes + offset, mapping, true);
  const auto late = std::make_shared<LateEntry>(path, mapping, offset, entry.header.content);
  for (kernels::PackedMatrix& matrix : matrices) matrix.on_demand = late;
  return matrices;
}

uint64_t PackedCache::size_of(const Digest& key) const {
  std::error_code code;
  const uint64_t size = fs::file_size(path_of(key), code);
  return code ? 0 : size;
}

PackedCache::Usage PackedCache::usage() const {
  Usage usage;
  std::error_code code;
  for (fs::directory_iterator entry(options_.folder, code), end; !code && entry != end;
       entry.increment(code)) {
    if (entry->path().extension() != kSuffix) continue;
    std::error_code ignored;
    const uint64_t size = entry->file_size(ignored);
    if (ignored) continue;
    usage.bytes += size;
    ++usage.files;
  }
  return usage;
}

PackedCache::Usage PackedCache::clear() {
  Usage removed;
  std::error_code code;
  for (fs::directory_iterator entry(options_.folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const fs::path extension = entry->path().extension();
    if (extension != kSuffix && extension != ".writing") continue;
    std::error_code ignored;
    const uint64_t size = entry->file_size(ignored);
    if (ignored || !fs::remove(entry->path(), ignored)) continue;
    removed.bytes += size;
    ++removed.files;
  }
  return removed;
}

}  // namespace tandem::weights
