// TCP for frames: addresses, listening, connecting, and a connection that reads and writes whole
// frames without blocking.
//
// Plain non-blocking sockets and poll(), not Boost.Asio: the shortest hop is a thread that waits on
// the socket itself, computes, and writes the next frame, so nothing here may own an event loop.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "wire/frame.h"
#include "wire/tls.h"

namespace tandem::wire {

using Clock = std::chrono::steady_clock;

struct Address {
  std::string host;  ///< a name or a numeric address; IPv6 without brackets
  uint16_t port = 0;

  /// "HOST:PORT", with brackets around an IPv6 address.
  [[nodiscard]] std::string text() const;
};
/// Reads "HOST:PORT" or "[IPV6]:PORT". Error: kInvalid.
Result<Address> parse_address(std::string_view text);

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Connects within `timeout`, trying every address that the name has. The socket is non-blocking,
/// with TCP_NODELAY and keep-alive. `cancel`, once true, ends the wait soon; may be null. Errors:
/// kPeer (names the address), kNotFound (unknown name), kCancelled.
Result<Socket> connect(const Address& address, std::chrono::milliseconds timeout,
                       const std::atomic<bool>* cancel = nullptr);

/// How a stream to a worker is made: its address as the ring knows it, to a socket as connect()
/// gives it, or any other stream socket that does not block. Called from several threads.
using Dialler =
    std::function<Result<Socket>(const std::string& address, std::chrono::milliseconds timeout)>;
/// The dialler of "HOST:PORT". Errors: kInvalid (no such address) and connect()'s.
Result<Socket> dial_tcp(const std::string& address, std::chrono::milliseconds timeout);

class Listener {
 public:
  /// Binds and listens; port 0 lets the system choose. Errors: kIo, kNotFound.
  static Result<Listener> open(const Address& address);
  /// The next client, or nothing if none waits. Error: kIo (out of descriptors: try later).
  Result<std::optional<Socket>> accept();
  /// The address bound, with the port that was chosen.
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] int fd() const { return socket_.fd(); }

 private:
  Socket socket_;
  Address address_;
};

/// Wakes a thread out of poll(). Any thread may call wake().
class Wake {
 public:
  Wake();
  void wake() const;
  /// Takes back all wakes so far.
  void clear() const;
  [[nodiscard]] int fd() const { return socket_.fd(); }

 private:
  Socket socket_;
};

/// One TCP connection that carries frames. Reading is for one thread at a time, sending for any.
class Connection {
 public:
  enum class Step {
    kNothing,  ///< no whole frame yet; poll and call again
    kFrame,    ///< header() and the places hold a frame
    kClosed,   ///< the peer closed between two frames
  };
  /// Where a payload goes: the first header.length bytes of two buffers after each other.
  using Place = std::array<std::span<std::byte>, 2>;
  /// Asked once a header is read and checked. Returns places of header.length bytes in all, which
  /// stay valid until the frame is complete, or an error to refuse the frame.
  using Placer = std::function<Result<Place>(const Header&)>;

  explicit Connection(Socket socket) : socket_(std::move(socket)) {}
  /// A connection whose frames travel over TLS. `channel`'s Tls must outlive it. Until secure(),
  /// read() carries the handshake on; the connecting side begins with secure_until().
  Connection(Socket socket, std::unique_ptr<TlsChannel> channel);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  /// Reads as much of one frame as there is. Errors: kInvalid (not a frame, or refused by
  /// `placer`), kPeer (closed within a frame, reset, damaged on the way).
  Result<Step> read(const Placer& placer);
  /// Whether read() would find something (or the end). For who looks again and again: read() takes
  /// the socket's lock each time, which holds up the frame that comes in.
  [[nodiscard]] bool readable() const;
  [[nodiscard]] const Header& header() const { return header_; }
  /// A placer's answer that puts the payload into payload().
  Place to_payload(const Header& header);
  [[nodiscard]] const std::vector<std::byte>& payload() const { return payload_; }

