// One TLS 1.3 connection on a non-blocking socket, for coroutines.
//
// OpenSSL reads and writes the socket itself; Asio only says when it is ready. An idle connection
// then holds no buffers: about 10 KB instead of 70.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::hub {

struct SslContextFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, SslContextFree>;
/// Errors: kInvalid (no certificate, no key, or they don't belong together).
Result<SslContext> make_server_context(const std::string& certificate_pem,
                                       const std::string& key_pem);

/// All calls on the socket's own executor, but for expire().
class TlsStream {
 public:
  TlsStream(boost::asio::ip::tcp::socket socket, SSL_CTX* context);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  boost::asio::awaitable<bool> handshake();
  /// Appends what there is to read, at least a byte. 0 at the end, -1 after an error.
  boost::asio::awaitable<int> read(std::string& bytes);
  /// Writes all of it.
  boost::asio::awaitable<bool> write(std::string_view bytes);
  /// Says that nothing more will be written.
  boost::asio::awaitable<void> finish();
  /// Ends both directions at once; whoever reads or writes gets an error.
  void close();

  /// The connection ends unless it is moved on until then.
  void set_deadline(std::chrono::steady_clock::duration from_now);
  [[nodiscard]] bool expired(std::chrono::steady_clock::time_point now) const;
  /// close() from another thread.
  static void expire(const std::shared_ptr<TlsStream>& stream);

  [[nodiscard]] const std::string& address() const { return address_; }
  boost::asio::any_io_executor executor() { return socket_.get_executor(); }

 private:
  /// Waits for what OpenSSL asked for with its result; false if it can't go on.
  boost::asio::awaitable<bool> ready(int result);

  boost::asio::ip::tcp::socket socket_;
  SSL* ssl_;
  std::string address_;
  std::atomic<std::chrono::steady_clock::rep> deadline_;
  bool closed_ = false;
};

}  // namespace tandem::hub
