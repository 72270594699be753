#include "hub/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

#include <cstdlib>

namespace tandem::hub {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string random_bytes(size_t bytes) {
  std::string result(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(bytes)) != 1) {
    std::abort();
  }
  return result;
}

std::string base64url(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t held = 0;
  int bits = 0;
  for (const char c : bytes) {
    held = (held << 8) | static_cast<unsigned char>(c);
    bits += 8;
    while (bits >= 6) {
      bits -= 6;
      text += kAlphabet[(held >> bits) & 63];
    }
    held &= (1U << bits) - 1;
  }
  if (bits > 0) text += kAlphabet[(held << (6 - bits)) & 63];
  return text;
}

std::optional<std::string> from_base64url(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    const auto value = kAlphabet.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    held = (held << 6) | static_cast<uint32_t>(value);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes += static_cast<char>((held >> bits) & 255);
      held &= (1U << bits) - 1;
    }
  }
  // One form for one content: neither a lone character nor bits that stand for nothing.
  if (bits >= 6 || held != 0) return std::nullopt;
  return bytes;
}

std::string derive(std::string_view key, std::string_view label, size_t bytes) {
  std::string result(bytes, '\0');
  size_t length = bytes;
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
  const bool ok =
      context != nullptr && EVP_PKEY_derive_init(context) == 1 &&
      EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()) == 1 &&
      EVP_PKEY_CTX_set1_hkdf_key(context, bytes_of(key), static_cast<int>(key.size())) == 1 &&
      EVP_PKEY_CTX_add1_hkdf_info(context, bytes_of(label), static_cast<int>(label.size())) == 1 &&
      EVP_PKEY_derive(context, reinterpret_cast<unsigned char*>(result.data()), &length) == 1;
  EVP_PKEY_CTX_free(context);
  if (!ok || length != bytes) std::abort();
  return result;
}

std::string hmac(std::string_view key, std::string_view message) {
  std::string result(32, '\0');
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
           message.size(), reinterpret_cast<unsigned char*>(result.data()), &length) == nullptr ||
      length != result.size()) {
    std::abort();
  }
  return result;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string make_token() {
  return base64url(random_bytes(16));
}

std::string token_hash(std::string_view token) {
  return hex(sha256(token));
}

std::string admission_seed(std::string_view room_key) {
  return derive(room_key, "tandem room admission to the hub 1", 32);
}

std::string peer_secret(std::string_view room_key) {
  return derive(room_key, "tandem room proof between devices 1", 32);
}

}  // namespace tandem::hub
