// What a model is, from the small files and the headers of the large ones.
#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "fetch/pull.h"
#include "model/stage.h"
#include "weights/printable.h"
#include "weights/shard_index.h"

namespace tandem::fetch {

namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxTextFile = uint64_t{256} << 20;

/// What an answer of no source at all means to the one who asked.
Error none_has_it(const std::string& file, const std::vector<Error>& errors) {
  if (errors.empty()) {
    return Error{ErrorKind::kNotFound, file + ": none of the sources allowed can be asked"};
  }
  if (errors.size() == 1) return errors.front();
  // Not there anywhere is another thing than not known.
  Error error{ErrorKind::kNotFound, file + ": no source gives it"};
  for (const Error& one : errors) {
    if (one.kind != ErrorKind::kNotFound) error.kind = one.kind;
    error.message += "; " + one.message;
  }
  return error;
}

}  // namespace

Result<std::unique_ptr<Pull>> Pull::open(PullOptions options) {
  std::unique_ptr<Pull> pull(new Pull(std::move(options)));
  TANDEM_ASSIGN(pull->folder_, Folder::open(pull->options_.folder, pull->options_.patience,
                                            pull->options_.cancel));
  return pull;
}

Status Pull::describe() {
  TANDEM_TRY(contact());
  return options_.model.file.empty() ? describe_folder() : describe_file(options_.model.file);
}

Status Pull::contact() {
  const std::string file = options_.model.file.empty() ? kConfig : options_.model.file;
  const uint64_t first_bytes =
      options_.model.file.empty() ? weights::kMaxConfigBytes : kLengthBytes;
  const auto known = folder_->find(file);
  if (known) TANDEM_TRY(check_pieces(*known, 0, folder_->file(*known).size));
  for (Source* source : options_.sources) source->pin(options_.commit);
  std::vector<Error> errors;
  for (auto source = options_.sources.rbegin(); source != options_.sources.rend(); ++source) {
    RemoteFile about;
    const auto bytes = (*source)->begin(file, known ? 1 : first_bytes, about);
    if (!bytes.ok()) {
      if (bytes.error().kind == ErrorKind::kCancelled) return bytes.error();
      if (bytes.error().kind == ErrorKind::kPeer) lost_.emplace(*source, bytes.error());
      errors.push_back(bytes.error());
      continue;
    }
    if (options_.commit.empty()) {
      for (Source* one : options_.sources) one->pin(about.commit);
    }
    // Model servers know of no commits: what was begun elsewhere keeps its own.
    const std::string begun = folder_->journal().commit;
    const bool same_commit = about.commit.empty() || begun.empty() || about.commit == begun;
    TANDEM_TRY(folder_->set_model(options_.model.text(), options_.model.revision,
                                  about.commit.empty() ? begun : about.commit));
    if (known) {
      const auto& held = folder_->file(*known);
      const auto tag = held.tags.find((*source)->word());
      const bool same = held.size == about.size &&
                        (tag == held.tags.end() || about.tag.empty() || tag->second == about.tag);
      if (same && same_commit) return {};
      return revalidate(**source);
    }
    TANDEM_TRY(begin_file(file, about, *bytes, **source));
    return {};
  }
  if (known && folder_->file(*known).complete()) {
    const std::string why = errors.empty() ? "no source is allowed" : errors.front().message;
    notice("can't see whether the model has changed: " + why);
    if (options_.commit.empty()) {
      for (Source* one : options_.sources) one->pin(folder_->journal().commit);
    }
    return {};
  }
  return none_has_it(file, errors);
}

Status Pull::revalidate(Source& source) {
  for (size_t i = 0; i < folder_->journal().files.size(); ++i) {
    const weights::PulledFile& held = folder_->file(i);
    if (held.name.empty()) continue;
    RemoteFile about;
    const auto byte = source.begin(held.name, 1, about);
    if (!byte.ok() && byte.error().kind != ErrorKind::kNotFound) return byte.error();
    const auto tag = held.tags.find(source.word());
    const bool same_hash = held.sha256 && about.sha256 && *held.sha256 == *about.sha256;
    const bool same_tag = tag != held.tags.end() && !about.tag.empty() && tag->second == about.tag;
    if (byte.ok() && held.size == about.size && (same_hash || same_tag)) continue;
    notice(held.name + ": is another file by now; what was here of it is dropped");
    TANDEM_TRY(folder_->forget(i));
  }
  return {};
}

