// A device's certificate: made, kept in a file, read.
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "wire/tls_parts.h"

namespace tandem::wire {
namespace {

constexpr size_t kMostFile = 16u << 10;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

std::string system_error() {
  return std::strerror(errno);
}  // NOLINT(concurrency-mt-unsafe)

/// No password is ever asked for: a terminal would be read.
int no_password(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*unused*/) {
  return -1;
}

Result<std::string> read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorKind::kIo, "can't be read: " + system_error()};
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > kMostFile) return invalid("too long for an identity");
  }
}

}  // namespace

Identity::Identity(std::unique_ptr<Parts> parts, const Fingerprint& fingerprint)
    : parts_(std::move(parts)), fingerprint_(fingerprint) {}
Identity::~Identity() = default;

Result<std::shared_ptr<const Identity>> Identity::of(std::unique_ptr<Parts> parts) {
  Fingerprint fingerprint{};
  unsigned length = 0;
  if (EVP_PKEY_get_id(parts->key.get()) != EVP_PKEY_ED25519 ||
      X509_check_private_key(parts->certificate.get(), parts->key.get()) != 1 ||
      X509_digest(parts->certificate.get(), EVP_sha256(), fingerprint.data(), &length) != 1) {
    ERR_clear_error();
    return invalid("not an Ed25519 key and its certificate");
  }
  return std::shared_ptr<const Identity>(new Identity(std::move(parts), fingerprint));
}

Result<std::shared_ptr<const Identity>> Identity::create() {
  auto parts = std::make_unique<Parts>();
  parts->key.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  parts->certificate.reset(X509_new());
  X509* certificate = parts->certificate.get();
  std::array<unsigned char, 8> serial{};
  const Error failed{ErrorKind::kIo, "the system makes no certificate"};
  if (parts->key == nullptr || certificate == nullptr ||
      RAND_bytes(serial.data(), static_cast<int>(serial.size())) != 1) {
    return failed;
  }
  serial[0] = (serial[0] & 0x7f) | 1;
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr), &BN_free);
  X509_NAME* name = X509_get_subject_name(certificate);
  // No dates that could end it: it is known by its fingerprint, for as long as that is trusted.
  const bool good =
      X509_set_version(certificate, X509_VERSION_3) == 1 &&
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr &&
      ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), "20200101000000Z") == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), "99991231235959Z") == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("tandem device"), -1, -1,
                                 0) == 1 &&
      X509_set_issuer_name(certificate, name) == 1 &&
      X509_set_pubkey(certificate, parts->key.get()) == 1 &&
      X509_sign(certificate, parts->key.get(), nullptr) > 0;
  if (!good) {
    ERR_clear_error();
    return failed;
  }
  return of(std::move(parts));
}

Result<std::shared_ptr<const Identity>> Identity::open(const std::string& file) {
  const int made = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made >= 0) {
    auto identity = create();
    const Bio text(BIO_new(BIO_s_mem()), &BIO_free);
    char* data = nullptr;
    bool written = identity.ok() && text != nullptr &&
                   PEM_write_bio_PrivateKey(text.get(), (*identity)->parts_->key.get(), nullptr,
                                            nullptr, 0, nullptr, nullptr) == 1 &&
                   PEM_write_bio_X509(text.get(), (*identity)->parts_->certificate.get()) == 1;
    const long size = written ? BIO_get_mem_data(text.get(), &data) : 0;
    written = written && ::write(made, data, static_cast<size_t>(size)) == size;
    written = ::close(made) == 0 && written;
    if (written) return identity;
    ::unlink(file.c_str());
    if (!identity.ok()) return identity.error();
    return Error{ErrorKind::kIo, file + ": can't be written"};
  }
  if (errno != EEXIST) return Error{ErrorKind::kIo, file + ": " + system_error()};
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Error{ErrorKind::kIo, file + ": " + system_error()};
  const auto read = read_all(fd);
  ::close(fd);
  if (!read.ok()) return read.error().in(file);
  auto identity = of_pem(*read, "");
  if (!identity.ok()) return identity.error().in(file);
  return identity;
}

Result<std::shared_ptr<const Identity>> Identity::of_pem(std::string_view key,
                                                         std::string_view certificate) {
  if (key.size() > kMostFile || certificate.size() > kMostFile) {
    return invalid("too long for an identity");
  }
  std::string text(key);
  text.append("\n").append(certificate);
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  auto parts = std::make_unique<Parts>();
  parts->key.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_password, nullptr));
  parts->certificate.reset(PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr));
  ERR_clear_error();
  OPENSSL_cleanse(text.data(), text.size());
  if (parts->key == nullptr || parts->certificate == nullptr) {
    return invalid("expected a private key and a certificate in PEM");
  }
  return of(std::move(parts));
}

}  // namespace tandem::wire
