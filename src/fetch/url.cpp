#include "fetch/url.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "weights/journal.h"

namespace tandem::fetch {

namespace {

constexpr size_t kMaxUrl = 8192;

bool is_word(std::string_view text, size_t limit) {
  return !text.empty() && text.size() <= limit && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool is_revision(std::string_view text) {
  if (text.size() > 128) return false;
  const auto parts = split(text, '/');
  return std::all_of(parts.begin(), parts.end(),
                     [](std::string_view part) { return is_word(part, 128); });
}

}  // namespace

std::string Url::origin() const {
  const bool v6 = host.find(':') != std::string::npos;
  std::string text = (encrypted ? "https://" : "http://") + (v6 ? "[" + host + "]" : host);
  if (port != (encrypted ? 443 : 80)) text += ":" + std::to_string(port);
  return text;
}

std::string Url::shown() const {
  return origin() + target.substr(0, target.find('?'));
}

Result<Url> parse_url(std::string_view text) {
  const Error wrong = invalid("expected a URL like https://HOST/PATH");
  if (text.size() > kMaxUrl) return invalid("the URL is too long");
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '<' && c != '>';
  });
  if (!plain) return wrong;
  text = text.substr(0, text.find('#'));
  Url url;
  if (text.starts_with("https://")) {
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    url.encrypted = false;
    url.port = 80;
    text.remove_prefix(7);
  } else {
    return wrong;
  }
  const auto end = text.find_first_of("/?");
  std::string_view authority = text.substr(0, end);
  if (authority.find('@') != std::string_view::npos) {
    return invalid("a URL with a name or password in it is not taken: it would be seen");
  }
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) return wrong;
    url.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    const auto colon = authority.find(':');
    url.host = authority.substr(0, colon);
    authority.remove_prefix(std::min(colon, authority.size()));
  }
  if (url.host.empty() || url.host.size() > 253) return wrong;
  std::transform(url.host.begin(), url.host.end(), url.host.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (!authority.empty()) {
    const std::string_view port = authority.substr(1);
    const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (authority.front() != ':' || port.empty() || error != std::errc() ||
        stop != port.data() + port.size() || url.port == 0) {
      return wrong;
    }
  }
  if (end != std::string_view::npos) {
    url.target = (text[end] == '?' ? "/" : "") + std::string(text.substr(end));
  }
  return url;
}

Result<Url> resolve(const Url& base, std::string_view location) {
  Result<Url> url = [&]() -> Result<Url> {
    if (location.find("://") != std::string_view::npos &&
        location.find("://") < location.find_first_of("/?#")) {
      return parse_url(location);
    }
    if (location.starts_with("//")) {
      return parse_url((base.encrypted ? "https:" : "http:") + std::string(location));
    }
    if (location.starts_with('/')) return parse_url(base.origin() + std::string(location));
    const std::string path = base.target.substr(0, base.target.find('?'));
    return parse_url(base.origin() + path.substr(0, path.rfind('/') + 1) + std::string(location));
  }();
  if (!url.ok()) return invalid(base.origin() + " redirects to something that is no URL");
  if (base.encrypted && !url->encrypted) {
    return invalid(base.origin() + " redirects to " + url->origin() + ", which is not encrypted");
  }
  return url;
}

std::string ModelName::text() const {
  return organization.empty() ? name : organization + "/" + name;
}

Result<ModelName> parse_model_name(std::string_view text) {
  const Error wrong = invalid(
      "expected a model as ORG/NAME or ORG/NAME@REV, of letters, digits, \".\", \"_\" and \"-\"");
  ModelName model;
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    model.revision = text.substr(at + 1);
    text = text.substr(0, at);
  }
  const auto parts = split(text, '/');
  if (parts.size() > 2 || !is_revision(model.revision)) return wrong;
  for (const std::string_view part : parts) {
    if (!is_word(part, 96)) return wrong;
  }
  model.name = parts.back();
  if (parts.size() == 2) model.organization = parts.front();
  return model;
}

Result<ModelName> parse_model_url(std::string_view text, std::string& endpoint) {
  TANDEM_ASSIGN(const Url url, parse_url(text));
  std::string path = url.target.substr(0, url.target.find('?'));
  while (path.ends_with('/')) path.pop_back();
  auto parts = split(path, '/');
  if (parts.size() < 3) return invalid("expected a URL like " + url.origin() + "/ORG/NAME");
  // A mirror may lie in a folder of its server: the model is what stands before "resolve", or last.
  size_t verb = parts.size();
  for (size_t i = 3; i < parts.size(); ++i) {
    if (parts[i] == "resolve" || parts[i] == "tree" || parts[i] == "blob") {
      verb = i;
      break;
    }
  }
  std::string name(parts[verb - 2]);
  name.append("/").append(parts[verb - 1]);
  if (verb + 1 < parts.size()) name.append("@").append(parts[verb + 1]);
  TANDEM_ASSIGN(ModelName model, parse_model_name(name));
  if (verb + 2 < parts.size()) {
    model.file = parts[verb + 2];
    if (verb + 3 < parts.size() || !weights::is_plain_file_name(model.file)) {
      return unsupported("files in folders of a model are not fetched");
    }
  }
  endpoint = url.origin();
  for (size_t i = 1; i + 2 < verb; ++i) endpoint.append("/").append(parts[i]);
  return model;
}

}  // namespace tandem::fetch
