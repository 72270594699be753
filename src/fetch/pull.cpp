#include "fetch/pull.h"

#include <algorithm>

#include "weights/printable.h"

namespace tandem::fetch {

namespace {

constexpr int kMostStrikes = 3;

std::string place_text(const std::string& file, uint64_t offset, uint64_t length) {
  return file + ", bytes " + std::to_string(offset) + " to " + std::to_string(offset + length);
}

}  // namespace

void Pull::notice(const std::string& line) const {
  if (options_.notice) options_.notice(line);
}

void Pull::accuse(const std::string& source, const std::string& what) {
  ++figures_.wrong;
  ++strikes_[source];
  notice(source + " gave wrong bytes of " + what);
}

std::vector<Pull::Piece> Pull::missing_pieces(size_t file, uint64_t offset, uint64_t length) const {
  std::vector<Piece> result;
  const auto& pieces = folder_->file(file).pieces;
  const uint64_t end = offset + length;
  auto next = pieces.upper_bound(offset);
  if (next != pieces.begin()) {
    const auto before = std::prev(next);
    offset = std::max(offset, before->first + before->second.length);
  }
  while (offset < end) {
    if (next != pieces.end() && next->first == offset) {
      offset += next->second.length;
      ++next;
      continue;
    }
    uint64_t stop = std::min(end, (offset / kChunkBytes + 1) * kChunkBytes);
    if (next != pieces.end()) stop = std::min(stop, next->first);
    result.push_back({offset, stop - offset});
    offset = stop;
  }
  return result;
}

uint64_t Pull::missing(const std::vector<Range>& wanted) const {
  // Each byte once, also where ranges overlap.
  std::map<size_t, std::map<uint64_t, uint64_t>> gaps;
  for (const Range& range : wanted) {
    const auto file = folder_->find(range.file);
    if (!file) continue;
    for (const Piece& piece : missing_pieces(*file, range.offset, range.length)) {
      uint64_t& end = gaps[*file][piece.offset];
      end = std::max(end, piece.offset + piece.length);
    }
  }
  uint64_t total = 0;
  for (const auto& [file, parts] : gaps) {
    uint64_t seen = 0;
    for (const auto& [begin, end] : parts) {
      if (end > seen) total += end - std::max(seen, begin);
      seen = std::max(seen, end);
    }
  }
  return total;
}

RemoteFile& Pull::remote(size_t file, const Source& source) {
  const auto [entry, fresh] = remote_.try_emplace({file, &source});
  if (fresh) {
    const weights::PulledFile& held = folder_->file(file);
    entry->second.size = held.size;
    entry->second.sha256 = held.sha256;
    if (const auto tag = held.tags.find(source.word()); tag != held.tags.end()) {
      entry->second.tag = tag->second;
    }
  }
  return entry->second;
}

Status Pull::check_pieces(size_t file, uint64_t offset, uint64_t length) {
  const weights::PulledFile& held = folder_->file(file);
  std::vector<std::pair<uint64_t, weights::PulledPiece>> pieces;
  for (const auto& [begin, piece] : held.pieces) {
    if (begin < offset + length && begin + piece.length > offset) pieces.emplace_back(begin, piece);
  }
  for (const auto& [begin, piece] : pieces) {
    if (cancelled()) return Error{ErrorKind::kCancelled, "cancelled"};
    TANDEM_ASSIGN(const Digest found, folder_->hash(file, begin, piece.length));
    done_ += piece.length;
    if (options_.progress && total_ != 0) {
      options_.progress("checking what is here", done_, total_);
    }
    if (found == piece.sha256) continue;
    figures_.damaged += piece.length;
    notice(place_text(held.name, begin, piece.length) +
           ": are damaged on this disk, and fetched again");
    TANDEM_TRY(folder_->lose(file, begin));
  }
  return {};
}

Status Pull::check_cached(const std::vector<Range>& wanted) {
  std::set<size_t> files;
  done_ = total_ = 0;
  for (const Range& range : wanted) {
    const auto file = folder_->find(range.file);
    if (file && files.insert(*file).second) total_ += folder_->file(*file).present();
  }
  Status status;
  for (const size_t file : files) {
    if (status.ok()) status = check_pieces(file, 0, folder_->file(file).size);
  }
  done_ = total_ = 0;
  return status;
}

Status Pull::from_source(size_t file, const Piece& piece, Source& source) {
  const std::string name = folder_->file(file).name;
  std::vector<std::byte> bytes(static_cast<size_t>(piece.length));
  RemoteFile& about = remote(file, source);
  TANDEM_TRY(source.range(name, about, piece.offset, bytes));
  const auto known = chunks_.find(file);
  const uint64_t chunk = piece.offset / kChunkBytes;
  const uint64_t whole = std::min(kChunkBytes, folder_->file(file).size - chunk * kChunkBytes);
  if (known != chunks_.end() && chunk < known->second.size() && piece.offset % kChunkBytes == 0 &&
      piece.length == whole) {
    const Digest found = sha256(bytes);
    if (found != known->second[chunk]) {
      accuse(source.word(), place_text(name, piece.offset, piece.length));
      return invalid(place_text(name, piece.offset, piece.length) + ": expected SHA-256 " +
                     hex(known->second[chunk]) + ", found " + hex(found) + " at " + source.word());
    }
  }
  if (!about.tag.empty()) {
    TANDEM_TRY(folder_->tag(file, source.word(), weights::journal_word(about.tag)));
  }
  TANDEM_TRY(folder_->write(file, piece.offset, bytes, weights::journal_word(source.word())));
  figures_.fetched[source.name()] += piece.length;
  done_ += piece.length;
  if (options_.progress && total_ != 0) options_.progress(name, done_, total_);
  return {};
}

Status Pull::fetch_piece(size_t file, Piece& piece) {
  std::string why;
  ErrorKind kind = ErrorKind::kNotFound;
  const auto failed = [&](const Error& error) {
    // The one reason that says most: wrong bytes, then no answer, then no such file.
    if (kind != ErrorKind::kInvalid) kind = error.kind;
    why += (why.empty() ? "" : "; ") + error.message;
  };
  for (Source* source : options_.sources) {
    if (const auto lost = lost_.find(source); lost != lost_.end()) {
      failed(lost->second);
      continue;
    }
    if (const auto out = failed_.find({file, source}); out != failed_.end()) {
      failed(out->second);
      continue;
    }
    // A wrong piece may be a line's fault, a third one is the source's.
    for (;;) {
      if (cancelled()) return Error{ErrorKind::kCancelled, "cancelled"};
      const int strikes = strikes_[source->word()];
      if (strikes >= kMostStrikes) {
        failed(invalid(source->word() + " gave wrong bytes " + std::to_string(strikes) +
                       " times and is not asked any more"));
        break;
      }
      const Status status = from_source(file, piece, *source);
      if (status.ok()) return {};
      const Error& error = status.error();
      if (error.kind == ErrorKind::kCancelled || error.kind == ErrorKind::kIo) return error;
      if (strikes_[source->word()] != strikes) {
        if (options_.sources.size() == 1 && strikes + 1 < kMostStrikes) continue;
        failed(error);
        break;
      }
      failed(error);
      // One that has only some tensors has said nothing of the others.
      if (source->by_tensor() && error.kind == ErrorKind::kNotFound) {
        const uint64_t front = source->at_hand();
        if (front == 0 || front >= piece.length) break;
        piece.length = front;
        continue;
      }
      if (error.kind == ErrorKind::kPeer) {
        lost_.emplace(source, error);
      } else {
        failed_.emplace(std::pair(file, source), error);
      }
      if (options_.sources.size() > 1) notice(error.message);
      break;
    }
  }
  if (why.empty()) why = "none of the sources allowed can be asked";
  return Error{kind, place_text(folder_->file(file).name, piece.offset, piece.length) + ": " + why};
}

Status Pull::fetch_range(size_t file, uint64_t offset, uint64_t length) {
  for (const Piece& wanted : missing_pieces(file, offset, length)) {
    for (Piece rest = wanted; rest.length != 0;) {
      Piece piece = rest;
      TANDEM_TRY(fetch_piece(file, piece));
      TANDEM_TRY(check_chunks(file, piece));
      TANDEM_TRY(check_tensors(file, piece.offset, piece.length));
      rest = {rest.offset + piece.length, rest.length - piece.length};
    }
  }
  return {};
}

void Pull::find_chunks(size_t file) {
  if (chunks_.contains(file)) return;
  std::vector<Digest>& chunks = chunks_[file];
  const std::string name = folder_->file(file).name;
  // The last is trusted most.
  for (auto source = options_.sources.rbegin(); source != options_.sources.rend(); ++source) {
    if (lost_.contains(*source)) continue;
    auto found = (*source)->chunks(name, folder_->file(file).size, options_.hashes);
    if (!found.ok()) continue;
    chunks = std::move(*found);
    return;
  }
}

Status Pull::check_chunks(size_t file, const Piece& piece) {
  const auto known = chunks_.find(file);
  const uint64_t chunk = piece.offset / kChunkBytes;
  if (known == chunks_.end() || chunk >= known->second.size()) return {};
  const weights::PulledFile& held = folder_->file(file);
  const uint64_t begin = chunk * kChunkBytes;
  const uint64_t length = std::min(kChunkBytes, held.size - begin);
  if (piece.length == length || !held.has(begin, length)) return {};
  return mend(file, begin, length, known->second[chunk], place_text(held.name, begin, length));
}

Status Pull::check_tensors(size_t file, uint64_t offset, uint64_t length) {
  const weights::PulledFile& held = folder_->file(file);
  const auto tensors = layout_.find(held.name);
  if (!manifest_ || tensors == layout_.end()) return {};
  auto next = tensors->second.upper_bound(offset);
  if (next != tensors->second.begin()) --next;
  for (; next != tensors->second.end() && next->first < offset + length; ++next) {
    const auto& [begin, tensor] = *next;
    if (begin + tensor.length <= offset || !held.has(begin, tensor.length) ||
        checked_.contains(tensor.name)) {
      continue;
    }
    TANDEM_TRY(mend(file, begin, tensor.length, manifest_->find(tensor.name)->sha256,
                    "tensor " + weights::printable(tensor.name)));
    checked_.insert(tensor.name);
  }
  return {};
}

Status Pull::check_file(size_t file) {
  const weights::PulledFile& held = folder_->file(file);
  if (!held.sha256 || !held.complete()) return {};
  if (options_.progress) options_.progress("checking " + held.name, 0, held.size);
  TANDEM_ASSIGN(const Digest found, folder_->hash(file, 0, held.size));
  if (found == *held.sha256) return {};
  // Each chunk was as the list says, and the whole is wrong: then so is the list.
  chunks_[file].clear();
  return mend(file, 0, held.size, *held.sha256, held.name);
}

Status Pull::fetch_again(size_t file, uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  const auto tensors = layout_.find(folder_->file(file).name);
  if (tensors != layout_.end()) {
    auto next = tensors->second.upper_bound(offset);
    if (next != tensors->second.begin()) --next;
    for (; next != tensors->second.end() && next->first < offset + length; ++next) {
      checked_.erase(next->second.name);
    }
  }
  return fetch_range(file, offset, length);
}

Status Pull::mend(size_t file, uint64_t offset, uint64_t length, const Digest& expected,
                  const std::string& what) {
  TANDEM_ASSIGN(Digest found, folder_->hash(file, offset, length));
  if (found == expected) return {};
  TANDEM_TRY(check_pieces(file, offset, length));

  // Pieces that lie in the range; those that reach beyond it as well.
  std::map<uint64_t, weights::PulledPiece> before;
  std::set<std::string> suspects;
  for (const auto& [begin, piece] : folder_->file(file).pieces) {
    if (begin >= offset + length || begin + piece.length <= offset) continue;
    before.emplace(begin, piece);
    suspects.insert(piece.source);
  }
  std::vector<Source*> order = options_.sources;
  std::stable_sort(order.begin(), order.end(), [&](const Source* a, const Source* b) {
    return suspects.contains(a->word()) < suspects.contains(b->word());
  });
  std::string why;
  for (Source* source : order) {
    if (lost_.contains(source) || strikes_[source->word()] >= kMostStrikes) continue;
    // What came from this one stays, but for the case that there is no other.
    const bool alone = suspects.size() == 1 && suspects.contains(source->word());
    uint64_t begin_all = offset;
    uint64_t end_all = offset + length;
    std::vector<uint64_t> drop;
    for (const auto& [begin, piece] : folder_->file(file).pieces) {
      if (begin >= offset + length || begin + piece.length <= offset) continue;
      if (piece.source == source->word() && !alone) continue;
      begin_all = std::min(begin_all, begin);
      end_all = std::max(end_all, begin + piece.length);
      drop.push_back(begin);
    }
    for (const uint64_t begin : drop) TANDEM_TRY(folder_->lose(file, begin));
    Status status;
    for (const Piece& piece : missing_pieces(file, offset, length)) {
      if (cancelled()) return Error{ErrorKind::kCancelled, "cancelled"};
      status = from_source(file, piece, *source);
      if (!status.ok()) break;
    }
    if (!status.ok()) {
      if (status.error().kind == ErrorKind::kCancelled || status.error().kind == ErrorKind::kIo) {
        return status;
      }
      why += "; " + status.error().message;
      continue;
    }
    TANDEM_ASSIGN(found, folder_->hash(file, offset, length));
    if (found != expected) {
      why += "; " + source->word() + " gives SHA-256 " + hex(found);
      suspects.insert(source->word());
      continue;
    }
    for (const auto& [begin, piece] : before) {
      TANDEM_ASSIGN(const Digest now, folder_->hash(file, begin, piece.length));
      if (now != piece.sha256) {
        accuse(piece.source, what + " (" +
                                 place_text(folder_->file(file).name, begin, piece.length) +
                                 "), taken from " + source->word() + " instead");
      }
    }
    // What lay beside it in the same pieces: the source may not have that.
    TANDEM_TRY(fetch_again(file, begin_all, offset - begin_all));
    return fetch_again(file, offset + length, end_all - (offset + length));
  }
  // Nothing wrong stays.
  std::vector<uint64_t> wrong;
  std::string from;
  for (const auto& [begin, piece] : folder_->file(file).pieces) {
    if (begin < offset + length && begin + piece.length > offset) wrong.push_back(begin);
  }
  for (const uint64_t begin : wrong) TANDEM_TRY(folder_->lose(file, begin));
  for (const std::string& one : suspects) from += (from.empty() ? "" : ", ") + one;
  return invalid(what + ": expected SHA-256 " + hex(expected) + ", which no source gives: not " +
                 from + why);
}

Status Pull::fetch(std::vector<Range> wanted) {
  std::sort(wanted.begin(), wanted.end(), [](const Range& a, const Range& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  done_ = 0;
  total_ = missing(wanted);
  // Neighbours are one range: a request less, and whole chunks can be compared.
  std::vector<Range> merged;
  for (const Range& range : wanted) {
    if (!merged.empty() && merged.back().file == range.file &&
        merged.back().offset + merged.back().length >= range.offset) {
      const uint64_t end =
          std::max(merged.back().offset + merged.back().length, range.offset + range.length);
      merged.back().length = end - merged.back().offset;
    } else {
      merged.push_back(range);
    }
  }
  std::set<size_t> touched;
  for (const Range& range : merged) {
    TANDEM_ASSIGN(const size_t file, know(range.file, 8));
    if (missing_pieces(file, range.offset, range.length).empty()) continue;
    touched.insert(file);
    find_chunks(file);
    TANDEM_TRY(fetch_range(file, range.offset, range.length));
  }
  for (const size_t file : touched) TANDEM_TRY(check_file(file));
  total_ = 0;
  return folder_->settle();
}

const Spot* Pull::spot(std::string_view tensor) const {
  const auto found = spots_.find(tensor);
  return found == spots_.end() ? nullptr : &found->second;
}

Result<bool> Pull::agrees(const std::vector<std::string>& tensors) {
  for (const std::string& name : tensors) {
    const Spot* spot = this->spot(name);
    const auto file = spot == nullptr ? std::nullopt : folder_->find(spot->file);
    if (!file || !folder_->file(*file).has(spot->offset, spot->length)) continue;
    if (cancelled()) return Error{ErrorKind::kCancelled, "cancelled"};
    const Digest& expected = manifest_->find(name)->sha256;
    TANDEM_ASSIGN(Digest found, folder_->hash(*file, spot->offset, spot->length));
    if (found != expected) {
      TANDEM_TRY(check_pieces(*file, spot->offset, spot->length));
      if (!folder_->file(*file).has(spot->offset, spot->length)) continue;
      return false;
    }
    checked_.insert(name);
  }
  return true;
}

Status Pull::fetch_tensor(const std::string& tensor) {
  const Spot* spot = this->spot(tensor);
  if (spot == nullptr) {
    return Error{ErrorKind::kNotFound,
                 "no tensor " + weights::printable(tensor) + " in these files"};
  }
  TANDEM_ASSIGN(const size_t file, know(spot->file, 8));
  find_chunks(file);
  TANDEM_TRY(fetch_range(file, spot->offset, spot->length));
  if (checked_.contains(tensor)) return {};
  TANDEM_TRY(mend(file, spot->offset, spot->length, manifest_->find(tensor)->sha256,
                  "tensor " + weights::printable(tensor)));
  checked_.insert(tensor);
  return {};
}

}  // namespace tandem::fetch
