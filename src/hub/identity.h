// Keys and certificates: a device's Ed25519 identity, a hub's self-signed certificate.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::hub {

/// An Ed25519 key pair, and optionally a self-signed certificate of it. Immutable; any thread.
class Identity {
 public:
  /// Reads identity.pem (private key) and certificate.pem of `folder`, which is made (0700) if it
  /// is not there, as are they (0600 and 0644). Two processes that do so at once get the same.
  /// Errors: kIo, kInvalid (damaged, or readable by others).
  static Result<Identity> open(const std::filesystem::path& folder);
  /// A new one, in memory.
  static Identity make();
  /// The key pair of a 32-byte seed, without a certificate.
  static Identity from_seed(std::string_view seed);

  /// 32 bytes.
  [[nodiscard]] const std::string& public_key() const { return public_key_; }
  /// The first 128 bits of the public key's SHA-256, as 32 hexadecimal digits: a device's name in
  /// all messages.
  [[nodiscard]] std::string device_id() const;
  /// 64 bytes, over `message`.
  [[nodiscard]] std::string sign(std::string_view message) const;
  [[nodiscard]] const std::string& key_pem() const { return key_pem_; }
  [[nodiscard]] const std::string& certificate_pem() const { return certificate_pem_; }
  /// SHA-256 of the certificate's DER form, 64 hexadecimal digits.
  [[nodiscard]] std::string fingerprint() const;

 private:
  Identity() = default;
  std::string public_key_;
  std::string key_pem_;
  std::string certificate_pem_;
};

/// The device id of a public key.
std::string device_id(std::string_view public_key);
/// True if `signature` is the signature of `message` by the holder of `public_key` (32 bytes).
bool verify_signature(std::string_view public_key, std::string_view message,
                      std::string_view signature);

/// A key and a certificate for TLS, both as PEM.
struct Certificate {
  std::string key_pem;
  std::string certificate_pem;
};
/// Self-signed, P-256, valid for 20 years: what a hub shows that nobody gave another.
Certificate make_hub_certificate();
/// SHA-256 over the DER form of the first certificate of a PEM text. Error: kInvalid.
Result<std::string> certificate_fingerprint(std::string_view pem);

/// Writes a file that its owner alone can read, all of it or nothing: under a temporary name,
/// synced, then renamed. Error: kIo.
Status write_private_file(const std::filesystem::path& path, std::string_view text);
/// A file of at most `limit` bytes. Errors: kNotFound, kIo, kInvalid (longer, or if `is_private`
/// readable by others).
Result<std::string> read_small_file(const std::filesystem::path& path, uint64_t limit,
                                    bool is_private);
/// Makes a folder, and those above it, for its owner alone. Error: kIo.
Status make_private_folder(const std::filesystem::path& folder);

}  // namespace tandem::hub
