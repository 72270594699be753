// tandem models: what a model is and needs, from its headers alone.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/cache.h"
#include "cli/commands.h"
#include "cli/models_cache.h"
#include "cli/quality.h"
#include "cli/session.h"
#include "model/families.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct ModelsFlags {
  std::optional<std::string> folder;
  uint32_t context = 4096;
  std::string kv = "16";
  std::string cache;
  std::string remove;
  std::string manifest;
  bool clear_cache = false;
  bool quality = false;
  bool json = false;
};

/// Need of one width of weights.
struct Need {
  uint64_t layer = 0;   ///< bytes of the largest layer
  uint64_t layers = 0;  ///< of all layers
  uint64_t ends = 0;
  uint64_t read = 0;    ///< weights that one token reads, the head included
  uint64_t total = 0;   ///< layers, ends, and KV caches at the context
  uint64_t cached = 0;  ///< of them quantized on disk already
};

/// Tensors that are not the layers'.
struct Beside {
  uint32_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string folder;
  std::string problem;  ///< why it can't be run; empty if it can
  model::ModelConfig config;
  uint64_t parameters = 0;
  uint64_t stored = 0;   ///< bytes of the checkpoint's tensors
  uint32_t context = 0;  ///< that was asked for, or the model's if it is less
  uint64_t kv_per_position = 0;
  uint64_t recurrent = 0;  ///< bytes of recurrent state, whatever the context
  uint64_t state = 0;      ///< all that a conversation of the context may come to hold
  Beside drafting, left_out;
  Need sixteen, eight, four;
  std::string stored_types;          ///< "84 Q4_K; 49 F32"
  std::vector<KindQuality> quality;  ///< if it was asked for
};

/// A tensor that the model needs is missing or has another shape.
Status check_tensors(const weights::Checkpoint& checkpoint, const model::ModelConfig& config) {
  auto wanted = model::layer_tensors(config, 0, config.layers);
  const auto ends = model::ends_tensors(config);
  wanted.insert(wanted.end(), ends.begin(), ends.end());
  const auto shape = [](const std::vector<uint64_t>& extents) {
    std::string text;
    for (const uint64_t extent : extents)
      text += (text.empty() ? "" : ", ") + std::to_string(extent);
    return "[" + text + "]";
  };
  for (const weights::TensorInfo& tensor : wanted) {
    const weights::TensorInfo* found = checkpoint.find(tensor.name);
    if (found == nullptr) {
      return Error{ErrorKind::kNotFound, "the checkpoint has no tensor " + tensor.name};
    }
    if (found->shape != tensor.shape) {
      return invalid("tensor " + tensor.name + " has shape " + shape(found->shape) +
                     ", the config asks for " + shape(tensor.shape));
    }
  }
  return {};
}

Need need(const model::ModelConfig& config, model::WeightBits bits, uint64_t kv_bytes) {
  Need result;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    model::StageOptions options;
    options.first_layer = layer;
    options.last_layer = layer + 1;
    options.weights = bits;
    const uint64_t bytes = model::stage_bytes(config, options);
    result.layer = std::max(result.layer, bytes);
    result.layers += bytes;
  }
  result.ends = model::ends_bytes(config, bits);
  model::ModelConfig head = config;
  head.tied_embeddings = true;
  head.learned_positions = false;
  result.read = model::bytes_read(config, bits, 0, config.layers) + model::ends_bytes(head, bits);
  result.total = result.layers + result.ends + kv_bytes;
  return result;
}

