// TLS 1.3 between devices of a room, over the ring's own connections.
//
// Every device has a self-signed Ed25519 certificate, and is known by its fingerprint: the SHA-256
// of the certificate. Both sides of a connection show theirs. Then each proves that it knows the
// room's key, in a way that only holds for this very session:
//
//   opening = proof:32 commitment:32        (connecting side)
//   answer  = proof:32 nonce:16             (accepting side)
//   reveal  = nonce:16                      (connecting side; its SHA-256 is the commitment)
//   proof   = HMAC-SHA256(key, role fingerprint:32 fingerprint:32 exporter:32)
//
// with the connecting side's fingerprint first, and the exporter of RFC 8446, 7.5, under the label
// "EXPORTER-tandem-room". Someone in the middle has another session with each side, with other
// exporters, and can make neither proof. Each of the three is a record of its own, and so is every
// frame's end.
//
// A channel turns bytes into bytes and knows no socket. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace tandem::wire {

/// What all devices of a room know: 128 random bits.
using RoomKey = std::array<uint8_t, 16>;
using Fingerprint = Digest;

/// Reads 32 hexadecimal digits, with white space around them. The error does not repeat them.
Result<RoomKey> parse_room_key(std::string_view text);
/// Splits "HOST:PORT#FINGERPRINT" (64 hexadecimal digits). Error: kInvalid.
Result<std::pair<std::string, std::optional<Fingerprint>>> split_pin(std::string_view text);

/// A device's certificate and its private key.
class Identity {
 public:
  /// A new one. Error: kIo (the system gives no randomness).
  static Result<std::shared_ptr<const Identity>> create();
  /// The one in a file, which is made, readable by its owner only, if it is not there. Errors:
  /// kInvalid (something else is in it), kIo.
  static Result<std::shared_ptr<const Identity>> open(const std::string& file);
  /// Of a private key and its certificate, both PEM. Error: kInvalid.
  static Result<std::shared_ptr<const Identity>> of_pem(std::string_view key,
                                                        std::string_view certificate);
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;
  [[nodiscard]] const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  friend class Tls;
  struct Parts;
  Identity(std::unique_ptr<Parts> parts, const Fingerprint& fingerprint);
  static Result<std::shared_ptr<const Identity>> of(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
  Fingerprint fingerprint_;
};

class TlsChannel;

/// What a device brings to all its connections. Any thread may use it.
class Tls {
 public:
  static Result<std::shared_ptr<const Tls>> create(std::shared_ptr<const Identity> identity,
                                                   const RoomKey& key);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  [[nodiscard]] const Fingerprint& fingerprint() const { return identity_->fingerprint(); }

  /// The connecting side of a connection, to the device with this fingerprint, or to any that
  /// proves the key.
  [[nodiscard]] std::unique_ptr<TlsChannel> connecting(std::optional<Fingerprint> pin) const;
  /// The accepting side.
  [[nodiscard]] std::unique_ptr<TlsChannel> accepting() const;

 private:
  friend class TlsChannel;
  struct Context;
  Tls(std::shared_ptr<const Identity> identity, const RoomKey& key,
      std::unique_ptr<Context> context);
  std::shared_ptr<const Identity> identity_;
  RoomKey key_;
  std::unique_ptr<Context> context_;
};

/// One side of one connection. Must not outlive its Tls.
class TlsChannel {
 public:
  static constexpr size_t kRecordHeader = 5;
  /// Of a record's body: 16 KiB and what encryption may add.
  static constexpr size_t kMostRecord = (16u << 10) + 256;
  /// Plain bytes in one record.
  static constexpr size_t kMostPlain = 16u << 10;

  ~TlsChannel();
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  /// Bytes of the body that follows a record's header. Error: kInvalid, not such a header.
  static Result<size_t> body_bytes(std::span<const std::byte, kRecordHeader> header);

  /// Begins, or goes on with, what came in and what that leads to. Call it once before anything
  /// came, then with each record. Errors: kPeer (no room member, another device than expected,
  /// a record that was changed, an end of the session's rules); the channel is of no use then.
  Status receive(std::span<const std::byte> record);
  /// The peer has proved all that it must; plain bytes may be read and written.
  [[nodiscard]] bool open() const { return phase_ == Phase::kOpen; }
  /// The peer has said that nothing follows.
  [[nodiscard]] bool ended() const { return ended_; }
  /// Plain bytes that came, as many as there are, at most out.size(). Errors as receive().
  Result<size_t> read(std::span<std::byte> out);
  /// Encrypts, as one record at least. Only when open(). Error: kPeer.
  Status write(std::span<const std::byte> plain);
  /// Says that nothing follows.
  void end();
  /// What is to be sent. take() forgets it.
  [[nodiscard]] std::span<const std::byte> outgoing() const;
  void take();

  /// Of the peer's certificate; valid when open().
  [[nodiscard]] const Fingerprint& peer() const { return peer_; }
  /// Six digits that are the same on both sides if, and but for one chance in a million only if,
  /// they talk to each other and to nobody in between, even one who knows the room's key. Valid
  /// when open().
  [[nodiscard]] const std::string& code() const { return code_; }

 private:
  friend class Tls;
  enum class Phase : uint8_t { kHandshake, kProof, kReveal, kOpen, kFailed };
  struct Session;
  TlsChannel(const Tls& tls, bool connecting, std::optional<Fingerprint> pin);
  Status step(bool& moved);
  Status handshake(bool& moved);
  Status greet();
  Status check_proof();
  Status check_reveal();
  Result<bool> gather(size_t bytes);
  [[nodiscard]] Digest proof(bool of_connecting) const;
  void make_code();
  Error fail(const std::string& why);

  const Tls& tls_;
  const bool connecting_;
  const std::optional<Fingerprint> pin_;
  std::unique_ptr<Session> session_;
  Phase phase_ = Phase::kHandshake;
  bool ended_ = false;
  std::vector<std::byte> gathered_;
  Fingerprint peer_{};
  std::array<uint8_t, 32> exporter_{};
  std::array<uint8_t, 16> nonce_{};
  std::array<uint8_t, 16> peer_nonce_{};
  Digest commitment_{};
  std::string code_;
};

}  // namespace tandem::wire
