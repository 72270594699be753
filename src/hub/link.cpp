#include "hub/link.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/hash.h"
#include "hub/secret.h"

namespace tandem::hub {
namespace {

constexpr size_t kMaxLink = 1024;
constexpr size_t kMaxHost = 253;

struct Parts {
  HubAddress hub;
  std::string path;  ///< with its leading slash, or empty
  std::string key;
};

/// "HOST[:PORT]"; brackets around IPv6.
Status parse_authority(std::string_view text, HubAddress& hub) {
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return invalid("expected ']' after an IPv6 address");
    hub.host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    if (!text.empty() && text[0] != ':') return invalid("expected ':' after ']'");
    has_port = !text.empty();
    if (has_port) port = text.substr(1);
  } else {
    const auto colon = text.find(':');
    hub.host = text.substr(0, colon);
    has_port = colon != std::string_view::npos;
    if (has_port) port = text.substr(colon + 1);
  }
  const bool clean = std::all_of(hub.host.begin(), hub.host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == ':' || c == '_' || c == '%';
  });
  if (hub.host.empty() || hub.host.size() > kMaxHost || !clean) {
    return invalid("expected a host's name or address");
  }
  if (has_port) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), hub.port);
    if (error != std::errc() || end != port.data() + port.size() || hub.port == 0) {
      return invalid("the port is '" + std::string(port.substr(0, 8)) + "'; expected 1 to 65535");
    }
  }
  return {};
}

Status parse_fragment(std::string_view fragment, Parts& parts) {
  while (!fragment.empty()) {
    const auto end = std::min(fragment.find('&'), fragment.size());
    const std::string_view field = fragment.substr(0, end);
    fragment.remove_prefix(std::min(end + 1, fragment.size()));
    if (field.starts_with("k=")) {
      auto key = from_base64url(field.substr(2));
      if (!key.has_value() || key->size() != 16) {
        return invalid("the key after 'k=' is damaged; expected 22 characters");
      }
      parts.key = std::move(*key);
    } else if (field.starts_with("f=")) {
      Digest digest;
      if (!parse_hex(field.substr(2), digest)) {
        return invalid("the fingerprint after 'f=' is damaged; expected 64 hexadecimal digits");
      }
      parts.hub.fingerprint = hex(digest);
    } else {
      return invalid("expected 'k=' or 'f=' after '#'");
    }
  }
  return {};
}

Result<Parts> parse_url(std::string_view text) {
  Parts parts;
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  if (text.size() > kMaxLink) return invalid("longer than any link");
  if (text.starts_with("https://")) {
    text.remove_prefix(8);
  } else if (text.find("://") != std::string_view::npos) {
    return invalid("expected https://");
  }
  const auto hash = text.find('#');
  if (hash != std::string_view::npos) {
    TANDEM_TRY(parse_fragment(text.substr(hash + 1), parts));
    text = text.substr(0, hash);
  }
  const auto slash = text.find('/');
  if (slash != std::string_view::npos) {
    parts.path = text.substr(slash);
    text = text.substr(0, slash);
  }
  TANDEM_TRY(parse_authority(text, parts.hub));
  return parts;
}

}  // namespace

std::string make_code() {
  std::string code;
  while (code.size() < kCodeLength) {
    // 240 is the largest multiple of 30 in a byte: what lies above would favour some characters.
    const auto byte = static_cast<unsigned char>(random_bytes(1)[0]);
    if (byte < 240) code += kCodeAlphabet[byte % kCodeAlphabet.size()];
  }
  return code;
}

Result<std::string> parse_code(std::string_view text) {
  std::string code;
  for (const char c : text) {
    code += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (kCodeAlphabet.find(code.back()) == std::string_view::npos || code.size() > kCodeLength) {
      return invalid("a room's code has six characters of " + std::string(kCodeAlphabet));
    }
  }
  if (code.size() != kCodeLength) {
    return invalid("a room's code has six characters of " + std::string(kCodeAlphabet));
  }
  return code;
}

std::string HubAddress::authority() const {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string HubAddress::text() const {
  return "https://" + authority() + (fingerprint.empty() ? "" : "/#f=" + fingerprint);
}

Result<HubAddress> parse_hub(std::string_view text) {
  auto parts = parse_url(text);
  if (!parts.ok()) return parts.error().in("the hub's address");
  if (!parts->key.empty() || (!parts->path.empty() && parts->path != "/")) {
    return invalid("the hub's address: expected https://HOST:PORT, not a room's link");
  }
  return parts->hub;
}

std::string RoomLink::text() const {
  std::string text = "https://" + hub.authority() + "/room/" + code;
  char separator = '#';
  if (!key.empty()) {
    text += separator + ("k=" + base64url(key));
    separator = '&';
  }
  if (!hub.fingerprint.empty()) text += separator + ("f=" + hub.fingerprint);
  return text;
}

Result<RoomLink> parse_link(std::string_view text) {
  auto parts = parse_url(text);
  if (!parts.ok()) return parts.error().in("the room's link");
  constexpr std::string_view kPath = "/room/";
  if (!parts->path.starts_with(kPath)) {
    return invalid("the room's link: expected https://HOST:PORT/room/CODE#k=KEY");
  }
  RoomLink link;
  TANDEM_ASSIGN(link.code, parse_code(std::string_view(parts->path).substr(kPath.size())));
  link.hub = std::move(parts->hub);
  link.key = std::move(parts->key);
  return link;
}

}  // namespace tandem::hub
