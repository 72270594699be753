// A few bytes that one device alone can read: sealed to its Ed25519 public key.
//
//   box = ephemeral:32 ciphertext tag:16
//
// with an X25519 key made for this box, the device's key as the X25519 key that birationally
// belongs to it (RFC 7748, 4.1), and ChaCha20-Poly1305 under 32 bytes of HKDF-SHA256 of the shared
// secret and both public keys; the nonce is zero, since no key is used twice.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/identity.h"

namespace tandem::hub {

/// Error: kInvalid (not the public key of a device).
Result<std::string> seal_box(std::string_view public_key, std::string_view text);
/// Error: kInvalid (not a box for this device, or changed).
Result<std::string> open_box(const Identity& identity, std::string_view box);

}  // namespace tandem::hub
