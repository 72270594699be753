#include "fetch/stage_source.h"

#include <algorithm>
#include <fstream>
#include <mutex>

#include "weights/printable.h"

namespace tandem::fetch {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);

class StageSource final : public weights::ManifestSource {
 public:
  explicit StageSource(StageSourceOptions options)
      : ManifestSource(*options.manifest), options_(std::move(options)) {}

  Status open() {
    Status status = open_pulled();
    if (!status.ok()) return status;
    if (pull_ == nullptr) status = open_files();
    if (status.ok() && pull_ == nullptr) status = open_tensors();
    if (!status.ok()) return status;
    if (!options_.mark.empty()) {
      const std::ofstream mark(pull_->folder().path() / options_.mark, std::ios::app);
      if (!mark)
        return Error{ErrorKind::kIo, "can't write into " + pull_->folder().path().string()};
    }
    // Folders of tensors say what they are themselves.
    if (!pull_->tensors().empty()) {
      options_.shelf->put(model_hash(manifest()), pull_->folder().path(), pull_->spots());
    }
    std::vector<Range> ranges;
    for (const std::string& name : options_.tensors) {
      if (const Spot* spot = pull_->spot(name)) {
        ranges.push_back({spot->file, spot->offset, spot->length});
      }
    }
    const uint64_t missing = pull_->missing(ranges);
    if (missing == 0) return {};
    TANDEM_TRY(store().make_room(missing, options_.limit, pull_->folder().path(), {}));
    Status fetched = pull_->fetch(ranges);
    for (const auto& [source, bytes] : pull_->figures().fetched) {
      if (options_.fetched) options_.fetched(source, bytes);
    }
    if (fetched.ok() || fetched.error().kind == ErrorKind::kPeer ||
        fetched.error().kind == ErrorKind::kCancelled) {
      return fetched;
    }
    if (options_.notice) options_.notice(fetched.error().message);
    return {};
  }

  [[nodiscard]] Result<weights::TensorData> read(std::string_view tensor) override {
    const std::lock_guard lock(mutex_);
    const auto* entry = manifest().find(tensor);
    const Spot* spot = pull_->spot(tensor);
    if (entry == nullptr || spot == nullptr) {
      return Error{ErrorKind::kNotFound, options_.model.text() + ": its files do not hold tensor " +
                                             weights::printable(tensor) + " as it is needed"};
    }
    if (const Status fetched = pull_->fetch_tensor(std::string(tensor)); !fetched.ok()) {
      if (fetched.error().kind != ErrorKind::kNotFound) return fetched.error();
      return fetched.error().in("none of the sources allowed has tensor " +
                                weights::printable(tensor));
    }
    std::shared_ptr<const weights::MappedFile>& file = files_[spot->file];
    if (file == nullptr) {
      TANDEM_ASSIGN(file, weights::MappedFile::open(pull_->folder().path() / spot->file, true));
    }
    const uint64_t offset = spot->offset;
    const uint64_t bytes = spot->length;
    if (file->bytes().size() < offset + bytes) {
      return invalid((pull_->folder().path() / spot->file).string() + ": changed while open");
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
  [[nodiscard]] const Store& store() const { return options_.shelf->store(); }

  [[nodiscard]] PullOptions pull_options(const std::filesystem::path& folder) {
    PullOptions pull;
    pull.model = options_.model;
    pull.folder = folder;
    for (const auto& source : options_.sources) pull.sources.push_back(source.get());
    pull.patience = options_.patience;
    pull.cancel = options_.cancel;
    pull.notice = options_.notice;
    pull.progress = [this](std::string_view, uint64_t done, uint64_t total) {
      if (options_.progress) options_.progress(done, total);
    };
    return pull;
  }

  /// The folder of a model that was pulled by its name, if there is one and its content is that of
  /// the manifest: a host that means another model by the name must not have what was pulled
  /// thrown away tensor by tensor. Leaves pull_ null if not.
  Status open_pulled() {
    // A revision from outside is compared with those that are here, and no path is made of it.
    for (const StoredModel& stored : store().list()) {
      const weights::Journal& journal = stored.journal;
      if (stored.path.parent_path().filename() == "by-hash" ||
          journal.model != options_.model.text()) {
        continue;
      }
      if (journal.revision != options_.model.revision &&
          journal.commit != options_.model.revision) {
        continue;
      }
      PullOptions pull = pull_options(stored.path);
      pull.model.revision = journal.revision;
      pull.commit = journal.commit;
      // Others may be at it for long, and have their own folders to fetch into; so have we.
      pull.patience = std::min<std::chrono::milliseconds>(kPatience, options_.patience);
      auto opened = Pull::open(std::move(pull));
      if (!opened.ok()) {
        // Tensors alone are not much; all the model's files would be.
        const bool tensors = !options_.config_json.empty();
        if (!tensors || opened.error().kind == ErrorKind::kCancelled) return opened.error();
        if (options_.notice) options_.notice(opened.error().message);
        continue;
      }
      pull_ = std::move(*opened);
      Status status = pull_->describe();
      if (!status.ok() && status.error().kind == ErrorKind::kCancelled) return status;
      if (status.ok() && sha256(pull_->config_json()) == manifest().config) {
        pull_->trust(manifest());
        TANDEM_ASSIGN(const bool same, pull_->agrees(options_.tensors));
        if (same) return {};
      }
      pull_.reset();
      if (options_.notice) {
        options_.notice(stored.path.string() +
                        ": is not the host's model of that name, and left alone");
      }
    }
    return {};
  }

  /// A folder of the model's own files, as far as a source knows them. Leaves pull_ null if none
  /// does, and tensors alone can be had.
  Status open_files() {
    const auto& sources = options_.sources;
    const bool any = std::any_of(sources.begin(), sources.end(),
                                 [](const auto& source) { return !source->by_tensor(); });
    const bool tensors = !options_.config_json.empty();
    if (!any && tensors) return {};
    std::string name = hex(model_hash(manifest()));
    if (!options_.slot.empty()) name += "-" + options_.slot;
    TANDEM_ASSIGN(pull_, Pull::open(pull_options(store().root() / "by-hash" / name)));
    Status described = pull_->describe();
    if (described.ok()) {
      pull_->trust(manifest());
      return {};
    }
    pull_.reset();
    if (!tensors || described.error().kind == ErrorKind::kCancelled) return described;
    if (options_.notice) options_.notice(described.error().message);
    return {};
  }

  Status open_tensors() {
    const Digest hash = model_hash(manifest());
    TANDEM_ASSIGN(pull_,
                  Pull::open(pull_options(store().root() / stage_folder(hash, options_.slot))));
    return pull_->describe_tensors(manifest(), options_.config_json);
  }

  StageSourceOptions options_;
  std::mutex mutex_;  ///< guards what follows
  std::unique_ptr<Pull> pull_;
  std::map<std::string, std::shared_ptr<const weights::MappedFile>> files_;
};

}  // namespace

Result<std::unique_ptr<weights::TensorSource>> open_stage_source(StageSourceOptions options) {
  if (options.shelf == nullptr || options.shelf->store().root().empty()) {
    return invalid("there is no cache of models to fetch into (TANDEM_CACHE is off)");
  }
  auto source = std::make_unique<StageSource>(std::move(options));
  TANDEM_TRY(source->open());
  return std::unique_ptr<weights::TensorSource>(std::move(source));
}

}  // namespace tandem::fetch
