#include "hub/server/stream.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace tandem::hub {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

Result<SslContext> make_server_context(const std::string& certificate_pem,
                                       const std::string& key_pem) {
  SslContext context(SSL_CTX_new(TLS_server_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  BIO* bio = BIO_new_mem_buf(certificate_pem.data(), static_cast<int>(certificate_pem.size()));
  X509* leaf = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  bool ok = leaf != nullptr && SSL_CTX_use_certificate(context.get(), leaf) == 1;
  X509_free(leaf);
  while (ok) {
    X509* next = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    if (next == nullptr) break;
    ok = SSL_CTX_add0_chain_cert(context.get(), next) == 1;
  }
  BIO_free(bio);
  ERR_clear_error();
  if (!ok) return invalid("the certificate: expected PEM, the hub's own certificate first");
  bio = BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  ok = key != nullptr && SSL_CTX_use_PrivateKey(context.get(), key) == 1 &&
       SSL_CTX_check_private_key(context.get()) == 1;
  EVP_PKEY_free(key);
  ERR_clear_error();
  if (!ok) return invalid("the certificate's key: expected the private key of it as PEM");
  return context;
}

TlsStream::TlsStream(asio::ip::tcp::socket socket, SSL_CTX* context)
    : socket_(std::move(socket)), ssl_(SSL_new(context)) {
  boost::system::error_code error;
  const auto remote = socket_.remote_endpoint(error);
  if (!error) address_ = remote.address().to_string();
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  socket_.set_option(asio::socket_base::keep_alive(true), error);
  // A client whose machine vanished without a word is noticed after a minute.
  const auto probe = [&](int name, int value) {
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, name, &value, sizeof value);
  };
  probe(TCP_KEEPIDLE, 30);
  probe(TCP_KEEPINTVL, 10);
  probe(TCP_KEEPCNT, 3);
  socket_.non_blocking(true, error);
  SSL_set_fd(ssl_, socket_.native_handle());
  SSL_set_accept_state(ssl_);
  set_deadline(std::chrono::seconds(10));
}

TlsStream::~TlsStream() {
  SSL_free(ssl_);
}

asio::awaitable<bool> TlsStream::ready(int result) {
  const int error = SSL_get_error(ssl_, result);
  if (closed_ || (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)) co_return false;
  const auto what = error == SSL_ERROR_WANT_READ ? asio::ip::tcp::socket::wait_read
                                                 : asio::ip::tcp::socket::wait_write;
  const auto [failure] = co_await socket_.async_wait(what, asio::as_tuple(asio::use_awaitable));
  co_return !failure && !closed_;
}

asio::awaitable<bool> TlsStream::handshake() {
  for (;;) {
    ERR_clear_error();
    const int result = SSL_accept(ssl_);
    if (result == 1) co_return true;
    const bool more = co_await ready(result);
    if (!more) co_return false;
  }
}

asio::awaitable<int> TlsStream::read(std::string& bytes) {
  for (;;) {
    if (closed_) co_return -1;
    // Only used until the next suspension, so one for each thread is enough.
    thread_local std::array<char, 16384> buffer;
    ERR_clear_error();
    const int result = SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()));
    if (result > 0) {
      bytes.append(buffer.data(), static_cast<size_t>(result));
      co_return result;
    }
    if (SSL_get_error(ssl_, result) == SSL_ERROR_ZERO_RETURN) co_return 0;
    const bool more = co_await ready(result);
    if (!more) co_return -1;
  }
}

asio::awaitable<bool> TlsStream::write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (closed_) co_return false;
    ERR_clear_error();
    const int size = static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20));
    const int result = SSL_write(ssl_, bytes.data(), size);
    if (result > 0) {
      bytes.remove_prefix(static_cast<size_t>(result));
      continue;
    }
    const bool more = co_await ready(result);
    if (!more) co_return false;
  }
  co_return true;
}

asio::awaitable<void> TlsStream::finish() {
  if (!closed_) {
    ERR_clear_error();
    SSL_shutdown(ssl_);  // one record; if it does not fit now, the end of the socket says the same
    boost::system::error_code error;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  }
  co_return;
}

void TlsStream::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code error;
  socket_.close(error);
}

void TlsStream::set_deadline(Clock::duration from_now) {
  deadline_ = (Clock::now() + from_now).time_since_epoch().count();
}

bool TlsStream::expired(Clock::time_point now) const {
  return now.time_since_epoch().count() > deadline_.load();
}

void TlsStream::expire(const std::shared_ptr<TlsStream>& stream) {
  asio::post(stream->executor(), [stream] { stream->close(); });
}

}  // namespace tandem::hub