  /// Writes one frame with one system call: header.length is set to the sizes of `first` and
  /// `second`. What the socket does not take at once is copied and stays pending(), for flush().
  /// Errors: kPeer (closed, or more than kMaxPending bytes pending).
  Status send(Header header, std::span<const std::byte> first = {},
              std::span<const std::byte> second = {});
  /// Acknowledges what was read, and puts off acknowledging what comes next until the following
  /// call (or 40 ms). The system answers a frame on a link that nothing goes back on as soon as it
  /// is read: a whole way through its network code, before the reader has its frame.
  void acknowledge() const;
  [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_acquire); }
  /// Writes what is pending as far as the socket takes it. Error: kPeer.
  Status flush();

  /// Sends, and waits until all of it is with the system. Errors: kPeer.
  Status send_until(Clock::time_point deadline, Header header,
                    std::span<const std::byte> first = {}, std::span<const std::byte> second = {});
  /// Waits for one frame, of which the payload goes to payload() if it has at most `limit` bytes.
  /// Errors: kInvalid, kPeer (closed, or silent until `deadline`).
  Result<Header> receive_until(Clock::time_point deadline, uint32_t limit);

  /// Waits until both sides have proved who they are. Nothing to wait for without a channel.
  /// Errors: kPeer (and why), kInvalid.
  Status secure_until(Clock::time_point deadline);
  /// The channel; null without TLS. Its peer() and code() may be read once frames travel.
  [[nodiscard]] const TlsChannel* channel() const { return channel_.get(); }
  /// The peer's first bytes were a frame without TLS, and read() has failed because of it. Takes
  /// the channel away, so that the peer can be told why not.
  bool drop_channel_for_plain_peer();

  /// Ends both directions; whoever polls the socket wakes up. Any thread.
  void shutdown() const;
  [[nodiscard]] int fd() const { return socket_.fd(); }
  [[nodiscard]] uint64_t bytes_in() const { return bytes_in_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t bytes_out() const { return bytes_out_.load(std::memory_order_relaxed); }
  /// The peer's address for messages, "127.0.0.1:4000"; "a relay" if the socket is a local one.
  [[nodiscard]] std::string peer() const;

  static constexpr size_t kMaxPending = size_t{4} << 20;

 private:
  Result<ssize_t> receive(std::span<std::byte> first, std::span<std::byte> second);
  Result<ssize_t> receive_sealed(std::span<std::byte> first, std::span<std::byte> second);
  [[nodiscard]] Error does_not_read() const;
  Result<ssize_t> receive_plain(std::span<std::byte> first, std::span<std::byte> second);
  /// Takes in one record, if it is there. False: not yet. At the end of the stream `ended` is set.
  Result<bool> take_record(bool& ended);
  Status send_channel();
  Status encrypt(std::span<const std::byte> head, std::span<const std::byte> first,
                 std::span<const std::byte> second);

  Socket socket_;
  std::array<std::byte, kHeaderBytes> head_{};
  size_t have_ = 0;     ///< bytes of head_ and payload read
  bool known_ = false;  ///< the other end has sent a frame
  Header header_;
  Place place_{};
  std::vector<std::byte> payload_;
  std::atomic<uint64_t> bytes_in_{0};
  std::atomic<uint64_t> bytes_out_{0};

  std::unique_ptr<TlsChannel> channel_;  ///< its use is guarded by mutex_
  std::vector<std::byte> record_;        ///< the reader's: a record on its way in
  size_t record_have_ = 0;
  bool plain_peer_ = false;
  std::vector<std::byte> plain_;  ///< the writer's: what goes into the next record

  std::mutex mutex_;  ///< guards queue_, queued_ and writing
  std::vector<std::byte> queue_;
  size_t sent_ = 0;  ///< bytes of queue_ written
  std::atomic<bool> pending_{false};
};

/// Waits until `fd` can be read (or written, if `write`), or `deadline` passes; false then.
bool wait_for(int fd, bool write, Clock::time_point deadline);

/// Milliseconds from now until `deadline` for poll(): rounded up, at least 0.
int poll_timeout(Clock::time_point deadline);

}  // namespace tandem::wire
