#include "hub/identity.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/hash.h"
#include "hub/secret.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;

struct KeyFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Key = std::unique_ptr<EVP_PKEY, KeyFree>;
struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, BioFree>;
struct X509Free {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Cert = std::unique_ptr<X509, X509Free>;

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string text_of(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    std::abort();
  }
  return text_of(bio);
}

Key key_of(std::string_view pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

std::string public_of(EVP_PKEY* key) {
  std::string result(32, '\0');
  size_t length = result.size();
  if (EVP_PKEY_get_raw_public_key(key, reinterpret_cast<unsigned char*>(result.data()), &length) !=
          1 ||
      length != 32) {
    return "";
  }
  return result;
}

/// A version 3 certificate of `key`, signed by itself.
std::string self_signed(EVP_PKEY* key, const char* name, const EVP_MD* digest) {
  const Cert certificate(X509_new());
  X509* const x = certificate.get();
  X509_set_version(x, 2);
  std::string serial = random_bytes(16);
  serial[0] = static_cast<char>((serial[0] & 0x3f) | 0x40);  // positive, of full length
  BIGNUM* number = BN_bin2bn(bytes_of(serial), static_cast<int>(serial.size()), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x));
  BN_free(number);
  // A device's clock may be behind: the past is no reason to refuse a key that is pinned.
  ASN1_TIME_set_string(X509_getm_notBefore(x), "20200101000000Z");
  X509_time_adj_ex(X509_getm_notAfter(x), 20 * 365, 0, nullptr);
  X509_set_pubkey(x, key);
  X509_NAME* subject = X509_get_subject_name(x);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, bytes_of(name), -1, -1, 0);
  X509_set_issuer_name(x, subject);
  if (X509_sign(x, key, digest) == 0) std::abort();
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), x) != 1) std::abort();
  return text_of(bio);
}

Key new_key(int type) {
  EVP_PKEY* key = nullptr;
  if (type == EVP_PKEY_ED25519) {
    EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(type, nullptr);
    if (EVP_PKEY_keygen_init(context) != 1 || EVP_PKEY_keygen(context, &key) != 1) std::abort();
    EVP_PKEY_CTX_free(context);
  } else {
    key = EVP_EC_gen("P-256");
  }
  if (key == nullptr) std::abort();
  return Key(key);
}

Error io_error(const fs::path& path, const char* what) {
  return {ErrorKind::kIo, path.string() + ": " + what + ": " + std::strerror(errno)};
}

}  // namespace

Status make_private_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return {};
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return io_error(folder, "can't make the folder");
  }
  return {};
}

Status write_private_file(const fs::path& path, std::string_view text) {
  fs::path temporary = path;
  temporary += "." + std::to_string(::getpid()) + "-" + base64url(random_bytes(6));
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return io_error(path, "can't write the file");
  bool ok = true;
  for (size_t done = 0; ok && done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count > 0) done += static_cast<size_t>(count);
    ok = count > 0 || errno == EINTR;
  }
  ok = ok && ::fsync(fd) == 0;
  ok = ::close(fd) == 0 && ok;
  if (!ok || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error = io_error(path, "can't write the file");
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<std::string> read_small_file(const fs::path& path, uint64_t limit, bool is_private) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    Error error = io_error(path, "can't open the file");
    if (errno == ENOENT) error.kind = ErrorKind::kNotFound;
    return error;
  }
  struct stat status {};
  std::string text;
  if (::fstat(fd, &status) == 0 && is_private && (status.st_mode & 077) != 0) {
    ::close(fd);
    return invalid(path.string() + ": others can read it; expected a file of mode 0600");
  }
  std::array<char, 16384> buffer{};
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      Error error = io_error(path, "can't read the file");
      ::close(fd);
      return error;
    }
    text.append(buffer.data(), static_cast<size_t>(count));
    if (count == 0 || text.size() > limit) break;
  }
  ::close(fd);
  if (text.size() > limit) {
    return invalid(path.string() + ": longer than " + std::to_string(limit) + " bytes");
  }
  return text;
}

Identity Identity::from_seed(std::string_view seed) {
  const Key key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, bytes_of(seed), seed.size()));
  if (key == nullptr) std::abort();
  Identity identity;
  identity.public_key_ = public_of(key.get());
  identity.key_pem_ = pem_of(key.get());
  return identity;
}

