// tandem models: what a model is and needs, from its headers alone.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/cache.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct ModelsFlags {
  std::optional<std::string> folder;
  uint32_t context = 4096;
  std::string kv = "16";
  std::string cache;
  bool clear_cache = false;
  bool json = false;
};

/// Need of one width of weights.
struct Need {
  uint64_t layer = 0;   ///< bytes of the largest layer
  uint64_t layers = 0;  ///< of all layers
  uint64_t ends = 0;
  uint64_t total = 0;   ///< layers, ends, and KV caches at the context
  uint64_t cached = 0;  ///< of them quantized on disk already
};

struct Inspection {
  std::string folder;
  std::string problem;  ///< why it can't be run; empty if it can
  model::ModelConfig config;
  uint64_t parameters = 0;
  uint64_t stored = 0;   ///< bytes of the checkpoint's tensors
  uint32_t context = 0;  ///< that was asked for, or the model's if it is less
  uint64_t kv_per_position = 0;
  uint64_t kv_bytes = 0;  ///< KV cache and other state at the context
  Need eight, four;
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
  result.total = result.layers + result.ends + kv_bytes;
  return result;
}

Inspection inspect(const fs::path& folder, uint32_t context, model::KvBits kv,
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
  for (const weights::TensorInfo& tensor : model->checkpoint->tensors()) {
    result.parameters += tensor.elements();
  }
  if (const Status status = check_tensors(*model->checkpoint, model->config); !status.ok()) {
    result.problem = status.error().message;
    return result;
  }
  result.context = std::min(context, model->config.context);
  const uint32_t layers = model->config.layers;
  result.kv_per_position = model::kv_bytes_per_position(model->config, 0, layers, kv);
  result.kv_bytes = model::state_bytes(model->config, 0, layers, result.context, kv);
  result.eight = need(model->config, model::WeightBits::k8, result.kv_bytes);
  result.four = need(model->config, model::WeightBits::k4, result.kv_bytes);
  if (cache != nullptr) {
    if (const auto known = weights::known_manifest(*model->checkpoint)) {
      weights::tell_contents(*known, *model->checkpoint);
    }
    const auto cached = [&](model::WeightBits bits) {
      return model::cached_bytes(model->config, bits, *model->checkpoint, *cache);
    };
    result.eight.cached = cached(model::WeightBits::k8);
    result.four.cached = cached(model::WeightBits::k4);
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
  object["parameters"] = one.parameters;
  object["stored_bytes"] = one.stored;
  object["model_context"] = one.config.context;
  if (!one.problem.empty()) return object;
  object["context"] = one.context;
  object["kv_bytes_per_position"] = one.kv_per_position;
  object["kv_bytes"] = one.kv_bytes;
  const auto width = [&](const Need& need) {
    return nlohmann::ordered_json{{"bytes_per_layer", need.layer},
                                  {"layers_bytes", need.layers},
                                  {"ends_bytes", need.ends},
                                  {"total_bytes", need.total},
                                  {"cached_bytes", need.cached}};
  };
  object["weights_8"] = width(one.eight);
  object["weights_4"] = width(one.four);
  return object;
}

std::string to_text(const Inspection& one) {
  std::string text = styled(Style::kBold, one.folder) + "\n";
  if (!one.config.architecture.empty()) {
    text += "  " + one.config.architecture + ", " + std::to_string(one.config.layers) +
            " layers of width " + std::to_string(one.config.hidden_size) + ", " +
            number(static_cast<double>(one.parameters) / 1e6, 1) + " million parameters, " +
            bytes_text(one.stored) + " stored, context " + std::to_string(one.config.context) +
            "\n";
  }
  if (!one.problem.empty()) return text + "  can't be run: " + one.problem + "\n";
  std::vector<std::vector<std::string>> rows{
      {"  weights", "a layer", "all layers", "embedding, head",
       "kv cache at " + std::to_string(one.context), "total", "quantized on disk"}};
  for (const auto& [name, need] : {std::pair{"  8 bits", one.eight}, {"  4 bits", one.four}}) {
    rows.push_back({name, bytes_text(need.layer), bytes_text(need.layers), bytes_text(need.ends),
                    bytes_text(one.kv_bytes), bytes_text(need.total),
                    need.cached == 0 ? "no" : bytes_text(need.cached)});
  }
  return text + table(rows, {false, true, true, true, true, true, true});
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

}  // namespace

int models_command(Arguments arguments) {
  ModelsFlags own;
  Flags flags(
      "models", "DIR [--context N] [--json]",
      "Shows what a model is and needs, or each model of a folder of models, and how much of it\n"
      "is kept quantized on disk. Only headers are read.");
  flags.add_positional("DIR", own.folder, "folder of a model, or of models", false);
  flags.add("--context", "N", own.context, 1, 10'000'000,
            "positions that the KV cache is to hold (default: 4096, or what the model has)");
  flags.add_choice("--kv", "16|8", own.kv, {"16", "8"},
                   "bits of a key's or value's channel in the KV cache (default: 16)");
  add_cache_flag(flags, own.cache);
  flags.add("--clear-cache", own.clear_cache, "remove all quantized weights from disk instead");
  flags.add("--json", own.json, "print one JSON object");
  flags.add_example("tandem models models");
  flags.add_example("tandem models ~/models/Qwen3-4B --context 32768");
  if (const auto code = flags.parse(arguments)) return *code;
  const auto cache = open_cache(own.cache, false);
  if (!cache.ok()) return flags.wrong_use(cache.error().message);
  if (own.clear_cache) return clear_cache(cache->get(), own.json);
  if (!own.folder) return flags.wrong_use("DIR is missing: the folder of a model, or of models");

  std::error_code code;
  const fs::path root(*own.folder);
  if (!fs::is_directory(root, code)) {
    return fail("models", {ErrorKind::kNotFound, root.string() + ": there is no such folder"},
                own.json);
  }
  std::vector<fs::path> folders;
  if (fs::exists(root / "config.json", code)) {
    folders.push_back(root);
  } else {
    for (fs::directory_iterator entry(root, code), end; !code && entry != end;
         entry.increment(code)) {
      std::error_code ignored;
      if (fs::exists(entry->path() / "config.json", ignored)) folders.push_back(entry->path());
    }
    std::sort(folders.begin(), folders.end());
  }
  if (folders.empty()) {
    return fail(
        "models",
        {ErrorKind::kNotFound, root.string() + ": neither it nor a folder in it has a config.json"},
        own.json);
  }
  nlohmann::ordered_json object;
  object["models"] = nlohmann::ordered_json::array();
  std::string text;
  bool any = false;
  for (const fs::path& folder : folders) {
    const model::KvBits kv = own.kv == "8" ? model::KvBits::k8 : model::KvBits::k16;
    const Inspection one = inspect(folder, own.context, kv, cache->get());
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