Result<size_t> Pull::know(const std::string& file, uint64_t first_bytes) {
  if (const auto known = folder_->find(file)) return *known;
  if (absent_.contains(file)) return Error{ErrorKind::kNotFound, file + ": no source has it"};
  std::vector<Error> errors;
  for (auto source = options_.sources.rbegin(); source != options_.sources.rend(); ++source) {
    if (lost_.contains(*source)) {
      errors.push_back(lost_.at(*source));
      continue;
    }
    RemoteFile about;
    auto bytes = (*source)->begin(file, std::min(first_bytes, kChunkBytes), about);
    if (!bytes.ok()) {
      if (bytes.error().kind == ErrorKind::kCancelled) return bytes.error();
      errors.push_back(bytes.error());
      // What a source that is asked for less trusted than this one says is not worth more.
      if (bytes.error().kind == ErrorKind::kNotFound) continue;
      if (bytes.error().kind == ErrorKind::kPeer) lost_.emplace(*source, bytes.error());
      continue;
    }
    return begin_file(file, about, *bytes, **source);
  }
  const Error error = none_has_it(file, errors);
  if (error.kind == ErrorKind::kNotFound) absent_.insert(file);
  return error;
}

Result<size_t> Pull::begin_file(const std::string& file, const RemoteFile& about,
                                std::span<const std::byte> bytes, Source& source) {
  TANDEM_ASSIGN(const size_t index, folder_->add(file, about.size, about.sha256));
  if (!about.tag.empty()) {
    TANDEM_TRY(folder_->tag(index, source.word(), weights::journal_word(about.tag)));
  }
  remote_[{index, &source}] = about;
  if (bytes.empty()) return index;
  TANDEM_TRY(folder_->write(index, 0, bytes, weights::journal_word(source.word())));
  figures_.fetched[source.name()] += bytes.size();
  return index;
}

