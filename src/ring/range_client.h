// Asks another device's worker for ranges of tensors (range_server.h).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "base/hash.h"
#include "base/result.h"
#include "wire/tcp.h"
#include "wire/tls.h"

namespace tandem::ring {

struct RangeClientOptions {
  std::string address;      ///< HOST:PORT, or as the dialler knows it
  wire::Fingerprint pin{};  ///< of the only device that is talked to
  std::shared_ptr<const wire::Tls> tls;
  wire::Dialler dialler;  ///< empty: wire::dial_tcp
  std::chrono::milliseconds connect{4000};
  /// In which a peer has to give kLeastBytes, or all that it still has to.
  std::chrono::milliseconds silence{20000};
};

/// One connection. One thread at a time.
class RangeClient {
 public:
  static constexpr size_t kLeastBytes = 512 << 10;

  /// Connects and says hello. Errors: kPeer (and why: not reached, another device, refused).
  static Result<std::unique_ptr<RangeClient>> dial(const RangeClientOptions& options);
  /// Fills `out` from byte `offset` of a tensor on. Nothing is checked. Errors: kNotFound (it does
  /// not give that, and may give others), kPeer (the connection is of no use any more: closed,
  /// silent, slower than the options allow, or an answer to something else).
  Status read(const Digest& model_hash, const std::string& tensor, uint64_t offset,
              std::span<std::byte> out);

 private:
  RangeClient(std::shared_ptr<const wire::Tls> tls, std::unique_ptr<wire::Connection> connection,
              std::chrono::milliseconds silence)
      : tls_(std::move(tls)), connection_(std::move(connection)), silence_(silence) {}
  Status receive(std::span<std::byte> part);

  std::shared_ptr<const wire::Tls> tls_;  ///< outlives the connection
  std::unique_ptr<wire::Connection> connection_;
  std::chrono::milliseconds silence_;
};

}  // namespace tandem::ring
