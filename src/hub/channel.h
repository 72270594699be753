// A connection to a hub or another web server for one thread, with deadlines: TLS, or in the clear
// where that was asked for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/link.h"

namespace tandem::hub {

using Clock = std::chrono::steady_clock;

/// Which certificate is taken for the hub's.
enum class Trust : uint8_t {
  kNamed,  ///< the address's fingerprint; without one, what the system's authorities vouch for
  kAny,    ///< whichever it shows: for this machine only, see Channel::fingerprint()
};

struct ChannelOptions {
  Trust trust = Trust::kNamed;
  bool encrypted = true;         ///< false: plain TCP
  bool older_tls = false;        ///< TLS 1.2 will do, which a hub never speaks
  std::string what = "the hub";  ///< what messages call the other end, before its address
  const std::atomic<bool>* cancel = nullptr;  ///< true: waiting ends with kCancelled
};

class Channel {
 public:
  /// Connects and shakes hands. Errors: kNotFound, kPeer (names the hub; for a wrong certificate
  /// both fingerprints).
  static Result<Channel> open(const HubAddress& hub, Trust trust, Clock::time_point deadline) {
    return open(hub, ChannelOptions{.trust = trust}, deadline);
  }
  static Result<Channel> open(const HubAddress& server, const ChannelOptions& options,
                              Clock::time_point deadline);
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Writes all of it. Error: kPeer.
  Status write(std::string_view bytes, Clock::time_point deadline);
  /// Waits for at least a byte; 0 at the end. Error: kPeer.
  Result<size_t> read(std::span<char> bytes, Clock::time_point deadline);
  /// Says that no more is written; what the other end still has to say can be read.
  void finish();
  /// SHA-256 of the certificate that the other end showed, 64 hexadecimal digits; empty without
  /// TLS.
  [[nodiscard]] const std::string& fingerprint() const;
  /// For poll(): there may be bytes to read even if it is not readable, see read().
  [[nodiscard]] int fd() const;

 private:
  struct State;
  explicit Channel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::hub
