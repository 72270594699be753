#include "hub/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "hub/server/limits.h"
#include "hub/server/relay.h"
#include "hub/server/signals.h"
#include "hub/server/stream.h"
#include "wire/tcp.h"

namespace tandem::hub {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

namespace {

constexpr auto kIdle = seconds(75);          // between two requests: five heartbeats
constexpr auto kStrangerIdle = seconds(15);  // before the first request that was no refusal
constexpr auto kHeaderTime = seconds(10);    // from a request's first byte to the end of its header
constexpr auto kBodyTime = seconds(60);
constexpr auto kWriteTime = seconds(60);  // for a response, and for each piece of a file
constexpr int64_t kMaxWait = 60;
constexpr auto kDrainTime = seconds(5);
constexpr size_t kDrainBytes = 16 << 20;
constexpr size_t kFilePiece = 256 << 10;
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr uint64_t kShortBody = 65536;  ///< bodies up to here are not counted

/// A part of the memory for long bodies, given back at the end.
class Share {
 public:
  explicit Share(std::atomic<uint64_t>& used) : used_(used) {}
  ~Share() { used_ -= mine_; }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  /// False if that would make more than `most` in all.
  bool take(uint64_t bytes, uint64_t most) {
    if (bytes <= kShortBody) return true;
    if (used_.fetch_add(bytes) + bytes > most) {
      used_ -= bytes;
      return false;
    }
    mine_ += bytes;
    return true;
  }

 private:
  std::atomic<uint64_t>& used_;
  uint64_t mine_ = 0;
};

Response no_memory() {
  Response response = refusal(503, "memory", "the hub has too many long bodies under way");
  response.fields.emplace_back("Retry-After", "5");
  return response;
}

}  // namespace

struct Server::State {
  State(const ServerOptions& given, App& hub, Signals& subjects)
      : options(given),
        app(hub),
        signals(subjects),
        io(static_cast<int>(given.io_threads)),
        acceptor(io),
        pool(given.workers) {}

  asio::awaitable<void> accept();
  asio::awaitable<void> sweep();
  asio::awaitable<void> session(std::shared_ptr<TlsStream> stream);
  asio::awaitable<void> serve(std::shared_ptr<TlsStream> stream);
  asio::awaitable<bool> read_request(std::shared_ptr<TlsStream> stream, std::string& held,
                                     RequestReader& reader, Share& share);
  asio::awaitable<std::optional<Response>> admit_body(const RequestReader& reader,
                                                      std::string address, Share& share);
  asio::awaitable<void> refuse(std::shared_ptr<TlsStream> stream, const Response& refused);
  asio::awaitable<Response> answer(const Request& request, bool relay);
  asio::awaitable<Response> wait_for_change(const Request& request, Response first);
  asio::awaitable<bool> send(std::shared_ptr<TlsStream> stream, const Response& response,
                             bool keep_alive);
  asio::awaitable<bool> send_file(std::shared_ptr<TlsStream> stream, const FilePart& part);
  bool admit(const std::string& address);
  void leave(const std::string& address);

