#include "hub/channel.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "wire/tcp.h"

namespace tandem::hub {
namespace {

struct SslFree {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

std::string fingerprint_of(X509* certificate) {
  unsigned char* der = nullptr;
  const int length = i2d_X509(certificate, &der);
  if (length <= 0) return "";
  std::string text =
      hex(sha256(std::string_view(reinterpret_cast<char*>(der), static_cast<size_t>(length))));
  OPENSSL_free(der);
  return text;
}

bool is_numeric(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

/// What the callback needs to judge a certificate, and what it found.
struct Judgement {
  std::string expected;  ///< fingerprint, or empty
  Trust trust = Trust::kNamed;
  std::string found;
};

int judge(X509_STORE_CTX* context, void* argument) {
  auto& judgement = *static_cast<Judgement*>(argument);
  judgement.found = fingerprint_of(X509_STORE_CTX_get0_cert(context));
  if (judgement.trust == Trust::kAny) return 1;
  if (judgement.expected.empty()) return X509_verify_cert(context) == 1 ? 1 : 0;
  if (judgement.found == judgement.expected) {
    X509_STORE_CTX_set_error(context, X509_V_OK);
    return 1;
  }
  X509_STORE_CTX_set_error(context, X509_V_ERR_CERT_UNTRUSTED);
  return 0;
}

}  // namespace

struct Channel::State {
  std::string peer;
  wire::Socket socket;
  Judgement judgement;
  std::unique_ptr<SSL_CTX, SslFree> context;
  std::unique_ptr<SSL, SslFree> ssl;
  const std::atomic<bool>* stop = nullptr;

  [[nodiscard]] Error failed(const std::string& what) const {
    return {ErrorKind::kPeer, "the hub " + peer + " " + what};
  }
  /// Waits for what OpenSSL asked for; an error if it asked for nothing or the time is over.
  Status ready(int result, Clock::time_point deadline) {
    const int error = SSL_get_error(ssl.get(), result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      ERR_clear_error();
      return failed("closed the connection");
    }
    constexpr auto kLook = std::chrono::milliseconds(100);
    for (;;) {
      const auto until = stop == nullptr ? deadline : std::min(deadline, Clock::now() + kLook);
      if (wire::wait_for(socket.fd(), error == SSL_ERROR_WANT_WRITE, until)) return {};
      if (stop != nullptr && *stop) return Error{ErrorKind::kCancelled, "stopped"};
      if (Clock::now() >= deadline) return failed("did not answer in time");
    }
  }
};

Channel::Channel(std::unique_ptr<State> state) : state_(std::move(state)) {}
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

Result<Channel> Channel::open(const HubAddress& hub, Trust trust, Clock::time_point deadline,
                              const std::atomic<bool>* stop) {
  static const bool quiet = [] {
    ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets without MSG_NOSIGNAL
    return true;
  }();
  (void)quiet;
  auto state = std::make_unique<State>();
  state->peer = hub.authority();
  state->stop = stop;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  TANDEM_ASSIGN(state->socket,
                wire::connect({hub.host, hub.port}, std::max(left, std::chrono::milliseconds(1))));
  state->judgement = {hub.fingerprint, trust, ""};
  state->context.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = state->context.get();
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context, judge, &state->judgement);
  if (hub.fingerprint.empty()) SSL_CTX_set_default_verify_paths(context);
  state->ssl.reset(SSL_new(context));
  SSL* const ssl = state->ssl.get();
  if (is_numeric(hub.host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), hub.host.c_str());
  } else {
    SSL_set1_host(ssl, hub.host.c_str());
    SSL_set_tlsext_host_name(ssl, hub.host.c_str());
  }
  SSL_set_fd(ssl, state->socket.fd());
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(ssl);
    if (result == 1) break;
    const Judgement& judgement = state->judgement;
    const long verified = SSL_get_verify_result(ssl);
    if (!judgement.found.empty() && verified != X509_V_OK) {
      if (!judgement.expected.empty()) {
        return state->failed("shows another certificate: expected fingerprint " +
                             judgement.expected + ", found " + judgement.found);
      }
      return state->failed(std::string("shows a certificate that nobody vouches for (") +
                           X509_verify_cert_error_string(verified) +
                           "); if it is its own, give its address with #f=" + judgement.found);
    }
    TANDEM_TRY(state->ready(result, deadline));
  }
  return Channel(std::move(state));
}

Status Channel::write(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    ERR_clear_error();
    const int size = static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20));
    const int result = SSL_write(state_->ssl.get(), bytes.data(), size);
    if (result > 0) {
      bytes.remove_prefix(static_cast<size_t>(result));
    } else {
      TANDEM_TRY(state_->ready(result, deadline));
    }
  }
  return {};
}

Result<size_t> Channel::read(std::span<char> bytes, Clock::time_point deadline) {
  for (;;) {
    ERR_clear_error();
    const int size = static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20));
    const int result = SSL_read(state_->ssl.get(), bytes.data(), size);
    if (result > 0) return static_cast<size_t>(result);
    if (SSL_get_error(state_->ssl.get(), result) == SSL_ERROR_ZERO_RETURN) return size_t{0};
    TANDEM_TRY(state_->ready(result, deadline));
  }
}

void Channel::finish() {
  SSL_shutdown(state_->ssl.get());
}

const std::string& Channel::fingerprint() const {
  return state_->judgement.found;
}

int Channel::fd() const {
  return state_->socket.fd();
}

}  // namespace tandem::hub
