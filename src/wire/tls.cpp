#include "wire/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

#include "wire/tls_parts.h"

namespace tandem::wire {
namespace {

constexpr std::string_view kExporter = "EXPORTER-tandem-room";
constexpr std::string_view kConnecting = "tandem room proof, connecting side";
constexpr std::string_view kAccepting = "tandem room proof, accepting side ";
constexpr std::string_view kCode = "tandem compare code";

/// OpenSSL's reason for the last failure of this thread.
std::string reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text == nullptr ? "unknown cause" : text;
}

/// Who a peer is shows later; here, only that its certificate is of the one kind there is. That the
/// peer holds the certificate's key is what the handshake itself checks.
int check_certificate(X509_STORE_CTX* store, void* /*unused*/) {
  X509* certificate = X509_STORE_CTX_get0_cert(store);
  const EVP_PKEY* key = certificate == nullptr ? nullptr : X509_get0_pubkey(certificate);
  if (key != nullptr && EVP_PKEY_get_id(key) == EVP_PKEY_ED25519) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

template <typename Bytes>
void append(std::vector<std::byte>& to, const Bytes& bytes) {
  const auto part = std::as_bytes(std::span(bytes.data(), bytes.size()));
  to.insert(to.end(), part.begin(), part.end());
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

template <size_t N>
bool parse_hex(std::string_view text, std::array<uint8_t, N>& bytes) {
  if (text.size() != 2 * N) return false;
  for (size_t i = 0; i < N; ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace

Result<RoomKey> parse_room_key(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  if (first != std::string_view::npos) {
    text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  }
  RoomKey key;
  if (parse_hex(text, key)) return key;
  return invalid("not a room's key: expected 32 hexadecimal digits, found " +
                 std::to_string(text.size()) + " characters");
}

Result<std::pair<std::string, std::optional<Fingerprint>>> split_pin(std::string_view text) {
  const auto mark = text.find('#');
  if (mark == std::string_view::npos)
    return std::pair{std::string(text), std::optional<Fingerprint>()};
  Fingerprint pin;
  if (!parse_hex(text.substr(mark + 1), pin)) {
    return invalid("bad fingerprint in '" + std::string(text.substr(0, 100)) +
                   "', expected 64 hexadecimal digits after the #");
  }
  return std::pair{std::string(text.substr(0, mark)), std::optional(pin)};
}

struct Tls::Context {
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context{SSL_CTX_new(TLS_method()),
                                                            &SSL_CTX_free};
};

Tls::Tls(std::shared_ptr<const Identity> identity, const RoomKey& key,
         std::unique_ptr<Context> context)
    : identity_(std::move(identity)), key_(key), context_(std::move(context)) {}

Tls::~Tls() {
  OPENSSL_cleanse(key_.data(), key_.size());
}

Result<std::shared_ptr<const Tls>> Tls::create(std::shared_ptr<const Identity> identity,
                                               const RoomKey& key) {
  auto context = std::make_unique<Context>();
  SSL_CTX* ssl = context->context.get();
  const bool good =
      ssl != nullptr && SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(ssl, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1 &&
      SSL_CTX_set1_groups_list(ssl, "X25519") == 1 &&
      SSL_CTX_set1_sigalgs_list(ssl, "ed25519") == 1 &&
      SSL_CTX_use_certificate(ssl, identity->parts_->certificate.get()) == 1 &&
      SSL_CTX_use_PrivateKey(ssl, identity->parts_->key.get()) == 1;
  if (!good) return Error{ErrorKind::kIo, "can't set up TLS: " + reason()};
  // No session is ever taken up again: each has keys of its own, and a proof of its own.
  SSL_CTX_set_num_tickets(ssl, 0);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(ssl, &check_certificate, nullptr);
  return std::shared_ptr<const Tls>(new Tls(std::move(identity), key, std::move(context)));
}

std::unique_ptr<TlsChannel> Tls::connecting(std::optional<Fingerprint> pin) const {
  return std::unique_ptr<TlsChannel>(new TlsChannel(*this, true, pin));
}

std::unique_ptr<TlsChannel> Tls::accepting() const {
  return std::unique_ptr<TlsChannel>(new TlsChannel(*this, false, std::nullopt));
}

struct TlsChannel::Session {
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl{nullptr, &SSL_free};
  BIO* in = nullptr;  ///< owned by ssl, like `out`
  BIO* out = nullptr;
};

TlsChannel::TlsChannel(const Tls& tls, bool connecting, std::optional<Fingerprint> pin)
    : tls_(tls), connecting_(connecting), pin_(pin), session_(std::make_unique<Session>()) {
  session_->ssl.reset(SSL_new(tls.context_->context.get()));
  session_->in = BIO_new(BIO_s_mem());
  session_->out = BIO_new(BIO_s_mem());
  SSL_set_bio(session_->ssl.get(), session_->in, session_->out);
  if (connecting) {
    SSL_set_connect_state(session_->ssl.get());
  } else {
    SSL_set_accept_state(session_->ssl.get());
  }
}

TlsChannel::~TlsChannel() {
  OPENSSL_cleanse(exporter_.data(), exporter_.size());
}

Error TlsChannel::fail(const std::string& why) {
  phase_ = Phase::kFailed;
  return Error{ErrorKind::kPeer, why};
}

Result<size_t> TlsChannel::body_bytes(std::span<const std::byte, kRecordHeader> header) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(header[i]); };
  const size_t length = at(3) << 8 | at(4);
  // Types 20 to 23, all versions say 3.x.
  if (at(0) < 20 || at(0) > 23 || at(1) != 3 || length > kMostRecord) {
    return invalid("not a TLS record: the other side has no room's key, or is no Tandem");
  }
  return length;
}

Status TlsChannel::receive(std::span<const std::byte> record) {
  if (phase_ == Phase::kFailed) return Error{ErrorKind::kPeer, "the session has failed"};
  if (!record.empty() && BIO_write(session_->in, record.data(), static_cast<int>(record.size())) !=
                             static_cast<int>(record.size())) {
    return fail("no memory for a TLS record");
  }
  for (bool moved = true; moved && phase_ != Phase::kOpen;) {
    moved = false;
    TANDEM_TRY(step(moved));
  }
  return {};
}

Status TlsChannel::step(bool& moved) {
  switch (phase_) {
    case Phase::kHandshake:
      return handshake(moved);
    case Phase::kProof: {
      // The connecting side's opening has a commitment, the accepting side's answer a nonce.
      TANDEM_ASSIGN(const bool all, gather(connecting_ ? 32 + 16 : 32 + 32));
      if (!all) return {};
      moved = true;
      return check_proof();
    }
    case Phase::kReveal: {
      TANDEM_ASSIGN(const bool all, gather(16));
      if (!all) return {};
      moved = true;
      return check_reveal();
    }
    default:
      return {};
  }
}

Status TlsChannel::handshake(bool& moved) {
  SSL* ssl = session_->ssl.get();
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl);
  if (result != 1) {
    const int error = SSL_get_error(ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return {};
    return fail("the TLS handshake failed: " + reason());
  }
  moved = true;
  return greet();
}

Status TlsChannel::greet() {
  SSL* ssl = session_->ssl.get();
  const X509* certificate = SSL_get0_peer_certificate(ssl);
  unsigned length = 0;
  if (SSL_version(ssl) != TLS1_3_VERSION || certificate == nullptr ||
      X509_digest(certificate, EVP_sha256(), peer_.data(), &length) != 1) {
    return fail("the other side showed no certificate");
  }
  if (pin_ && peer_ != *pin_) {
    return fail("another device answers there: its fingerprint is " + hex(peer_) + ", expected " +
                hex(*pin_));
  }
  if (peer_ == tls_.fingerprint()) return fail("the other side shows this device's certificate");
  if (SSL_export_keying_material(ssl, exporter_.data(), exporter_.size(), kExporter.data(),
                                 kExporter.size(), nullptr, 0, 0) != 1 ||
      RAND_bytes(nonce_.data(), static_cast<int>(nonce_.size())) != 1) {
    return fail("TLS gives no key material: " + reason());
  }
  phase_ = Phase::kProof;
  if (!connecting_) return {};
  std::vector<std::byte> opening;
  append(opening, proof(true));
  append(opening, sha256(std::as_bytes(std::span(nonce_))));
  return write(opening);
}

Digest TlsChannel::proof(bool of_connecting) const {
  std::vector<std::byte> text;
  append(text, of_connecting ? kConnecting : kAccepting);
  append(text, connecting_ ? tls_.fingerprint() : peer_);
  append(text, connecting_ ? peer_ : tls_.fingerprint());
  append(text, exporter_);
  Digest digest{};
  unsigned length = 0;
  HMAC(EVP_sha256(), tls_.key_.data(), static_cast<int>(tls_.key_.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &length);
  OPENSSL_cleanse(text.data(), text.size());
  return digest;
}

Status TlsChannel::check_proof() {
  const Digest expected = proof(!connecting_);
  if (CRYPTO_memcmp(gathered_.data(), expected.data(), expected.size()) != 0) {
    return fail("the other side does not know the room's key, or somebody is in between");
  }
  const std::byte* rest = gathered_.data() + expected.size();
  std::vector<std::byte> answer;
  if (connecting_) {
    std::memcpy(peer_nonce_.data(), rest, peer_nonce_.size());
    append(answer, nonce_);
    make_code();
    phase_ = Phase::kOpen;
  } else {
    std::memcpy(commitment_.data(), rest, commitment_.size());
    append(answer, proof(false));
    append(answer, nonce_);
    phase_ = Phase::kReveal;
  }
  gathered_.clear();
  return write(answer);
}

Status TlsChannel::check_reveal() {
  if (sha256(gathered_) != commitment_) {
    return fail("the other side revealed another number than it had committed itself to");
  }
  std::memcpy(peer_nonce_.data(), gathered_.data(), peer_nonce_.size());
  gathered_.clear();
  make_code();
  phase_ = Phase::kOpen;
  return {};
}

void TlsChannel::make_code() {
  std::vector<std::byte> text;
  append(text, kCode);
  append(text, connecting_ ? tls_.fingerprint() : peer_);
  append(text, connecting_ ? peer_ : tls_.fingerprint());
  append(text, exporter_);
  append(text, connecting_ ? nonce_ : peer_nonce_);
  append(text, connecting_ ? peer_nonce_ : nonce_);
  const Digest digest = sha256(text);
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | digest[i];
  const std::string digits = std::to_string(1000000 + number % 1000000);
  code_ = digits.substr(1, 3) + " " + digits.substr(4);
}

Result<bool> TlsChannel::gather(size_t bytes) {
  std::array<std::byte, 64> part;
  TANDEM_ASSIGN(const size_t got, read(std::span(part).first(bytes - gathered_.size())));
  gathered_.insert(gathered_.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(got));
  if (ended_) return fail("the other side ended the session before it proved the room's key");
  return gathered_.size() == bytes;
}

Result<size_t> TlsChannel::read(std::span<std::byte> out) {
  SSL* ssl = session_->ssl.get();
  size_t total = 0;
  while (total < out.size() && !ended_) {
    ERR_clear_error();
    size_t got = 0;
    const int result = SSL_read_ex(ssl, out.data() + total, out.size() - total, &got);
    if (result == 1) {
      total += got;
      continue;
    }
    switch (SSL_get_error(ssl, result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return total;
      case SSL_ERROR_ZERO_RETURN:
        ended_ = true;
        break;
      default:
        return fail("the TLS session broke: " + reason());
    }
  }
  return total;
}

Status TlsChannel::write(std::span<const std::byte> plain) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kHandshake) {
    return Error{ErrorKind::kPeer, "the session is not open"};
  }
  ERR_clear_error();
  size_t written = 0;
  if (SSL_write_ex(session_->ssl.get(), plain.data(), plain.size(), &written) != 1 ||
      written != plain.size()) {
    return fail("the TLS session broke: " + reason());
  }
  return {};
}

void TlsChannel::end() {
  if (phase_ != Phase::kOpen) return;
  ERR_clear_error();
  (void)SSL_shutdown(session_->ssl.get());
  ERR_clear_error();
}

std::span<const std::byte> TlsChannel::outgoing() const {
  char* data = nullptr;
  const long size = BIO_get_mem_data(session_->out, &data);
  if (size <= 0) return {};
  return {reinterpret_cast<const std::byte*>(data), static_cast<size_t>(size)};
}

void TlsChannel::take() {
  (void)BIO_reset(session_->out);
}

}  // namespace tandem::wire