Inspection inspect(const fs::path& folder, uint32_t context, model::KvBits kv, bool quality,
                   const weights::PackedCache* cache) {
  Inspection result;
  result.folder = folder.string();
  auto model = Model::open(folder.string());
  if (!model.ok()) {
    result.problem = model.error().message;
    return result;
  }
  result.config = model->config;
  result.stored = model->checkpoint->bytes();
  result.stored_types = stored_types(*model->checkpoint);
  for (const weights::TensorInfo& tensor : model->checkpoint->tensors()) {
    const auto of = [&](std::string_view prefix) {
      return !prefix.empty() && tensor.name.starts_with(prefix);
    };
    Beside* beside = of(result.config.family->drafting)   ? &result.drafting
                     : of(result.config.family->left_out) ? &result.left_out
                                                          : nullptr;
    if (beside != nullptr) {
      ++beside->tensors;
      beside->bytes += tensor.bytes();
    }
    result.parameters += tensor.elements();
  }
  if (const Status status = check_tensors(*model->checkpoint, model->config); !status.ok()) {
    result.problem = status.error().message;
    return result;
  }
  result.context = std::min(context, model->config.context);
  result.kv_per_position = model::kv_bytes_per_position(model->config, 0, model->config.layers, kv);
  result.recurrent = model::recurrent_bytes(model->config, 0, model->config.layers);
  result.state = model::state_bytes(model->config, 0, model->config.layers, result.context, kv);
  result.eight = need(model->config, model::WeightBits::k8, result.state);
  result.four = need(model->config, model::WeightBits::k4, result.state);
  result.sixteen = need(model->config, model::WeightBits::k16, result.state);
  if (cache != nullptr) {
    if (const auto known = weights::known_manifest(*model->checkpoint)) {
      weights::tell_contents(*known, *model->checkpoint);
    }
    const auto cached = [&](model::WeightBits bits) {
      return model::cached_bytes(model->config, bits, *model->checkpoint, *cache);
    };
    result.eight.cached = cached(model::WeightBits::k8);
    result.four.cached = cached(model::WeightBits::k4);
    result.sixteen.cached = cached(model::WeightBits::k16);
  }
  if (quality) {
    ThreadPool pool(cores());
    auto measured = measure_quality(*model, pool, cancel_flag());
    if (!measured.ok()) {
      result.problem = measured.error().message;
    } else {
      result.quality = std::move(*measured);
    }
  }
  return result;
}

nlohmann::ordered_json to_json(const Inspection& one) {
  nlohmann::ordered_json object;
  object["folder"] = one.folder;
  object["supported"] = one.problem.empty();
  if (!one.problem.empty()) object["reason"] = one.problem;
  if (one.config.architecture.empty()) return object;
  object["architecture"] = one.config.architecture;
  object["layers"] = one.config.layers;
  object["hidden_size"] = one.config.hidden_size;
  object["vocab"] = one.config.vocab;
  if (one.config.moe.experts != 0) {
    object["experts"] = one.config.moe.experts;
    object["experts_per_token"] = one.config.moe.chosen;
  }
  object["parameters"] = one.parameters;
  object["stored_bytes"] = one.stored;
  object["stored_types"] = one.stored_types;
  object["model_context"] = one.config.context;
  if (!one.problem.empty()) return object;
  object["context"] = one.context;
  object["kv_bytes_per_position"] = one.kv_per_position;
  object["recurrent_bytes"] = one.recurrent;
  object["state_bytes"] = one.state;
  object["drafting"] = {{"tensors", one.drafting.tensors}, {"bytes", one.drafting.bytes}};
  object["left_out"] = {{"tensors", one.left_out.tensors}, {"bytes", one.left_out.bytes}};
  const auto width = [&](const Need& need) {
    return nlohmann::ordered_json{
        {"bytes_per_layer", need.layer},     {"layers_bytes", need.layers},
        {"ends_bytes", need.ends},           {"total_bytes", need.total},
        {"bytes_read_per_token", need.read}, {"cached_bytes", need.cached}};
  };
  object["weights_16"] = width(one.sixteen);
  object["weights_8"] = width(one.eight);
  object["weights_4"] = width(one.four);
  if (one.quality.empty()) return object;
  object["quality"] = nlohmann::ordered_json::array();
  for (const KindQuality& kind : one.quality) {
    object["quality"].push_back({{"kind", kind.kind},
                                 {"stored_as", kind.stored_as},
                                 {"tensors", kind.tensors},
                                 {"weights", kind.weights},
                                 {"relative_error_8", kind.relative_8()},
                                 {"relative_error_4", kind.relative_4()}});
  }
  return object;
}

