// tandem pull: a model's files, or a part of them, into the cache of models.
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/fetch_flags.h"
#include "cli/models_cache.h"
#include "cli/output.h"
#include "fetch/pull.h"
#include "ring/plan.h"

namespace tandem::cli {

namespace {

namespace fs = std::filesystem;

struct PullFlags {
  std::optional<std::string> model;
  std::string layers;
  bool ends = false;
  std::string to;
  uint64_t limit = 0;
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
  FetchFlags fetch;
};

/// What is wanted of a model, and what that is in words.
struct Wanted {
  std::vector<fetch::Range> ranges;
  std::string text = "all of it";
  bool text_files = true;
};

Result<Wanted> choose(const fetch::Pull& pull, const PullFlags& flags) {
  Wanted wanted;
  if (flags.layers.empty() && !flags.ends) {
    wanted.ranges = pull.whole();
    return wanted;
  }
  if (pull.config_json().empty()) {
    return unsupported(
        "of a single file all is fetched: --layers and --ends need a model of "
        "safetensors files");
  }
  wanted.text = "";
  wanted.text_files = flags.ends;
  if (!flags.layers.empty()) {
    TANDEM_ASSIGN(const model::ModelConfig config, pull.config());
    for (const std::string& one : split_commas(flags.layers)) {
      TANDEM_ASSIGN(const auto range, ring::parse_split(one, config.layers, 1));
      TANDEM_ASSIGN(const auto layers, pull.layers(range.front().first, range.front().last));
      wanted.ranges.insert(wanted.ranges.end(), layers.begin(), layers.end());
    }
    wanted.text = "layers " + flags.layers;
  }
  if (flags.ends) {
    TANDEM_ASSIGN(const auto ends, pull.ends());
    wanted.ranges.insert(wanted.ranges.end(), ends.begin(), ends.end());
    wanted.text += std::string(wanted.text.empty() ? "" : ", ") + "embedding and head";
  }
  return wanted;
}

uint64_t sum(const std::vector<fetch::Range>& ranges) {
  uint64_t total = 0;
  for (const fetch::Range& range : ranges) total += range.length;
  return total;
}

/// One line that says what the model is.
std::string describe(const fetch::Pull& pull) {
  const auto& journal = pull.folder().journal();
  std::string text = journal.model;
  if (!journal.commit.empty()) text += " at " + journal.commit.substr(0, 12);
  text += ": ";
  if (!pull.config_json().empty()) {
    const auto config = pull.config();
    text += config.ok() ? config->architecture + ", " + std::to_string(config->layers) +
                              " layers of width " + std::to_string(config->hidden_size) + ", "
                        : "can't be run (" + config.error().message + "), ";
  }
  const auto files = pull.whole();
  return text + bytes_text(sum(files)) + " of weights in " + std::to_string(files.size()) +
         (files.size() == 1 ? " file" : " files");
}

class PullCommand {
 public:
  explicit PullCommand(const PullFlags& flags) : flags_(flags) {}

  Result<nlohmann::ordered_json> run();

 private:
  Status fetch_all(fetch::Pull& pull, const fetch::Store& store, const Wanted& wanted);
  void say(const std::string& line) {
    line_.clear();
    if (!flags_.quiet) note(line + "\n");
  }

