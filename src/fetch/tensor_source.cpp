// A source that is asked for tensors by their names, as Pull asks for ranges of files.
#include <algorithm>
#include <set>

#include "fetch/source.h"
#include "weights/journal.h"
#include "weights/printable.h"

namespace tandem::fetch {

namespace {

class TensorRanges final : public Source {
 public:
  TensorRanges(SourceKind kind, const std::string& name, RangeReader reader)
      : Source(kind), reader_(std::move(reader)) {
    name_ = name;
    word_ = weights::journal_word(name);
    std::replace(word_.begin(), word_.end(), '?', '_');
  }

  [[nodiscard]] bool by_tensor() const override { return true; }
  void use(const Layout* layout) override { layout_ = layout; }
  [[nodiscard]] uint64_t at_hand() const override { return kept_.size(); }

  Result<std::vector<std::byte>> begin(const std::string& file, uint64_t /*length*/,
                                       RemoteFile& /*about*/) override {
    return Error{ErrorKind::kNotFound, file + ": " + name_ + " has tensors alone"};
  }

  Status range(const std::string& file, RemoteFile& /*about*/, uint64_t offset,
               std::span<std::byte> out) override {
    const Layout::const_iterator tensors =
        layout_ == nullptr ? Layout::const_iterator() : layout_->find(file);
    const Error none{ErrorKind::kNotFound, file + ", byte " + std::to_string(offset) + ": " +
                                               name_ + " has tensors alone"};
    if (file == kept_file_ && offset == kept_offset_ && out.size() <= kept_.size()) {
      std::copy_n(kept_.begin(), out.size(), out.begin());
      kept_.clear();  // were it wrong, it would have to come again
      return {};
    }
    kept_.clear();
    if (layout_ == nullptr || tensors == layout_->end()) return none;
    const std::span<std::byte> whole = out;
    const uint64_t first = offset;
    const auto keep = [&] {
      const auto got = whole.first(whole.size() - out.size());
      kept_.assign(got.begin(), got.end());
      kept_file_ = file;
      kept_offset_ = first;
    };
    while (!out.empty()) {
      auto next = tensors->second.upper_bound(offset);
      if (next == tensors->second.begin()) return none;
      --next;
      const auto& [begin, tensor] = *next;
      if (offset - begin >= tensor.length) return none;
      if (absent_.contains(tensor.name)) {
        keep();
        return absent(tensor.name);
      }
      const uint64_t count = std::min<uint64_t>(out.size(), tensor.length - (offset - begin));
      const auto part = out.first(static_cast<size_t>(count));
      const Status status = reader_(tensor.name, offset - begin, part);
      if (!status.ok()) {
        if (status.error().kind == ErrorKind::kNotFound) {
          absent_.insert(tensor.name);
          keep();
        }
        return status.error().in(name_);
      }
      received_ += count;
      offset += count;
      out = out.subspan(part.size());
    }
    return {};
  }

  Result<std::vector<Digest>> chunks(const std::string& file, uint64_t /*size*/,
                                     std::chrono::milliseconds /*wait*/) override {
    return Error{ErrorKind::kNotFound, file + ": " + name_ + " has no hashes of chunks"};
  }
  [[nodiscard]] uint64_t received() const override { return received_; }

 private:
  [[nodiscard]] Error absent(const std::string& tensor) const {
    return {ErrorKind::kNotFound, name_ + " has not got tensor " + weights::printable(tensor)};
  }

  RangeReader reader_;
  const Layout* layout_ = nullptr;
  std::set<std::string> absent_;
  uint64_t received_ = 0;
  std::vector<std::byte> kept_;  ///< at_hand(), from `kept_offset_` of that file on
  std::string kept_file_;
  uint64_t kept_offset_ = 0;
};

}  // namespace

std::unique_ptr<Source> source_of_tensors(SourceKind kind, const std::string& name,
                                          RangeReader reader) {
  return std::make_unique<TensorRanges>(kind, name, std::move(reader));
}

}  // namespace tandem::fetch