std::string to_text(const Inspection& one) {
  std::string text = styled(Style::kBold, one.folder) + "\n";
  if (!one.config.architecture.empty()) {
    text += "  " + one.config.architecture + ", " + std::to_string(one.config.layers) +
            " layers of width " + std::to_string(one.config.hidden_size) + ", " +
            (one.config.moe.experts == 0
                 ? std::string()
                 : std::to_string(one.config.moe.experts) + " experts of which a token uses " +
                       std::to_string(one.config.moe.chosen) + ", ") +
            number(static_cast<double>(one.parameters) / 1e6, 1) + " million parameters, " +
            bytes_text(one.stored) + " stored, context " + std::to_string(one.config.context) +
            "\n  tensors: " + one.stored_types + "\n";
  }
  if (!one.problem.empty()) return text + "  can't be run: " + one.problem + "\n";
  std::vector<std::vector<std::string>> rows{
      {"  weights", "a layer", "all layers", "embedding, head",
       (one.recurrent == 0 ? "kv cache at " : "state at ") + std::to_string(one.context), "total",
       "a token reads", "quantized on disk"}};
  for (const auto& [name, need] :
       {std::pair{"  16 bits", one.sixteen}, {"  8 bits", one.eight}, {"  4 bits", one.four}}) {
    rows.push_back({name, bytes_text(need.layer), bytes_text(need.layers), bytes_text(need.ends),
                    bytes_text(one.state), bytes_text(need.total), bytes_text(need.read),
                    need.cached == 0 ? "no" : bytes_text(need.cached)});
  }
  const auto beside = [&](const Beside& some, std::string_view prefix, const char* what) {
    if (some.tensors == 0) return;
    text += "  " + std::string(prefix) + "*: " + std::to_string(some.tensors) + " tensors, " +
            bytes_text(some.bytes) + ", " + what + "\n";
  };
  if (one.config.family != nullptr) {
    beside(one.drafting, one.config.family->drafting, "kept for drafting, not loaded yet");
    beside(one.left_out, one.config.family->left_out, "left out: not of the text model");
  }
  const uint32_t recurrent = one.config.recurrent_layers(0, one.config.layers);
  if (recurrent != 0) {
    text += "  " + std::to_string(recurrent) + " recurrent layers hold " +
            bytes_text(one.recurrent) + " whatever the context, and at most " +
            std::to_string(model::checkpoint_limit(one.config)) + " checkpoints of " +
            bytes_text(model::checkpoint_bytes(one.config, 0, one.config.layers)) + "\n";
  }
  text += table(rows, {false, true, true, true, true, true, true, true});
  if (one.quality.empty()) return text;
  rows = {{"  error of the weights", "stored as", "weights", "8 bits", "4 bits"}};
  for (const KindQuality& kind : one.quality) {
    rows.push_back({"  " + kind.kind, kind.stored_as, std::to_string(kind.weights),
                    number(kind.relative_8() * 100, 3) + " %",
                    number(kind.relative_4() * 100, 2) + " %"});
  }
  return text + "\n" + table(rows, {false, false, true, true, true});
}

int clear_cache(weights::PackedCache* cache, bool json) {
  weights::PackedCache::Usage removed;
  if (cache != nullptr) removed = cache->clear();
  if (json) {
    write_out(nlohmann::ordered_json{{"removed_bytes", removed.bytes}}.dump() + "\n");
  } else {
    write_out("Removed " + bytes_text(removed.bytes) + " of quantized weights\n");
  }
  return kSuccess;
}

Status write_manifest(const fs::path& model, const std::string& path) {
  TANDEM_ASSIGN(const auto checkpoint, weights::Checkpoint::open(model));
  ProgressLine line;
  TANDEM_ASSIGN(const auto manifest,
                weights::make_manifest(*checkpoint, cores(), [&](uint64_t done, uint64_t total) {
                  line.show("hashing the model", done, total);
                  return !cancel_flag().load();
                }));
  const auto bytes = manifest.serialize();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return Error{ErrorKind::kIo, path + ": can't be written"};
  return {};
}