  const PullFlags& flags_;
  ProgressLine line_;
};

Status PullCommand::fetch_all(fetch::Pull& pull, const fetch::Store& store, const Wanted& wanted) {
  if (wanted.text_files && !pull.config_json().empty()) TANDEM_TRY(pull.fetch_text_files());
  TANDEM_TRY(pull.check_cached(wanted.ranges));
  const uint64_t missing = pull.missing(wanted.ranges);
  if (missing > 0 && flags_.to.empty()) {
    uint64_t limit = flags_.limit;
    if (limit == 0) {
      TANDEM_ASSIGN(limit, models_limit());
    }
    TANDEM_TRY(store.make_room(missing, limit, pull.folder().path(), [&](const auto& model) {
      say("removed " + model.journal.model + " (" + bytes_text(model.bytes) +
          "), which was used longest ago");
    }));
  }
  return pull.fetch(wanted.ranges);
}

Result<nlohmann::ordered_json> PullCommand::run() {
  fetch::ModelName model;
  std::string endpoint;
  if (flags_.model->find("://") != std::string::npos) {
    TANDEM_ASSIGN(model, fetch::parse_model_url(*flags_.model, endpoint));
  } else {
    TANDEM_ASSIGN(model, fetch::parse_model_name(*flags_.model));
  }
  std::error_code code;
  const fetch::Store store(fetch::Store::usual_root());
  const fs::path folder = flags_.to.empty() ? store.path_of(model) : fs::absolute(flags_.to, code);
  if (flags_.to.empty() && fetch::Store::usual_root().empty()) {
    return invalid("there is no cache of models (TANDEM_CACHE is off): say where with --to DIR");
  }
  TANDEM_ASSIGN(const auto policy, FetchSources::open(flags_.fetch, fetch::all_sources()));
  TANDEM_ASSIGN(const auto sources, policy->of(model, endpoint, &cancel_flag(),
                                               [&](const std::string& line) { say(line); }));
  fetch::PullOptions options;
  options.model = model;
  options.folder = folder;
  for (const auto& source : sources) options.sources.push_back(source.get());
  options.cancel = &cancel_flag();
  options.progress = [&](std::string_view step, uint64_t done, uint64_t total) {
    if (!flags_.quiet) line_.show(step, done, total);
  };
  options.notice = [&](const std::string& line) { say(line); };
  TANDEM_ASSIGN(const auto pull, fetch::Pull::open(std::move(options)));
  TANDEM_TRY(pull->describe());
  TANDEM_ASSIGN(const Wanted wanted, choose(*pull, flags_));
  const uint64_t before = pull->missing(wanted.ranges);
  say(describe(*pull));
  say("to fetch: " + wanted.text + ", " + bytes_text(sum(wanted.ranges)) + ", of which " +
      bytes_text(before) + " are not here yet");
  if (!flags_.dry_run) TANDEM_TRY(fetch_all(*pull, store, wanted));
  line_.clear();

  const auto& journal = pull->folder().journal();
  nlohmann::ordered_json object;
  object["model"] = journal.model;
  object["revision"] = journal.revision;
  object["commit"] = journal.commit;
  object["folder"] = pull->folder().path().string();
  object["complete"] = journal.complete();
  object["bytes"] = sum(pull->whole());
  object["wanted_bytes"] = sum(wanted.ranges);
  object["missing_bytes"] = pull->missing(wanted.ranges);
  object["fetched"] = pull->figures().fetched;
  object["wrong_pieces"] = pull->figures().wrong;
  object["damaged_bytes"] = pull->figures().damaged;
  return object;
}

}  // namespace

int pull_command(Arguments arguments) {
  PullFlags own;
  Flags flags(
      "pull", "ORG/NAME[@REV] | URL [--layers 0-11] [--ends] [FLAGS]",
      "Fetches a model, or the tensors of some of its layers, from Hugging Face or model\n"
      "servers into the cache of models. Goes on where it was interrupted, and checks every\n"
      "byte that a hash is known of.");
  flags.add_positional("MODEL", own.model, "as ORG/NAME, NAME at a hub, or its address", true);
  flags.add("--layers", "0-3,8-11", own.layers, "only the tensors of these layers");
  flags.add("--ends", own.ends, "the tensors of embedding and head, and the tokenizer");
  own.fetch.add(flags);
  flags.add("--to", "DIR", own.to, "into this folder instead of the cache of models");
  flags.add_size("--limit", own.limit,
                 "of the cache of models; what was used longest ago goes (default:\n"
                 "$TANDEM_MODELS_LIMIT or 200G)");
  flags.add("--dry-run", own.dry_run, "fetch headers only, and say what would be fetched");
  flags.add("--json", own.json, "print one JSON object");
  flags.add("-q,--quiet", own.quiet, "say nothing but errors");
  flags.add_example("tandem pull Qwen/Qwen3-4B");
  flags.add_example("tandem pull Qwen/Qwen3-4B --layers 0-11 --sources cache,huggingface");
  flags.add_example("tandem pull storyteller --hub https://hub.example:7443 --ends");
  if (const auto code = flags.parse(arguments)) return *code;
  auto done = PullCommand(own).run();
  if (!done.ok()) return fail("pull", done.error(), own.json);
  if (own.json) {
    write_out(done->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    write_out((*done)["folder"].get<std::string>() + "\n");
  }
  return kSuccess;
}

}  // namespace tandem::cli
