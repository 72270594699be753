#include "cli/model_files.h"

#include <cstdlib>

#include "cli/models_cache.h"
#include "weights/gguf_text.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

bool is_model(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / "config.json", code);
}

/// The models that come with Tandem: models/ beside the executable or at most three folders above.
std::optional<fs::path> models_folder() {
  fs::path folder = executable().parent_path();
  for (int i = 0; i < 4 && !folder.empty(); ++i) {
    if (is_model(folder / "models" / "storyteller")) return folder / "models";
    if (folder == folder.root_path()) break;
    folder = folder.parent_path();
  }
  return std::nullopt;
}

Result<text::Tokenizer> tokenizer_of(const weights::GgufText& parts) {
  std::string templates;
  for (const auto& [name, source] : parts.chat.templates) templates += source + "\n";
  return text::Tokenizer::from_vocabulary(parts.vocabulary, templates);
}

}  // namespace

fs::path executable() {
  std::error_code code;
  return fs::read_symlink("/proc/self/exe", code);
}

Result<fs::path> find_model(const std::string& given) {
  std::string name = given;
  if (name.empty()) {
    const char* variable = std::getenv("TANDEM_MODEL");
    if (variable != nullptr && *variable != 0) name = variable;
  }
  const auto models = models_folder();
  if (name.empty()) {
    if (models) return *models / "storyteller";
    return Error{ErrorKind::kNotFound,
                 "no model given, and models/storyteller is not near the executable: use -m DIR"};
  }
  std::error_code code;
  if (fs::exists(name, code)) return fs::path(name);
  if (models && name.find('/') == std::string::npos && is_model(*models / name)) {
    return *models / name;
  }
  if (const auto pulled = pulled_model(name)) return *pulled;
  return Error{ErrorKind::kNotFound,
               name + ": there is no such model folder or file" +
                   (pullable(name) ? "; 'tandem pull " + name + "' fetches the model" : "")};
}

std::string origin_of(const weights::Checkpoint& checkpoint) {
  if (const weights::Journal* journal = checkpoint.journal()) {
    return journal->model + "@" + (journal->commit.empty() ? journal->revision : journal->commit);
  }
  return checkpoint.folder().filename().string();
}

Result<Model> Model::open(const std::string& given) {
  Model model;
  TANDEM_ASSIGN(const fs::path folder, find_model(given));
  TANDEM_ASSIGN(model.checkpoint, weights::Checkpoint::open(folder));
  auto config = model::parse_config(model.checkpoint->config_json());
  if (!config.ok()) return config.error().in((folder / "config.json").string());
  model.config = std::move(*config);
  model::resolve_prefix(model.config, [&](std::string_view tensor) {
    return model.checkpoint->find(tensor) != nullptr;
  });
  return model;
}

Result<Text> Text::open(const fs::path& folder) {
  TANDEM_ASSIGN(text::Tokenizer tokenizer, text::Tokenizer::load(folder));
  auto chat = text::ChatTemplate::load(folder);
  if (!chat.ok()) return chat.error();
  TANDEM_ASSIGN(auto generation, text::read_generation_config(folder, &tokenizer));
  return Text{std::move(tokenizer), std::move(*chat), std::move(generation)};
}

Result<Text> Text::open(const weights::Checkpoint& checkpoint) {
  if (checkpoint.gguf() == nullptr) return open(checkpoint.folder());
  auto text = [&]() -> Result<Text> {
    TANDEM_ASSIGN(weights::GgufText parts, weights::gguf_text(*checkpoint.gguf()));
    TANDEM_ASSIGN(text::Tokenizer tokenizer, tokenizer_of(parts));
    TANDEM_ASSIGN(auto chat, text::ChatTemplate::from_sources(std::move(parts.chat)));
    return Text{std::move(tokenizer), std::move(chat), std::move(parts.generation)};
  }();
  if (!text.ok()) return text.error().in(checkpoint.folder().string());
  return text;
}

Result<text::Tokenizer> open_tokenizer(const fs::path& path) {
  std::error_code code;
  if (fs::exists(path / "tokenizer.json", code)) return text::Tokenizer::load(path);
  fs::path file = path;
  if (fs::is_directory(path, code)) {
    const auto models = weights::gguf_models(path);
    if (models.size() != 1) return text::Tokenizer::load(path);
    file = models.front();
  }
  TANDEM_ASSIGN(const auto mapping, weights::MappedFile::open(file));
  auto tokenizer = [&]() -> Result<text::Tokenizer> {
    TANDEM_ASSIGN(const auto header,
                  weights::parse_gguf(mapping->bytes(), mapping->identity().size));
    TANDEM_ASSIGN(const auto parts, weights::gguf_text(header));
    return tokenizer_of(parts);
  }();
  if (!tokenizer.ok()) return tokenizer.error().in(file.string());
  return tokenizer;
}

std::vector<uint32_t> Text::end_ids(uint32_t vocab) const {
  std::vector<uint32_t> ids;
  for (const text::TokenId id : generation.eos_ids) {
    if (id >= 0 && static_cast<uint32_t>(id) < vocab) ids.push_back(static_cast<uint32_t>(id));
  }
  return ids;
}

}  // namespace tandem::cli
