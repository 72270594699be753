#include "cli/models_cache.h"

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/output.h"
#include "fetch/folder.h"

namespace tandem::cli {

namespace {

constexpr uint64_t kUsualLimit = uint64_t{200} << 30;

fetch::Store usual_store() {
  return fetch::Store(fetch::Store::usual_root());
}

struct Amount {
  uint64_t here = 0;
  uint64_t all = 0;
};

Amount amount(const weights::Journal& journal) {
  Amount amount;
  for (const auto& file : journal.files) {
    amount.here += file.present();
    amount.all += file.size;
  }
  return amount;
}

std::string name_of(const weights::Journal& journal) {
  return journal.revision.empty() || journal.revision == "main"
             ? journal.model
             : journal.model + "@" + journal.revision;
}

}  // namespace

Result<uint64_t> models_limit() {
  const char* limit = std::getenv("TANDEM_MODELS_LIMIT");  // NOLINT(concurrency-mt-unsafe)
  if (limit == nullptr || *limit == 0) return kUsualLimit;
  auto bytes = parse_size(limit);
  if (!bytes.ok()) return bytes.error().in("TANDEM_MODELS_LIMIT");
  return bytes;
}

std::optional<std::filesystem::path> pulled_model(const std::string& name) {
  const auto model = fetch::parse_model_name(name);
  if (!model.ok() || fetch::Store::usual_root().empty()) return std::nullopt;
  return usual_store().find(*model);
}

bool pullable(const std::string& name) {
  const auto model = fetch::parse_model_name(name);
  return model.ok() && !model->organization.empty();
}

int list_pulled(bool json) {
  const auto limit = models_limit();
  if (!limit.ok()) return fail("models", limit.error(), json);
  const auto models =
      fetch::Store::usual_root().empty() ? std::vector<fetch::StoredModel>() : usual_store().list();
  nlohmann::ordered_json object;
  object["pulled"] = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows{{"model", "here", "of", "on disk", "folder"}};
  uint64_t used = 0;
  for (const fetch::StoredModel& model : models) {
    const Amount bytes = amount(model.journal);
    used += model.bytes;
    rows.push_back({name_of(model.journal), bytes_text(bytes.here), bytes_text(bytes.all),
                    bytes_text(model.bytes), model.path.string()});
    object["pulled"].push_back({{"model", model.journal.model},
                                {"revision", model.journal.revision},
                                {"commit", model.journal.commit},
                                {"folder", model.path.string()},
                                {"complete", model.journal.complete()},
                                {"bytes_here", bytes.here},
                                {"bytes", bytes.all},
                                {"disk_bytes", model.bytes}});
  }
  object["used_bytes"] = used;
  object["limit_bytes"] = *limit;
  if (json) {
    write_out(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return kSuccess;
  }
  if (models.empty()) {
    write_out("No models were pulled yet: 'tandem pull ORG/NAME' does.\n");
    return kSuccess;
  }
  write_out(table(rows, {false, true, true, true, false}) + "\n" + bytes_text(used) +
            " of at most " + bytes_text(*limit) + " ($TANDEM_MODELS_LIMIT)\n");
  return kSuccess;
}

int remove_pulled(const std::string& name, bool json) {
  const auto path = pulled_model(name);
  if (!path) {
    return fail("models", {ErrorKind::kNotFound, name + ": no such model was pulled"}, json);
  }
  for (const fetch::StoredModel& model : usual_store().list()) {
    if (model.path != *path) continue;
    if (!usual_store().remove(model)) {
      return fail("models", {ErrorKind::kPeer, name + ": another process is using it"}, json);
    }
    if (json) {
      write_out(nlohmann::ordered_json{{"removed_bytes", model.bytes}}.dump() + "\n");
    } else {
      write_out("Removed " + bytes_text(model.bytes) + "\n");
    }
    return kSuccess;
  }
  return fail("models", {ErrorKind::kNotFound, name + ": no such model was pulled"}, json);
}

}  // namespace tandem::cli
