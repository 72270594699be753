#include "fetch/stage_source.h"

#include <algorithm>
#include <mutex>

#include "weights/printable.h"

namespace tandem::fetch {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);

class StageSource final : public weights::TensorSource {
 public:
  explicit StageSource(StageSourceOptions options) : options_(std::move(options)) {}

  Status open() {
    PullOptions pull;
    pull.model = options_.model;
    pull.folder = options_.store.root() / "by-hash" / hex(model_hash(*options_.manifest));
    // A revision from outside is compared with those that are here, and no path is made of it.
    for (const StoredModel& stored : options_.store.list()) {
      const weights::Journal& journal = stored.journal;
      if (journal.model != options_.model.text()) continue;
      if (journal.revision != options_.model.revision &&
          journal.commit != options_.model.revision) {
        continue;
      }
      pull.folder = stored.path;
      pull.model.revision = journal.revision;
      pull.commit = journal.commit;
      break;
    }
    for (const auto& source : options_.sources) pull.sources.push_back(source.get());
    pull.patience = kPatience;
    pull.cancel = options_.cancel;
    pull.notice = options_.notice;
    pull.progress = [this](std::string_view, uint64_t done, uint64_t total) {
      if (options_.progress) options_.progress(done, total);
    };
    TANDEM_ASSIGN(pull_, Pull::open(std::move(pull)));
    TANDEM_TRY(pull_->describe());
    std::vector<Range> ranges;
    for (const std::string& name : options_.tensors) {
      if (const Place* place = place_of(name)) {
        ranges.push_back({place->file, place->tensor.offset, place->tensor.bytes});
      }
    }
    const uint64_t missing = pull_->missing(ranges);
    if (missing == 0) return {};
    TANDEM_TRY(options_.store.make_room(missing, options_.limit, pull_->folder().path(), {}));
    Status fetched = pull_->fetch(ranges);
    if (fetched.ok() || fetched.error().kind == ErrorKind::kPeer ||
        fetched.error().kind == ErrorKind::kCancelled) {
      return fetched;
    }
    if (options_.notice) options_.notice(fetched.error().message);
    return {};
  }

  [[nodiscard]] const weights::TensorInfo* find(std::string_view tensor) const override {
    const auto* entry = options_.manifest->find(tensor);
    return entry == nullptr ? nullptr : &entry->info;
  }

  [[nodiscard]] weights::TensorIdentity identity(std::string_view tensor) const override {
    const auto* entry = options_.manifest->find(tensor);
    if (entry == nullptr) return {};
    return {entry->sha256, std::nullopt};
  }

  [[nodiscard]] Result<weights::TensorData> read(std::string_view tensor) override {
    const std::lock_guard lock(mutex_);
    const auto* entry = options_.manifest->find(tensor);
    const Place* place = place_of(tensor);
    if (entry == nullptr || place == nullptr) {
      return Error{ErrorKind::kNotFound, options_.model.text() + ": its files do not hold tensor " +
                                             weights::printable(tensor) + " as it is needed"};
    }
    TANDEM_TRY(pull_->fetch_tensor(*place, entry->sha256));
    std::shared_ptr<const weights::MappedFile>& file = files_[place->file];
    if (file == nullptr) {
      TANDEM_ASSIGN(file, weights::MappedFile::open(pull_->folder().path() / place->file, true));
    }
    const uint64_t offset = place->tensor.offset;
    const uint64_t bytes = place->tensor.bytes;
    if (file->bytes().size() < offset + bytes) {
      return invalid((pull_->folder().path() / place->file).string() + ": changed while open");
    }
    weights::TensorData data;
    data.info = entry->info;
    data.bytes = file->bytes().subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
    data.owner = file;
    data.release = [file, offset, bytes](uint64_t begin, uint64_t length) {
      if (begin < bytes) file->release(offset + begin, std::min(length, bytes - begin));
    };
    return data;
  }

 private:
  /// Null if the files hold none, or another one.
  [[nodiscard]] const Place* place_of(std::string_view tensor) const {
    const auto* entry = options_.manifest->find(tensor);
    const auto place = pull_->tensors().find(tensor);
    if (entry == nullptr || place == pull_->tensors().end()) return nullptr;
    const auto info = weights::weight_info(place->second.tensor);
    const bool same =
        info.ok() && info->dtype == entry->info.dtype && info->shape == entry->info.shape;
    return same ? &place->second : nullptr;
  }

  StageSourceOptions options_;
  std::mutex mutex_;  ///< guards what follows
  std::unique_ptr<Pull> pull_;
  std::map<std::string, std::shared_ptr<const weights::MappedFile>> files_;
};

}  // namespace

Result<std::unique_ptr<weights::TensorSource>> open_stage_source(StageSourceOptions options) {
  if (options.store.root().empty()) {
    return invalid("there is no cache of models to fetch into (TANDEM_CACHE is off)");
  }
  auto source = std::make_unique<StageSource>(std::move(options));
  TANDEM_TRY(source->open());
  return std::unique_ptr<weights::TensorSource>(std::move(source));
}

}  // namespace tandem::fetch