Result<std::string> Pull::text_of(size_t file) {
  std::string text(static_cast<size_t>(folder_->file(file).size), '\0');
  TANDEM_TRY(folder_->read(file, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<bool> Pull::fetch_small(const std::string& file, uint64_t limit, bool required) {
  const bool before = folder_->find(file).has_value();
  const auto index = know(file, std::min(limit, kChunkBytes));
  if (!index.ok()) {
    if (index.error().kind == ErrorKind::kNotFound && !required) return false;
    return index.error();
  }
  const uint64_t size = folder_->file(*index).size;
  if (size > limit) {
    return unsupported(file + ": has " + std::to_string(size) + " bytes, expected at most " +
                       std::to_string(limit));
  }
  if (before) TANDEM_TRY(check_pieces(*index, 0, size));
  TANDEM_TRY(fetch_range(*index, 0, size));
  return true;
}

Status Pull::describe_file(const std::string& file) {
  TANDEM_TRY(know(file, kLengthBytes));
  weight_files_ = {file};
  return {};
}

Status Pull::describe_folder() {
  TANDEM_TRY(fetch_small(kConfig, weights::kMaxConfigBytes, true));
  TANDEM_ASSIGN(config_json_, text_of(*folder_->find(kConfig)));

  const auto single = know(kSingle, kLengthBytes);
  if (!single.ok() && single.error().kind != ErrorKind::kNotFound) return single.error();
  std::map<std::string, std::string> index;
  if (single.ok()) {
    weight_files_ = {kSingle};
  } else {
    TANDEM_ASSIGN(const bool indexed, fetch_small(kIndex, weights::kMaxIndexBytes, false));
    if (!indexed) {
      return Error{ErrorKind::kNotFound, options_.model.text() + ": has neither " + kSingle +
                                             " nor " + kIndex +
                                             "; of a GGUF file give the whole URL"};
    }
    TANDEM_ASSIGN(const std::string text, text_of(*folder_->find(kIndex)));
    auto parsed = weights::parse_shard_index(text);
    if (!parsed.ok()) return parsed.error().in(kIndex);
    index = std::move(*parsed);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : index) shards.insert(shard);
    weight_files_.assign(shards.begin(), shards.end());
  }
  size_t read = 0;
  for (const std::string& file : weight_files_) {
    if (options_.progress) options_.progress("lists of tensors", ++read, weight_files_.size());
    TANDEM_TRY(read_list(file));
  }
  if (!single.ok()) {
    std::erase_if(tensors_, [&](const auto& one) {
      const auto listed = index.find(one.first);
      return listed == index.end() || listed->second != one.second.file;
    });
    for (const auto& [tensor, shard] : index) {
      if (tensors_.contains(tensor)) continue;
      return invalid(shard + ": expected tensor " + weights::printable(tensor) + ", which " +
                     kIndex + " says is there");
    }
  }

  TANDEM_ASSIGN(const bool listed,
                fetch_small(weights::kManifestFile, weights::kMaxManifestBytes, false));
  if (!listed) return {};
  TANDEM_ASSIGN(const std::string text, text_of(*folder_->find(weights::kManifestFile)));
  auto manifest = weights::Manifest::parse(std::as_bytes(std::span(text)));
  if (manifest.ok() && manifest->config == sha256(config_json_)) {
    trust(std::move(*manifest));
  } else {
    notice(std::string(weights::kManifestFile) + ": is not of this model, and not used");
  }
  return {};
}

void Pull::trust(weights::Manifest manifest) {
  manifest_ = std::move(manifest);
  spots_.clear();
  layout_.clear();
  checked_.clear();
  for (const weights::ManifestTensor& one : manifest_->tensors) {
    const auto place = tensors_.find(one.info.name);
    if (place == tensors_.end()) continue;
    // Others were converted from what the file holds, and have no hash as they lie there.
    const weights::StoredTensor& tensor = place->second.tensor;
    const auto info = weights::weight_info(tensor);
    if (!info.ok() || info->dtype != one.info.dtype || info->shape != one.info.shape) continue;
    spots_.emplace(one.info.name, Spot{place->second.file, tensor.offset, tensor.bytes});
    layout_[place->second.file].emplace(tensor.offset, TensorSpan{tensor.bytes, tensor.name});
  }
  for (Source* source : options_.sources) source->use(&layout_);
}

Status Pull::keep_text(const char* file, std::string_view text) {
  auto index = folder_->find(file);
  if (index && folder_->file(*index).size != text.size()) {
    TANDEM_TRY(folder_->forget(*index));
    index.reset();
  }
  if (!index) {
    TANDEM_ASSIGN(index, folder_->add(file, text.size(), sha256(text)));
  }
  TANDEM_TRY(check_pieces(*index, 0, text.size()));
  const auto bytes = std::as_bytes(std::span(text));
  for (const Piece& piece : missing_pieces(*index, 0, text.size())) {
    TANDEM_TRY(folder_->write(
        *index, piece.offset,
        bytes.subspan(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.length)),
        "host"));
  }
  return {};
}

Status Pull::describe_tensors(const weights::Manifest& manifest, const std::string& config_json) {
  uint64_t size = 0;
  TANDEM_ASSIGN(spots_, stage_spots(manifest, size));
  const std::vector<std::byte> text = manifest.serialize();
  TANDEM_TRY(folder_->set_model(options_.model.text(), options_.model.revision, options_.commit));
  TANDEM_TRY(keep_text(kStageManifest, {reinterpret_cast<const char*>(text.data()), text.size()}));
  TANDEM_TRY(keep_text(kStageConfig, config_json));
  auto index = folder_->find(kStageTensors);
  if (index && folder_->file(*index).size != size) {
    TANDEM_TRY(folder_->forget(*index));
    index.reset();
  }
  if (!index) {
    TANDEM_ASSIGN(index, folder_->add(kStageTensors, size, std::nullopt));
  }
  manifest_ = manifest;
  config_json_ = config_json;
  weight_files_ = {kStageTensors};
  layout_.clear();
  checked_.clear();
  for (const auto& [name, spot] : spots_) {
    layout_[spot.file].emplace(spot.offset, TensorSpan{spot.length, name});
  }
  for (Source* source : options_.sources) source->use(&layout_);
  return {};
}

Status Pull::read_list(const std::string& file) {
  TANDEM_ASSIGN(const size_t index, know(file, kLengthBytes));
  const uint64_t size = folder_->file(index).size;
  TANDEM_TRY(check_pieces(index, 0, std::min(size, kLengthBytes)));
  TANDEM_TRY(fetch_range(index, 0, std::min(size, kLengthBytes)));
  uint64_t length = 0;
  if (size >= kLengthBytes) {
    TANDEM_TRY(folder_->read(index, 0, std::as_writable_bytes(std::span(&length, 1))));
  }
  if (length < 2 || length > weights::kMaxSafetensorsHeader || size < kLengthBytes ||
      length > size - kLengthBytes) {
    return invalid(file + ": is no safetensors file: a header of " + std::to_string(length) +
                   " bytes in a file of " + std::to_string(size));
  }
  TANDEM_TRY(check_pieces(index, 0, kLengthBytes + length));
  TANDEM_TRY(fetch_range(index, 0, kLengthBytes + length));
  std::vector<std::byte> header(static_cast<size_t>(kLengthBytes + length));
  TANDEM_TRY(folder_->read(index, 0, header));
  auto tensors = weights::parse_safetensors(header, size);
  if (!tensors.ok()) return tensors.error().in(file);
  for (weights::StoredTensor& tensor : *tensors) {
    std::string name = tensor.name;
    tensors_.insert_or_assign(std::move(name), Place{file, std::move(tensor)});
  }
  return {};
}

Status Pull::fetch_text_files() {
  // What the tokenizer and the chat template are read from (src/text), and what describes them.
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
        "chat_template.json", "special_tokens_map.json"}) {
    TANDEM_TRY(fetch_small(file, kMaxTextFile, false));
  }
  return {};
}