Identity Identity::make() {
  const Key key = new_key(EVP_PKEY_ED25519);
  Identity identity;
  identity.public_key_ = public_of(key.get());
  identity.key_pem_ = pem_of(key.get());
  identity.certificate_pem_ = self_signed(key.get(), "tandem device", nullptr);
  return identity;
}

Result<Identity> Identity::open(const fs::path& folder) {
  TANDEM_TRY(make_private_folder(folder));
  // Held while the files are made, so that another process waits and then finds them.
  const fs::path lock = folder / "identity.lock";
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return io_error(lock, "can't open the file");
  ::flock(fd, LOCK_EX);
  auto result = [&]() -> Result<Identity> {
    const fs::path key_path = folder / "identity.pem";
    const fs::path certificate_path = folder / "certificate.pem";
    auto key_pem = read_small_file(key_path, 65536, true);
    if (!key_pem.ok() && key_pem.error().kind != ErrorKind::kNotFound) return key_pem.error();
    if (!key_pem.ok()) {
      Identity made = make();
      // The certificate first: a key without one is given a new one below.
      TANDEM_TRY(write_private_file(certificate_path, made.certificate_pem_));
      TANDEM_TRY(write_private_file(key_path, made.key_pem_));
      return made;
    }
    const Key key = key_of(*key_pem);
    Identity identity;
    if (key != nullptr) identity.public_key_ = public_of(key.get());
    if (identity.public_key_.empty()) {
      return invalid(key_path.string() + ": expected an Ed25519 private key as PEM");
    }
    identity.key_pem_ = std::move(*key_pem);
    auto certificate = read_small_file(certificate_path, 65536, false);
    if (certificate.ok() && certificate_fingerprint(*certificate).ok()) {
      identity.certificate_pem_ = std::move(*certificate);
    } else {
      identity.certificate_pem_ = self_signed(key.get(), "tandem device", nullptr);
      TANDEM_TRY(write_private_file(certificate_path, identity.certificate_pem_));
    }
    return identity;
  }();
  ::close(fd);
  return result;
}

std::string Identity::device_id() const {
  return hub::device_id(public_key_);
}

std::string Identity::sign(std::string_view message) const {
  const Key key = key_of(key_pem_);
  std::string signature(64, '\0');
  size_t length = signature.size();
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  const bool ok = EVP_DigestSignInit(context, nullptr, nullptr, nullptr, key.get()) == 1 &&
                  EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()),
                                 &length, bytes_of(message), message.size()) == 1;
  EVP_MD_CTX_free(context);
  if (!ok || length != 64) std::abort();
  return signature;
}

std::string Identity::fingerprint() const {
  const auto result = certificate_fingerprint(certificate_pem_);
  return result.ok() ? *result : "";
}

std::string device_id(std::string_view public_key) {
  return hex(sha256(public_key)).substr(0, 32);
}

bool verify_signature(std::string_view public_key, std::string_view message,
                      std::string_view signature) {
  if (public_key.size() != 32 || signature.size() != 64) return false;
  const Key key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes_of(public_key),
                                            public_key.size()));
  if (key == nullptr) return false;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  const bool ok = EVP_DigestVerifyInit(context, nullptr, nullptr, nullptr, key.get()) == 1 &&
                  EVP_DigestVerify(context, bytes_of(signature), signature.size(),
                                   bytes_of(message), message.size()) == 1;
  EVP_MD_CTX_free(context);
  return ok;
}

Certificate make_hub_certificate() {
  const Key key = new_key(EVP_PKEY_EC);
  return {pem_of(key.get()), self_signed(key.get(), "tandem hub", EVP_sha256())};
}

Result<std::string> certificate_fingerprint(std::string_view pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Cert certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  unsigned char* der = nullptr;
  const int length = certificate == nullptr ? -1 : i2d_X509(certificate.get(), &der);
  if (length <= 0) return invalid("expected a certificate as PEM");
  const std::string digest =
      hex(sha256(std::string_view(reinterpret_cast<char*>(der), static_cast<size_t>(length))));
  OPENSSL_free(der);
  return digest;
}

}  // namespace tandem::hub
