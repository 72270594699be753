// Random secrets, what is derived from them, and their text forms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace tandem::hub {

/// `bytes` random bytes of the system's generator, as a byte string. Ends the process if the
/// system has none.
std::string random_bytes(size_t bytes);

/// RFC 4648's URL-safe alphabet without padding.
std::string base64url(std::string_view bytes);
/// Nothing if `text` is not what base64url() gives for some bytes.
std::optional<std::string> from_base64url(std::string_view text);

/// HKDF-SHA256 (RFC 5869) with an empty salt: `bytes` bytes bound to `label`.
std::string derive(std::string_view key, std::string_view label, size_t bytes);
/// HMAC-SHA256.
std::string hmac(std::string_view key, std::string_view message);
/// Equal content, in time that depends on the lengths alone.
bool equal_secrets(std::string_view a, std::string_view b);

/// A bearer token: 128 random bits as 22 characters.
std::string make_token();
/// What a store holds of a token: the SHA-256 of its text as 64 digits. Tokens are random, so that
/// nothing slower is needed.
std::string token_hash(std::string_view token);

/// Of a room's key (16 bytes): the seed of the key pair that proves it to the hub, which holds the
/// public half alone; 32 bytes.
std::string admission_seed(std::string_view room_key);
/// Of a room's key: what two devices prove it to each other with. The hub never gets anything made
/// of it; 32 bytes.
std::string peer_secret(std::string_view room_key);

}  // namespace tandem::hub