  ServerOptions options;
  App& app;
  Signals& signals;
  ServerFigures figures;
  std::atomic<uint64_t> body_memory{0};
  SslContext context;
  std::string host;
  uint16_t port = 0;
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::thread_pool pool;
  RelayDesk relays{figures};
  std::vector<std::thread> threads;
  std::mutex mutex;  ///< guards what follows
  std::vector<std::weak_ptr<TlsStream>> streams;
  std::unordered_map<std::string, size_t> by_address;
  std::unordered_map<std::string, size_t> waits;  ///< of each caller
};

bool Server::State::admit(const std::string& address) {
  const std::lock_guard lock(mutex);
  size_t& count = by_address[address];
  if (figures.connections_now >= options.connections || count >= options.connections_per_address) {
    ++figures.connections_refused;
    if (count == 0) by_address.erase(address);
    return false;
  }
  ++count;
  ++figures.connections_now;
  ++figures.connections_all;
  return true;
}

void Server::State::leave(const std::string& address) {
  const std::lock_guard lock(mutex);
  --figures.connections_now;
  const auto found = by_address.find(address);
  if (found != by_address.end() && --found->second == 0) by_address.erase(found);
}

asio::awaitable<void> Server::State::accept() {
  asio::steady_timer pause(io);
  for (;;) {
    auto [error, socket] =
        co_await acceptor.async_accept(asio::make_strand(io), asio::as_tuple(asio::use_awaitable));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // out of descriptors: some will be closed
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    auto stream = std::make_shared<TlsStream>(std::move(socket), context.get());
    if (!admit(network_of(stream->address()))) continue;
    {
      const std::lock_guard lock(mutex);
      streams.push_back(stream);
    }
    asio::co_spawn(stream->executor(), session(stream), asio::detached);
  }
}

/// Ends connections whose time is over, once a second.
asio::awaitable<void> Server::State::sweep() {
  asio::steady_timer timer(io);
  for (;;) {
    timer.expires_after(seconds(1));
    const auto [error] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    if (error) co_return;
    const auto now = Clock::now();
    const std::lock_guard lock(mutex);
    std::erase_if(streams, [&](const std::weak_ptr<TlsStream>& weak) {
      const auto stream = weak.lock();
      if (stream != nullptr && stream->expired(now)) TlsStream::expire(stream);
      return stream == nullptr;
    });
  }
}

asio::awaitable<void> Server::State::session(std::shared_ptr<TlsStream> stream) {
  // Whatever a handler or an allocation may throw ends this connection and no other.
  try {
    co_await serve(stream);
  } catch (const std::exception&) {
    ++figures.failures_5xx;
    stream->close();
  }
  leave(network_of(stream->address()));
}

/// Why a body is not read, if it is long.
asio::awaitable<std::optional<Response>> Server::State::admit_body(const RequestReader& reader,
                                                                   std::string address,
                                                                   Share& share) {
  const uint64_t bytes = reader.body_bytes();
  if (bytes <= kShortBody) co_return std::nullopt;
  Request request = reader.request();
  request.address = std::move(address);
  auto work = [](App& hub, const Request& what) -> asio::awaitable<bool> {
    co_return hub.knows(what);
  };
  const bool known = co_await asio::co_spawn(pool, work(app, request), asio::use_awaitable);
  if (!known) {
    co_return refusal(401, "unauthorized", "so long a body needs a device's or member's token");
  }
  if (!share.take(bytes, options.body_memory)) co_return no_memory();
  co_return std::nullopt;
}

/// Answers a request whose body is not read.
asio::awaitable<void> Server::State::refuse(std::shared_ptr<TlsStream> stream,
                                            const Response& refused) {
  ++figures.failures_4xx;
  co_await send(stream, refused, false);
  co_await stream->finish();
  // A connection that is closed with bytes unread is reset, and the answer lost with it.
  stream->set_deadline(kDrainTime);
  std::string rest;
  for (size_t drained = 0; drained < kDrainBytes;) {
    rest.clear();
    const int count = co_await stream->read(rest);
    if (count <= 0) break;
    drained += static_cast<size_t>(count);
  }
}

asio::awaitable<bool> Server::State::read_request(std::shared_ptr<TlsStream> stream,
                                                  std::string& held, RequestReader& reader,
                                                  Share& share) {
  for (;;) {
    size_t used = 0;
    auto state = reader.feed(held, used);
    held.erase(0, used);
    if (state == RequestReader::State::kHeader &&
        !reader.limit_body(app.body_limit(reader.request()))) {
      state = RequestReader::State::kBad;
    }
    if (state == RequestReader::State::kDone) co_return true;
    if (state == RequestReader::State::kBad) {
      const int status = reader.status();
      const Response bad =
          refusal(status, "invalid",
                  status == 400   ? "this is no request of HTTP/1.1"
                  : status == 411 ? "a body's length has to be announced (Content-Length)"
                                  : "the header or the body is too long");
      co_await refuse(stream, bad);
      co_return false;
    }
    if (state == RequestReader::State::kHeader) {
      stream->set_deadline(kBodyTime);
      const auto refused = co_await admit_body(reader, network_of(stream->address()), share);
      if (refused.has_value()) {
        co_await refuse(stream, *refused);
        co_return false;
      }
      if (reader.expects_continue()) {
        const bool written = co_await stream->write("HTTP/1.1 100 Continue\r\n\r\n");
        if (!written) co_return false;
      }
      continue;
    }
    const int count = co_await stream->read(held);
    if (count <= 0) co_return false;
  }
}

asio::awaitable<void> Server::State::serve(std::shared_ptr<TlsStream> stream) {
  const bool safe = co_await stream->handshake();
  if (!safe) co_return;
  std::string held;
  bool welcome = false;  // it was answered with something else than a refusal
  for (;;) {
    if (held.empty()) {
      held.shrink_to_fit();
      stream->set_deadline(welcome ? kIdle : kStrangerIdle);
      const int count = co_await stream->read(held);
      if (count <= 0) break;
    }
    stream->set_deadline(kHeaderTime);
    bool keep_alive = false;
    {
      Share share(body_memory);
      RequestReader reader;
      const bool complete = co_await read_request(stream, held, reader, share);
      if (!complete) break;
      Request request = reader.take();
      request.address = network_of(stream->address());
      keep_alive = request.keep_alive;
      const bool relay = request.upgrade == "tandem-relay";
      stream->set_deadline(seconds(kMaxWait) + kWriteTime);
      ++figures.requests;
      Response response = co_await answer(request, relay);
      if (!share.take(response.body.size(), options.body_memory)) response = no_memory();
      welcome = welcome || response.status < 400;
      if (response.status >= 500) {
        ++figures.failures_5xx;
      } else if (response.status >= 400) {
        ++figures.failures_4xx;
      }
      if (relay && response.status == 101) {
        co_await relays.serve(response.body, response.caller, stream, std::move(held));
        co_return;  // the other end's coroutine may still write here
      }
      keep_alive = keep_alive && !response.close;
      const bool sent = co_await send(stream, response, keep_alive);
      if (!sent) break;
    }
    if (!keep_alive) break;
  }
  co_await stream->finish();
  stream->close();
}

asio::awaitable<Response> Server::State::answer(const Request& request, bool relay) {
  const auto begin = Clock::now();
  Response response;
  if (!relay && app.is_quick(request)) {
    response = app.handle(request);
  } else {
    auto work = [](App& hub, const Request& what, bool upgrade) -> asio::awaitable<Response> {
      co_return upgrade ? hub.relay(what) : hub.handle(what);
    };
    response = co_await asio::co_spawn(pool, work(app, request, relay), asio::use_awaitable);
  }
  figures.request_us += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
  if (response.status == 204 && !response.subjects.empty() &&
      query_number(request, "wait", 0, kMaxWait) > 0) {
    response = co_await wait_for_change(request, std::move(response));
  }
  co_return response;
}

asio::awaitable<Response> Server::State::wait_for_change(const Request& request, Response first) {
  const auto deadline = Clock::now() + seconds(query_number(request, "wait", 0, kMaxWait));
  const std::string caller = first.caller.empty() ? request.address : first.caller;
  bool too_often = false;
  {
    const std::lock_guard lock(mutex);
    too_often = waits[caller] >= options.waits_per_caller;
    if (!too_often) ++waits[caller];
  }
  if (too_often) co_return too_many("too many requests of one device wait at a time", 5);
  const auto executor = co_await asio::this_coro::executor;
  auto waiter = std::make_shared<Signals::Waiter>(executor);
  Response response;
  {
    const Signals::Registration registration(signals, first.subjects, waiter);
    for (;;) {
      waiter->woken = false;
      auto work = [](App& hub, const Request& what) -> asio::awaitable<Response> {
        co_return hub.handle(what);
      };
      response = co_await asio::co_spawn(pool, work(app, request), asio::use_awaitable);
      if (response.status != 204 || Clock::now() >= deadline) break;
      co_await Signals::sleep(waiter, deadline);
    }
  }
  const std::lock_guard lock(mutex);
  if (--waits[caller] == 0) waits.erase(caller);
  co_return response;
}

asio::awaitable<bool> Server::State::send(std::shared_ptr<TlsStream> stream,
                                          const Response& response, bool keep_alive) {
  stream->set_deadline(kWriteTime);
  std::string bytes = header_of(response, keep_alive);
  if (!response.file && response.status != 204 && response.status != 304) bytes += response.body;
  const bool written = co_await stream->write(bytes);
  if (!written || !response.file) co_return written;
  const bool sent = co_await send_file(stream, *response.file);
  co_return sent;
}

asio::awaitable<bool> Server::State::send_file(std::shared_ptr<TlsStream> stream,
                                               const FilePart& part) {
  std::string piece;
  for (uint64_t done = 0; done < part.length;) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(part.length - done, kFilePiece)));
    const ssize_t count = ::pread(*part.descriptor, piece.data(), piece.size(),
                                  static_cast<off_t>(part.offset + done));
    if (count <= 0) co_return false;  // shorter than when the header was sent
    stream->set_deadline(kWriteTime);
    const bool written =
        co_await stream->write(std::string_view(piece).substr(0, static_cast<size_t>(count)));
    if (!written) co_return false;
    done += static_cast<uint64_t>(count);
  }
  co_return true;
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options, App& app,
                                              Signals& signals) {
  auto state = std::make_unique<State>(options, app, signals);
  TANDEM_ASSIGN(state->context, make_server_context(options.certificate_pem, options.key_pem));
  TANDEM_ASSIGN(const wire::Address address, wire::parse_address(options.listen));
  boost::system::error_code error;
  tcp::resolver resolver(state->io);
  const auto found =
      resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return Error{ErrorKind::kNotFound, options.listen + ": unknown host: " + error.message()};
  }
  const tcp::endpoint endpoint = *found.begin();
  state->acceptor.open(endpoint.protocol(), error);
  if (!error) state->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) state->acceptor.bind(endpoint, error);
  if (!error) state->acceptor.listen(1024, error);
  if (error) return Error{ErrorKind::kIo, options.listen + ": can't listen: " + error.message()};
  state->host = state->acceptor.local_endpoint().address().to_string();
  state->port = state->acceptor.local_endpoint().port();
  State& running = *state;
  asio::co_spawn(asio::make_strand(state->io), state->accept(), asio::detached);
  asio::co_spawn(asio::make_strand(state->io), state->sweep(), asio::detached);
  for (unsigned i = 0; i < options.io_threads; ++i) {
    state->threads.emplace_back([&running] { running.io.run(); });
  }
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Server::~Server() {
  state_->io.stop();
  for (auto& thread : state_->threads) thread.join();
  state_->pool.join();
}

const std::string& Server::host() const {
  return state_->host;
}
uint16_t Server::port() const {
  return state_->port;
}
const ServerFigures& Server::figures() const {
  return state_->figures;
}

}  // namespace tandem::hub
