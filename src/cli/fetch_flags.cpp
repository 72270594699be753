#include "cli/fetch_flags.h"

#include <cstdlib>

#include "cli/hub_access.h"
#include "cli/models_cache.h"
#include "cli/output.h"
#include "fetch/stage_source.h"
#include "hub/identity.h"

namespace tandem::cli {

namespace {

using fetch::SourceKind;

constexpr uint64_t kMaxToken = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

/// A token as a header may carry it.
Result<std::string> read_token(const std::string& file) {
  std::string text;
  if (file.empty()) {
    text = variable("HF_TOKEN");
  } else {
    TANDEM_ASSIGN(text, secret_argument(file == "-" ? "-" : "@" + file));
    if (text.empty()) return invalid((file == "-" ? "standard input" : file) + ": no token there");
  }
  for (const char c : text) {
    if (c <= 0x20 || c >= 0x7f || text.size() > kMaxToken) {
      return invalid("the token has characters that a token can't have");
    }
  }
  return text;
}

}  // namespace

void FetchFlags::add(Flags& flags) {
  flags.add("--sources", "LIST", sources,
            "where bytes may come from: of cache,peer,hub,host,huggingface");
  flags.add("--hub", "URL", hub, "hub whose model server is asked (see 'tandem hub --models')");
  flags.add("--peers", "URL,...", peers, "other model servers that are asked before it");
  flags.add("--endpoint", "URL", endpoint,
            "of Hugging Face or a mirror (default: $HF_ENDPOINT, or the real one)");
  flags.add("--token-file", "FILE", token_file,
            "token for gated models, - is standard input (default: $HF_TOKEN)");
}

Status FetchSources::open_server(const std::string& address, SourceKind kind) {
  // Within the clear only where that was said: a server for tests, or behind a tunnel.
  if (address.starts_with("http://")) {
    TANDEM_ASSIGN(const fetch::Url url, fetch::parse_url(address));
    servers_.push_back({kind, url.origin(), {}});
    return {};
  }
  TANDEM_ASSIGN(HubAccess access, open_hub(address, ""));
  const hub::HubAddress& hub = access.client.hub();
  servers_.push_back(
      {kind, "https://" + hub.authority(), {access.client.token(), hub.fingerprint}});
  return {};
}

Result<std::shared_ptr<const FetchSources>> FetchSources::open(const FetchFlags& flags,
                                                               std::set<SourceKind> stated,
                                                               bool token_of_environment) {
  std::shared_ptr<FetchSources> result(new FetchSources);
  result->kinds_ = std::move(stated);
  if (!flags.sources.empty()) {
    TANDEM_ASSIGN(result->kinds_, fetch::parse_sources(flags.sources));
  }
  if (token_of_environment || !flags.token_file.empty()) {
    TANDEM_ASSIGN(result->token_, read_token(flags.token_file));
  }
  result->endpoint_ = !flags.endpoint.empty() ? flags.endpoint : variable("HF_ENDPOINT");
  if (result->endpoint_.empty()) result->endpoint_ = "https://huggingface.co";
  TANDEM_TRY(fetch::parse_url(result->endpoint_));
  if (result->allows(SourceKind::kPeer) && !flags.peers.empty()) {
    for (const std::string& one : split_commas(flags.peers)) {
      TANDEM_TRY(result->open_server(one, SourceKind::kPeer));
    }
  }
  // A hub that is known here is asked only if that was said: it would learn what is fetched.
  const bool named = flags.sources.find("hub") != std::string::npos;
  if (result->allows(SourceKind::kHub) && (!flags.hub.empty() || named)) {
    TANDEM_TRY(result->open_server(flags.hub, SourceKind::kHub));
  }
  return std::shared_ptr<const FetchSources>(std::move(result));
}

bool FetchSources::any() const {
  return !servers_.empty() || allows(SourceKind::kHuggingFace);
}

Result<std::vector<std::unique_ptr<fetch::Source>>> FetchSources::of(
    const fetch::ModelName& model, const std::string& endpoint, const std::atomic<bool>* cancel,
    const std::function<void(const std::string&)>& waiting) const {
  std::vector<std::unique_ptr<fetch::Source>> sources;
  const auto add = [&](SourceKind kind, const std::string& base,
                       fetch::Credentials credentials) -> Status {
    fetch::SourceOptions options;
    options.kind = kind;
    options.base = base;
    options.credentials = std::move(credentials);
    options.model = model;
    options.http.cancel = cancel;
    options.waiting = waiting;
    TANDEM_ASSIGN(auto source, fetch::Source::open(std::move(options)));
    sources.push_back(std::move(source));
    return {};
  };
  for (const Server& server : servers_)
    TANDEM_TRY(add(server.kind, server.base, server.credentials));
  if (allows(SourceKind::kHuggingFace) && !model.organization.empty()) {
    TANDEM_TRY(
        add(SourceKind::kHuggingFace, endpoint.empty() ? endpoint_ : endpoint, {token_, ""}));
  }
  return sources;
}

ring::TensorFetcher stage_fetcher(std::shared_ptr<const FetchSources> sources,
                                  std::function<void(const std::string&)> log) {
  return [sources = std::move(sources), log = std::move(log)](
             const ring::FetchRequest& request) -> Result<std::unique_ptr<weights::TensorSource>> {
    if (request.origin.empty()) {
      return Error{ErrorKind::kNotFound, "the host does not say where else the model is"};
    }
    TANDEM_ASSIGN(const fetch::ModelName model, fetch::parse_model_name(request.origin));
    const auto tell = [log](const std::string& line) {
      if (log) log(line);
    };
    TANDEM_ASSIGN(auto opened, sources->of(model, "", request.gone, tell));
    TANDEM_ASSIGN(const uint64_t limit, models_limit());
    fetch::StageSourceOptions options;
    options.model = model;
    options.sources = std::move(opened);
    options.shelf = std::make_shared<fetch::Shelf>(fetch::Store(fetch::Store::usual_root()));
    options.limit = limit;
    options.manifest = request.manifest;
    options.tensors = request.tensors;
    options.cancel = request.gone;
    options.progress = request.progress;
    options.notice = tell;
    return fetch::open_stage_source(std::move(options));
  };
}

}  // namespace tandem::cli
