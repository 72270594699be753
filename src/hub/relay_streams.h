// Streams to other devices of a room through the hub's relay, for those that can't be dialled.
//
// One device asks the other by a message of the room ("relay", with the stream's name), and both
// open their end at the hub. What comes of it is a socket like any other: a thread carries its
// bytes to the hub and back, 64 KiB of each direction at most, so that a slow reader slows the
// sender. The hub sees these bytes; wire::Connection with a TLS channel seals them.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "hub/client.h"
#include "wire/tcp.h"

namespace tandem::hub {

/// Any thread.
class RelayStreams {
 public:
  /// `connect`: makes clients with this device's token; called from several threads. `code`: the
  /// room that both devices are in.
  RelayStreams(std::function<Client()> connect, std::string code);
  /// Ends all streams; an end that is being opened is waited for, 5 s at most.
  ~RelayStreams();
  RelayStreams(const RelayStreams&) = delete;
  RelayStreams& operator=(const RelayStreams&) = delete;

  /// A stream to `device`. Errors: the hub's; kPeer if the device does not come in time; kMemory
  /// (256 streams).
  Result<wire::Socket> call(const std::string& device, std::chrono::milliseconds timeout);
  /// Takes an event of the room: if it is another member's call of this device, opens this end
  /// behind the scenes, gives its socket to `accept` (by another thread) and returns true. Calls
  /// beyond 32 at a time are not answered.
  bool answer(const Json& event, const std::function<void(wire::Socket)>& accept);
  /// Streams that are open.
  [[nodiscard]] size_t open() const;

 private:
  struct Stream;
  Result<wire::Socket> carry(Channel channel, std::string early);
  void reap();

  const std::function<Client()> connect_;
  const std::string code_;
  mutable std::mutex mutex_;  ///< guards streams_
  std::list<std::unique_ptr<Stream>> streams_;
  struct Answer;
  std::list<std::unique_ptr<Answer>> answers_;  ///< guarded likewise
};

}  // namespace tandem::hub
