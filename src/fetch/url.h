// Where files of models lie: URLs, and the names that models have at a hub or on Hugging Face.
//
//   url    = ("https" | "http") "://" HOST [":" PORT] ["/" …]
//   model  = [ORG "/"] NAME ["@" REV]
//   WORD   of ORG, NAME: letters, digits and "._-", not beginning with a dot, 96 at most; of REV
//   "/"
//          as well, 128 at most, no part of it beginning with a dot
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::fetch {

struct Url {
  bool encrypted = true;
  std::string host;  ///< lower case; IPv6 without brackets
  uint16_t port = 443;
  std::string target = "/";  ///< path and query, as they are sent

  /// "https://HOST[:PORT]": what a token is bound to.
  [[nodiscard]] std::string origin() const;
  /// Without the query, which may hold a signature: for messages.
  [[nodiscard]] std::string shown() const;
  [[nodiscard]] bool same_origin(const Url& other) const {
    return encrypted == other.encrypted && host == other.host && port == other.port;
  }
};

/// Names in a URL's userinfo are refused, since they would be a secret in the open. Error:
/// kInvalid.
Result<Url> parse_url(std::string_view text);
/// A Location field's value, relative to the URL that answered. Errors: kInvalid (not a URL of
/// HTTP, or one that would leave encryption).
Result<Url> resolve(const Url& base, std::string_view location);

struct ModelName {
  std::string organization;  ///< empty: a hub's or host's own model
  std::string name;
  std::string revision = "main";
  std::string file;  ///< a single file of it, or empty

  /// "ORG/NAME" or "NAME".
  [[nodiscard]] std::string text() const;
};
/// "ORG/NAME@REV" as above. Error: kInvalid.
Result<ModelName> parse_model_name(std::string_view text);
/// A model's address as a browser shows it: ENDPOINT/ORG/NAME[/(resolve|tree|blob)/REV[/FILE]];
/// `endpoint` is set to what stands before. Error: kInvalid.
Result<ModelName> parse_model_url(std::string_view text, std::string& endpoint);

}  // namespace tandem::fetch
