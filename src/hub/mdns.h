// Hubs on the local network without a server: multicast DNS (RFC 6762) and service discovery
// (RFC 6763) for one service, _tandem._tcp.local.
//
//   message  = id:16 flags:16 questions:16 answers:16 authorities:16 additions:16 question* record*
//   question = name type:16 class:16
//   record   = name type:16 class:16 ttl:32 length:16 data
//   name     = (length:8 byte*length)* 0:8  |  … 11 offset:14     (all numbers big-endian)
//
// What a hub says there proves nothing: whoever uses it compares the fingerprint with what the
// hub's owner shows.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/link.h"

namespace tandem::hub {

inline constexpr std::string_view kMdnsService = "_tandem._tcp.local";
inline constexpr uint16_t kMdnsPort = 5353;

struct MdnsRecord {
  std::string name;  ///< lower case, without the dot at the end
  uint16_t type = 0;
  std::string data;                ///< as it stands there
  std::string target;              ///< PTR and SRV: the name within, lower case
  uint16_t port = 0;               ///< SRV
  std::vector<std::string> texts;  ///< TXT
};
struct MdnsMessage {
  uint16_t id = 0;
  bool response = false;
  std::vector<MdnsRecord> questions;  ///< name and type only
  std::vector<MdnsRecord> records;
};
/// Any bytes from the network. At most 64 questions and records are read, names of at most 255
/// bytes. Error: kInvalid.
Result<MdnsMessage> parse_mdns(std::string_view bytes);

/// What a hub answers for.
struct MdnsHub {
  std::string instance;  ///< "NAME", of the service and of the machine: letters, digits, '-'
  std::string address;   ///< IPv4 in four bytes
  uint16_t port = 0;
  std::string fingerprint;
};
/// True if a question of the message is for that hub.
bool asks_for(const MdnsMessage& message, const MdnsHub& hub);
/// The answer: PTR, SRV, TXT and A. `id` is that of a legacy question, or 0.
std::string make_mdns_answer(const MdnsHub& hub, uint16_t id);
/// The question for all hubs.
std::string make_mdns_question();
/// The hub that an answer tells of. Error: kNotFound (none, or not all of it).
Result<HubAddress> read_mdns_answer(const MdnsMessage& message);

/// Answers on a thread of its own until it goes.
class MdnsResponder {
 public:
  /// `interface`: the address of the interface to answer on; empty: the system's choice. Error:
  /// kIo.
  static Result<std::unique_ptr<MdnsResponder>> start(MdnsHub hub, const std::string& interface);
  ~MdnsResponder();
  MdnsResponder(const MdnsResponder&) = delete;
  MdnsResponder& operator=(const MdnsResponder&) = delete;

 private:
  struct State;
  explicit MdnsResponder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Hubs that answer within `patience`, on all interfaces, this machine's own included. Error: kIo.
Result<std::vector<HubAddress>> find_hubs(std::chrono::milliseconds patience);

}  // namespace tandem::hub