/// The model at a path, or the models in a folder: folders with a config.json, GGUF files, and
/// folders with such files.
Result<std::vector<fs::path>> find_models(const fs::path& root) {
  std::error_code code;
  std::vector<fs::path> found;
  const auto is_folder = [](const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path / "config.json", ignored);
  };
  if (weights::is_gguf(root) || is_folder(root)) return std::vector{root};
  if (!fs::is_directory(root, code)) {
    return Error{ErrorKind::kNotFound,
                 root.string() + ": there is no such folder, or no GGUF file"};
  }
  found = weights::gguf_models(root);
  for (fs::directory_iterator entry(root, code), end; !code && entry != end;
       entry.increment(code)) {
    const fs::path path = entry->path();
    if (is_folder(path)) {
      found.push_back(path);
      continue;
    }
    const auto files = weights::gguf_models(path);
    found.insert(found.end(), files.begin(), files.end());
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) return found;
  return Error{ErrorKind::kNotFound,
               root.string() + ": neither it nor a folder in it has a config.json or a GGUF file"};
}

}  // namespace

int models_command(Arguments arguments) {
  ModelsFlags own;
  Flags flags(
      "models", "[PATH] [--context N] [--quality] [--json]",
      "Shows what a model is and needs, or each model of a folder of models, what its weights are\n"
      "stored as, and how much of it is kept quantized on disk. Only headers are read. Without a\n"
      "PATH: the models that were pulled, and how much of each is here.");
  flags.add_positional("PATH", own.folder,
                       "a model's folder or GGUF file, a pulled model, or a folder of models",
                       false);
  flags.add("--context", "N", own.context, 1, 10'000'000,
            "positions that the KV cache is to hold (default: 4096, or what the model has)");
  flags.add_choice("--kv", "16|8", own.kv, {"16", "8"},
                   "bits of a key's or value's channel in the KV cache (default: 16)");
  add_cache_flag(flags, own.cache);
  flags.add("--manifest", "FILE", own.manifest,
            "write the hashes of the model's tensors; as tandem.manifest beside its files\n"
            "'tandem pull' checks each tensor with it");
  flags.add("--remove", "ORG/NAME", own.remove, "remove a pulled model");
  flags.add("--clear-cache", own.clear_cache, "remove all quantized weights from disk instead");
  flags.add("--quality", own.quality,
            "read all weights and measure what quantizing them costs, by kind of tensor");
  flags.add("--json", own.json, "print one JSON object");
  flags.add_example("tandem models models");
  flags.add_example("tandem models Qwen3-4B-Q4_K_M.gguf --quality");
  flags.add_example("tandem models ~/models/Qwen3-4B --context 32768");
  if (const auto code = flags.parse(arguments)) return *code;
  const auto cache = open_cache(own.cache, false);
  if (!cache.ok()) return flags.wrong_use(cache.error().message);
  if (own.clear_cache) return clear_cache(cache->get(), own.json);
  if (!own.remove.empty()) return remove_pulled(own.remove, own.json);
  if (!own.folder) return list_pulled(own.json);

  std::error_code code;
  const auto pulled = fs::exists(*own.folder, code) ? std::nullopt : pulled_model(*own.folder);
  const auto folders = find_models(pulled.value_or(*own.folder));
  if (!folders.ok()) return fail("models", folders.error(), own.json);
  if (!own.manifest.empty()) {
    if (folders->size() != 1) return flags.wrong_use("--manifest needs the PATH of one model");
    const Status written = write_manifest(folders->front(), own.manifest);
    if (!written.ok()) return fail("models", written.error(), own.json);
  }
  nlohmann::ordered_json object;
  object["models"] = nlohmann::ordered_json::array();
  std::string text;
  bool any = false;
  for (const fs::path& folder : *folders) {
    const model::KvBits kv = own.kv == "8" ? model::KvBits::k8 : model::KvBits::k16;
    const Inspection one = inspect(folder, own.context, kv, own.quality, cache->get());
    any = any || one.problem.empty();
    if (own.json) {
      object["models"].push_back(to_json(one));
    } else {
      text += (text.empty() ? "" : "\n") + to_text(one);
    }
  }
  if (*cache != nullptr) {
    const auto usage = (*cache)->usage();
    object["cache"] = {{"folder", (*cache)->options().folder.string()},
                       {"bytes", usage.bytes},
                       {"limit", (*cache)->options().limit}};
    text += "\nQuantized weights on disk: " + bytes_text(usage.bytes) + " of at most " +
            bytes_text((*cache)->options().limit) + " in " + (*cache)->options().folder.string() +
            "\n";
  }
  if (own.json) {
    text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  write_out(text);
  return any ? kSuccess : kFailure;
}

}  // namespace tandem::cli
