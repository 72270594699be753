// A tokenizer from a model's folder.
#include "text/chat_files.h"
#include "text/files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace tandem::text {

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  TokenizerFiles files;
  TANDEM_ASSIGN(auto vocabulary, read_file(folder / "tokenizer.json", kMaxTokenizerJsonBytes));
  if (!vocabulary.has_value()) {
    return Error{ErrorKind::kNotFound, (folder / "tokenizer.json").string() + ": no such file"};
  }
  files.tokenizer_json = std::move(*vocabulary);
  TANDEM_ASSIGN(auto config, read_file(folder / "tokenizer_config.json", kMaxConfigBytes));
  if (config.has_value()) files.tokenizer_config_json = std::move(*config);
  TANDEM_ASSIGN(const ChatSources sources, read_chat_sources(folder));
  for (const auto& [name, source] : sources.templates) files.chat_template += source + "\n";
  auto tokenizer = parse(files);
  if (!tokenizer.ok()) return tokenizer.error().in(folder.string());
  return tokenizer;
}

}  // namespace tandem::text