std::vector<Range> Pull::whole() const {
  std::vector<Range> ranges;
  for (const std::string& file : weight_files_) {
    ranges.push_back({file, 0, folder_->file(*folder_->find(file)).size});
  }
  return ranges;
}

Result<model::ModelConfig> Pull::config() const {
  auto json = nlohmann::json::parse(config_json_, nullptr, false);
  if (!json.is_object()) return invalid("config.json: expected a JSON object");
  // How weights are stored does not change which tensors are a layer's.
  for (const char* key : {"quantization_config", "compression_config"}) json.erase(key);
  auto config = model::parse_config(json.dump());
  if (!config.ok()) return config.error().in("config.json");
  model::resolve_prefix(
      *config, [&](std::string_view tensor) { return tensors_.find(tensor) != tensors_.end(); });
  return config;
}

Result<std::vector<Range>> Pull::layers(uint32_t first, uint32_t last) const {
  TANDEM_ASSIGN(const model::ModelConfig config, this->config());
  if (first >= last || last > config.layers) {
    return invalid("expected layers within 0-" + std::to_string(config.layers - 1));
  }
  std::vector<Range> ranges;
  for (uint32_t layer = first; layer < last; ++layer) {
    // By what names begin with: quantized weights have others behind them, or more of them.
    const std::string number = "." + std::to_string(layer) + ".";
    std::set<std::string> prefixes;
    for (const auto& tensor : model::layer_tensors(config, layer, layer + 1)) {
      const auto at = tensor.name.find(number);
      if (at != std::string::npos) prefixes.insert(tensor.name.substr(0, at + number.size()));
    }
    const size_t before = ranges.size();
    for (const std::string& prefix : prefixes) {
      for (auto one = tensors_.lower_bound(prefix);
           one != tensors_.end() && one->first.starts_with(prefix); ++one) {
        ranges.push_back({one->second.file, one->second.tensor.offset, one->second.tensor.bytes});
      }
    }
    if (ranges.size() == before) {
      return invalid("the model has no tensors of layer " + std::to_string(layer));
    }
  }
  return ranges;
}

Result<std::vector<Range>> Pull::ends() const {
  TANDEM_ASSIGN(const model::ModelConfig config, this->config());
  std::vector<Range> ranges;
  for (const auto& tensor : model::ends_tensors(config)) {
    std::string prefix = tensor.name;
    if (prefix.ends_with(".weight")) prefix.resize(prefix.size() - 6);
    for (auto one = tensors_.lower_bound(prefix);
         one != tensors_.end() && one->first.starts_with(prefix); ++one) {
      ranges.push_back({one->second.file, one->second.tensor.offset, one->second.tensor.bytes});
    }
  }
  if (ranges.empty()) return invalid("the model has no tensors of an embedding or output head");
  return ranges;
}

}  // namespace tandem::fetch
