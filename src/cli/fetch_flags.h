// Where weights may come from, as flags say it: what `tandem pull` and `tandem worker` share.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"
#include "fetch/source.h"
#include "hub/client.h"
#include "ring/worker.h"

namespace tandem::cli {

struct FetchFlags {
  std::string sources;   ///< "cache,hub,…", or empty: the default
  std::string hub;       ///< its address, or empty
  std::string peers;     ///< addresses of other model servers, commas between, or empty
  std::string endpoint;  ///< empty: $HF_ENDPOINT or https://huggingface.co
  std::string token_file;

  void add(Flags& flags);
};

/// The sources that a policy allows, ready to be asked for any model. Tokens are in memory only.
/// Any thread.
class FetchSources {
 public:
  /// Reads the token and finds the hub. `stated`: kinds that are allowed if --sources is not given.
  /// `token_of_environment`: the token may be that of $HF_TOKEN. Errors: kInvalid (a flag), kIo,
  /// kNotFound, kPeer (the hub).
  static Result<std::shared_ptr<const FetchSources>> open(const FetchFlags& flags,
                                                          std::set<fetch::SourceKind> stated,
                                                          bool token_of_environment = true);

  [[nodiscard]] bool allows(fetch::SourceKind kind) const { return kinds_.contains(kind); }
  /// Some kind is allowed that bytes come over the network from.
  [[nodiscard]] bool any() const;
  /// Sources of a model in the order in which they are asked. `endpoint`: instead of the usual one,
  /// or empty. Kinds that don't know models of such a name are left out.
  Result<std::vector<std::unique_ptr<fetch::Source>>> of(
      const fetch::ModelName& model, const std::string& endpoint, const std::atomic<bool>* cancel,
      const std::function<void(const std::string&)>& waiting) const;

 private:
  FetchSources() = default;
  Status open_server(const std::string& address, fetch::SourceKind kind);

  struct Server {
    fetch::SourceKind kind;
    std::string base;
    fetch::Credentials credentials;
  };
  std::set<fetch::SourceKind> kinds_;
  std::vector<Server> servers_;
  std::string endpoint_;
  std::string token_;
};

/// How a worker fetches its own tensors by these sources, into the cache of models.
ring::TensorFetcher stage_fetcher(std::shared_ptr<const FetchSources> sources,
                                  std::function<void(const std::string&)> log);

}  // namespace tandem::cli
