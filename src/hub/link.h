// How rooms and hubs are named: codes, invite links, hub addresses.
//
//   link    = "https://" HOST [":" PORT] "/room/" CODE ["#" field *("&" field)]
//   hub     = ["https://"] HOST [":" PORT] ["/"] ["#" field]
//   field   = "k=" KEY | "f=" FINGERPRINT
//
// KEY is the room's key, 128 bits in base64url (22 characters); FINGERPRINT the SHA-256 of the
// hub's certificate, 64 hexadecimal digits, which stands there if nobody else vouches for it. What
// follows "#" is never sent anywhere. CODE is six characters of kCodeAlphabet; lower case is read
// as upper case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::hub {

/// Version of what hubs and their clients say to each other (docs/api.md).
inline constexpr int kHubApi = 1;
/// 30 characters that nobody takes for each other: no 0 O 1 I L U.
inline constexpr std::string_view kCodeAlphabet = "23456789ABCDEFGHJKMNPQRSTVWXYZ";
inline constexpr size_t kCodeLength = 6;
inline constexpr uint16_t kDefaultHubPort = 7443;

/// A new code; every one of 30^6 is as likely.
std::string make_code();
/// The code in upper case. Error: kInvalid, which names the first wrong character.
Result<std::string> parse_code(std::string_view text);

struct HubAddress {
  std::string host;  ///< a name or a numeric address; IPv6 without brackets
  uint16_t port = kDefaultHubPort;
  std::string fingerprint;  ///< of the certificate to expect, or empty: the system's authorities

  /// "HOST:PORT", with brackets around an IPv6 address.
  [[nodiscard]] std::string authority() const;
  /// As above, with the fingerprint if there is one.
  [[nodiscard]] std::string text() const;
};
/// Error: kInvalid.
Result<HubAddress> parse_hub(std::string_view text);

struct RoomLink {
  HubAddress hub;
  std::string code;
  std::string key;  ///< 16 bytes, or empty: joining then asks the host

  [[nodiscard]] std::string text() const;
};
/// Errors are kInvalid and never hold the key.
Result<RoomLink> parse_link(std::string_view text);

}  // namespace tandem::hub
