#include "hub/sealed_box.h"

#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <memory>

#include "hub/secret.h"

namespace tandem::hub {
namespace {

constexpr size_t kKey = 32;
constexpr size_t kTag = 16;
constexpr size_t kMostText = 4096;

struct Free {
  void operator()(BIGNUM* number) const { BN_clear_free(number); }
  void operator()(BN_CTX* context) const { BN_CTX_free(context); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Number = std::unique_ptr<BIGNUM, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

/// u = (1 + y) / (1 - y) modulo 2^255 - 19; empty for the points that have none.
std::string montgomery(std::string_view ed25519) {
  std::string y(ed25519);
  y.back() = static_cast<char>(static_cast<unsigned char>(y.back()) & 0x7f);  // the sign of x
  const std::unique_ptr<BN_CTX, Free> context(BN_CTX_new());
  const Number prime(BN_new());
  const Number value(BN_lebin2bn(bytes_of(std::string_view(y)), kKey, nullptr));
  const Number above(BN_new());
  const Number below(BN_new());
  const Number result(BN_new());
  std::string u(kKey, '\0');
  const bool good =
      BN_set_bit(prime.get(), 255) == 1 && BN_sub_word(prime.get(), 19) == 1 &&
      BN_mod_add(above.get(), BN_value_one(), value.get(), prime.get(), context.get()) == 1 &&
      BN_mod_sub(below.get(), BN_value_one(), value.get(), prime.get(), context.get()) == 1 &&
      BN_mod_inverse(result.get(), below.get(), prime.get(), context.get()) != nullptr &&
      BN_mod_mul(result.get(), result.get(), above.get(), prime.get(), context.get()) == 1 &&
      BN_bn2lebinpad(result.get(), bytes_of(u), kKey) == static_cast<int>(kKey);
  ERR_clear_error();
  return good ? u : std::string();
}

/// The shared secret of a private and a public key; empty if there is none.
std::string agree(EVP_PKEY* own, std::string_view other) {
  const Key peer(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, bytes_of(other), kKey));
  const std::unique_ptr<EVP_PKEY_CTX, Free> context(EVP_PKEY_CTX_new(own, nullptr));
  std::string secret(kKey, '\0');
  size_t length = kKey;
  const bool good = peer != nullptr && context != nullptr &&
                    EVP_PKEY_derive_init(context.get()) == 1 &&
                    EVP_PKEY_derive_set_peer(context.get(), peer.get()) == 1 &&
                    EVP_PKEY_derive(context.get(), bytes_of(secret), &length) == 1;
  ERR_clear_error();
  return good && length == kKey ? secret : std::string();
}

std::string box_key(const std::string& secret, std::string_view ephemeral,
                    std::string_view receiver) {
  std::string all = secret;
  all.append(ephemeral).append(receiver);
  std::string key = derive(all, "tandem sealed box 1", kKey);
  OPENSSL_cleanse(all.data(), all.size());
  return key;
}

}  // namespace

Result<std::string> seal_box(std::string_view public_key, std::string_view text) {
  const std::string receiver = public_key.size() == kKey ? montgomery(public_key) : "";
  if (receiver.empty() || text.size() > kMostText) {
    return invalid("expected the public key of a device, and at most 4096 bytes to seal");
  }
  const Key ephemeral(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  std::string own(kKey, '\0');
  size_t length = kKey;
  if (ephemeral == nullptr ||
      EVP_PKEY_get_raw_public_key(ephemeral.get(), bytes_of(own), &length) != 1) {
    return Error{ErrorKind::kIo, "the system makes no key"};
  }
  const std::string secret = agree(ephemeral.get(), receiver);
  if (secret.empty()) return invalid("nothing can be sealed to that public key");
  const std::string key = box_key(secret, own, receiver);
  const std::unique_ptr<EVP_CIPHER_CTX, Free> cipher(EVP_CIPHER_CTX_new());
  const std::array<unsigned char, 12> nonce{};
  std::string sealed(text.size(), '\0');
  std::string tag(kTag, '\0');
  int written = 0;
  const bool good = EVP_EncryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr,
                                       bytes_of(key), nonce.data()) == 1 &&
                    EVP_EncryptUpdate(cipher.get(), bytes_of(sealed), &written, bytes_of(text),
                                      static_cast<int>(text.size())) == 1 &&
                    EVP_EncryptFinal_ex(cipher.get(), bytes_of(sealed) + written, &written) == 1 &&
                    EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, kTag, tag.data()) == 1;
  if (!good) return Error{ErrorKind::kIo, "nothing can be encrypted"};
  return own + sealed + tag;
}

Result<std::string> open_box(const Identity& identity, std::string_view box) {
  const Error wrong = invalid("not a sealed box for this device");
  if (box.size() < kKey + kTag || box.size() > kKey + kMostText + kTag) return wrong;
  const std::string_view ephemeral = box.substr(0, kKey);
  const std::string_view sealed = box.substr(kKey, box.size() - kKey - kTag);
  std::string tag(box.substr(box.size() - kTag));
  const std::string& pem = identity.key_pem();
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Key own(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  std::array<unsigned char, kKey> seed{};
  size_t length = seed.size();
  if (own == nullptr || EVP_PKEY_get_raw_private_key(own.get(), seed.data(), &length) != 1) {
    ERR_clear_error();
    return wrong;
  }
  // RFC 8032, 5.1.5: the scalar is the first half of the seed's hash; X25519 clamps it by itself.
  std::array<unsigned char, SHA512_DIGEST_LENGTH> hash{};
  SHA512(seed.data(), seed.size(), hash.data());
  const Key scalar(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, hash.data(), kKey));
  OPENSSL_cleanse(hash.data(), hash.size());
  OPENSSL_cleanse(seed.data(), seed.size());
  const std::string secret = scalar == nullptr ? "" : agree(scalar.get(), ephemeral);
  if (secret.empty()) return wrong;
  const std::string key = box_key(secret, ephemeral, montgomery(identity.public_key()));
  const std::unique_ptr<EVP_CIPHER_CTX, Free> cipher(EVP_CIPHER_CTX_new());
  const std::array<unsigned char, 12> nonce{};
  std::string text(sealed.size(), '\0');
  int written = 0;
  int last = 0;
  const bool good =
      EVP_DecryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr, bytes_of(key),
                         nonce.data()) == 1 &&
      EVP_DecryptUpdate(cipher.get(), bytes_of(text), &written, bytes_of(sealed),
                        static_cast<int>(sealed.size())) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_SET_TAG, kTag, tag.data()) == 1 &&
      EVP_DecryptFinal_ex(cipher.get(), bytes_of(text) + written, &last) == 1;
  ERR_clear_error();
  if (!good) return wrong;
  return text;
}

}  // namespace tandem::hub
