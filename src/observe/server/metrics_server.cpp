#include "observe/server/metrics_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <thread>

namespace tandem::observe {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr int kMaxConnections = 16;
constexpr uint32_t kMaxHeader = 8192;

/// Host and port of "HOST:PORT", "[V6]:PORT" or "PORT"; an empty port if it is none of them.
std::pair<std::string, std::string> split(const std::string& listen) {
  const auto colon = listen.rfind(':');
  std::string host = colon == std::string::npos ? "127.0.0.1" : listen.substr(0, colon);
  std::string port = colon == std::string::npos ? listen : listen.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || host.empty()) port.clear();
  return {host, port};
}

}  // namespace

struct MetricsServer::State {
  explicit State(std::function<std::string()> given) : text(std::move(given)) {}
  asio::awaitable<void> accept();
  asio::awaitable<void> serve(tcp::socket socket);
  http::response<http::string_body> answer(const http::request<http::empty_body>& request) const;

  std::function<std::string()> text;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  int connections = 0;
  std::thread thread;
};

asio::awaitable<void> MetricsServer::State::accept() {
  asio::steady_timer pause(io);
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // out of descriptors: some will be closed
      pause.expires_after(std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    if (connections >= kMaxConnections) continue;
    asio::co_spawn(io, serve(std::move(socket)), asio::detached);
  }
}

http::response<http::string_body> MetricsServer::State::answer(
    const http::request<http::empty_body>& request) const {
  http::response<http::string_body> response;
  response.version(11);
  response.keep_alive(request.keep_alive());
  response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
  response.set("X-Content-Type-Options", "nosniff");
  if (request.method() != http::verb::get) {
    response.result(http::status::method_not_allowed);
  } else if (request.target() == "/metrics") {
    response.body() = text();
  } else if (request.target() == "/health") {
    response.body() = "ok\n";
  } else {
    response.result(http::status::not_found);
    response.body() = "here are /metrics and /health\n";
  }
  response.prepare_payload();
  return response;
}

asio::awaitable<void> MetricsServer::State::serve(tcp::socket socket) {
  ++connections;
  boost::beast::tcp_stream stream(std::move(socket));
  boost::beast::flat_buffer buffer(kMaxHeader * 2);
  for (bool more = true; more;) {
    http::request_parser<http::empty_body> parser;
    parser.header_limit(kMaxHeader);
    stream.expires_after(kPatience);
    const auto [error, size] =
        co_await http::async_read(stream, buffer, parser, asio::as_tuple(asio::use_awaitable));
    if (error) break;
    const auto response = answer(parser.get());
    more = response.keep_alive();
    stream.expires_after(kPatience);
    const auto [failed, written] =
        co_await http::async_write(stream, response, asio::as_tuple(asio::use_awaitable));
    if (failed) break;
  }
  --connections;
}

MetricsServer::MetricsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& listen,
                                                            std::function<std::string()> text) {
  const auto [host, port] = split(listen);
  if (port.empty()) {
    return invalid("--metrics is '" + listen.substr(0, 100) + "'; expected HOST:PORT or PORT");
  }
  auto state = std::make_unique<State>(std::move(text));
  boost::system::error_code error;
  tcp::resolver resolver(state->io);
  const auto found = resolver.resolve(host, port, tcp::resolver::passive, error);
  if (!error) state->acceptor.open(found.begin()->endpoint().protocol(), error);
  if (!error) state->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) state->acceptor.bind(found.begin()->endpoint(), error);
  if (!error) state->acceptor.listen(kMaxConnections, error);
  if (error) {
    return Error{ErrorKind::kIo, "can't serve metrics at " + listen + ": " + error.message()};
  }
  State& running = *state;
  asio::co_spawn(running.io, running.accept(), asio::detached);
  state->thread = std::thread([&running] { running.io.run(); });
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(state)));
}

MetricsServer::~MetricsServer() {
  state_->io.stop();
  state_->thread.join();
}

std::string MetricsServer::address() const {
  const auto endpoint = state_->acceptor.local_endpoint();
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" +
         std::to_string(endpoint.port());
}

}  // namespace tandem::observe
