// A TLS 1.3 connection to a hub for one thread, with deadlines.
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

class Channel {
 public:
  /// Connects and shakes hands. Errors: kNotFound, kPeer (names the hub; for a wrong certificate
  /// both fingerprints).
  /// Once `stop` is set, waiting here and later ends with kCancelled; it must outlive the channel.
  static Result<Channel> open(const HubAddress& hub, Trust trust, Clock::time_point deadline,
                              const std::atomic<bool>* stop = nullptr);
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
  /// SHA-256 of the certificate that the hub showed, 64 hexadecimal digits.
  [[nodiscard]] const std::string& fingerprint() const;
  /// For poll(): there may be bytes to read even if it is not readable, see read().
  [[nodiscard]] int fd() const;

 private:
  struct State;
  explicit Channel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::hub
