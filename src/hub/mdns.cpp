#include "hub/mdns.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/hash.h"

namespace tandem::hub {
namespace {

constexpr uint16_t kA = 1;
constexpr uint16_t kPtr = 12;
constexpr uint16_t kTxt = 16;
constexpr uint16_t kSrv = 33;
constexpr uint16_t kAny = 255;
constexpr uint16_t kInternet = 1;
constexpr uint16_t kTopBit = 0x8000;  // of a class: answer to one, or forget older records
constexpr uint32_t kTtl = 120;
constexpr size_t kMaxName = 255;
constexpr size_t kMaxEntries = 64;

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint16_t number16() {
    if (at_ + 2 > bytes_.size()) {
      ok_ = false;
      return 0;
    }
    const auto value = static_cast<uint16_t>(byte(at_) << 8 | byte(at_ + 1));
    at_ += 2;
    return value;
  }
  /// A name from here on; pointers lead backwards only, so that there is an end.
  std::string name() {
    std::string name;
    size_t at = at_;
    size_t before = at_;  // pointers must lead to before this
    bool jumped = false;
    for (;;) {
      if (at >= bytes_.size()) return fail();
      const unsigned length = byte(at);
      if ((length & 0xc0) == 0xc0) {
        if (at + 2 > bytes_.size()) return fail();
        const size_t target = (length & 0x3f) << 8 | byte(at + 1);
        if (target >= before) return fail();
        if (!jumped) at_ = at + 2;
        jumped = true;
        before = target;
        at = target;
        continue;
      }
      if (length > 63 || at + 1 + length > bytes_.size()) return fail();
      ++at;
      if (length == 0) {
        if (!jumped) at_ = at;
        return name;
      }
      if (!name.empty()) name += '.';
      for (size_t i = 0; i < length; ++i) {
        name += static_cast<char>(std::tolower(byte(at + i)));
      }
      if (name.size() > kMaxName) return fail();
      at += length;
    }
  }
  std::string_view take(size_t count) {
    if (count > bytes_.size() - at_) {
      ok_ = false;
      return {};
    }
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  void skip(size_t count) { (void)take(count); }
  void seek(size_t at) { at_ = at; }
  [[nodiscard]] size_t at() const { return at_; }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  [[nodiscard]] unsigned byte(size_t at) const { return static_cast<unsigned char>(bytes_[at]); }
  std::string fail() {
    ok_ = false;
    return {};
  }
  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

void add16(std::string& bytes, unsigned value) {
  bytes += static_cast<char>(value >> 8 & 255);
  bytes += static_cast<char>(value & 255);
}

std::string name_bytes(std::string_view name) {
  std::string bytes;
  while (!name.empty()) {
    const auto end = std::min(name.find('.'), name.size());
    bytes += static_cast<char>(std::min<size_t>(end, 63));
    bytes += name.substr(0, std::min<size_t>(end, 63));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return bytes + '\0';
}

void add_record(std::string& message, const std::string& name, uint16_t type, bool flush,
                const std::string& data) {
  message += name_bytes(name);
  add16(message, type);
  add16(message, flush ? kInternet | kTopBit : kInternet);
  add16(message, kTtl >> 16);
  add16(message, kTtl & 0xffff);
  add16(message, static_cast<unsigned>(data.size()));
  message += data;
}

std::string service_name(const MdnsHub& hub) {
  return hub.instance + "." + std::string(kMdnsService);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// What a record's data says, by its type; the reader stands at its end afterwards.
void read_data(Reader& reader, std::string_view bytes, MdnsRecord& record, size_t length) {
  const size_t begin = reader.at();
  record.data = reader.take(length);
  const size_t end = reader.at();
  if (!reader.ok()) return;
  if (record.type == kPtr) {
    reader.seek(begin);
    record.target = reader.name();
  } else if (record.type == kSrv) {
    reader.seek(begin);
    reader.skip(4);  // priority and weight
    record.port = reader.number16();
    record.target = reader.name();
  } else if (record.type == kTxt) {
    for (size_t at = begin; at < end;) {
      const size_t size = static_cast<unsigned char>(bytes[at]);
      if (at + 1 + size > end) break;
      record.texts.emplace_back(bytes.substr(at + 1, size));
      at += 1 + size;
    }
  }
  reader.seek(end);
}

}  // namespace

Result<MdnsMessage> parse_mdns(std::string_view bytes) {
  const Error wrong = invalid("not a message of multicast DNS");
  Reader reader(bytes);
  MdnsMessage message;
  message.id = reader.number16();
  message.response = (reader.number16() & kTopBit) != 0;
  const size_t questions = reader.number16();
  size_t records = reader.number16();
  records += reader.number16();
  records += reader.number16();
  if (!reader.ok() || questions > kMaxEntries || records > kMaxEntries) return wrong;
  for (size_t i = 0; i < questions; ++i) {
    MdnsRecord question;
    question.name = reader.name();
    question.type = reader.number16();
    reader.skip(2);
    if (!reader.ok()) return wrong;
    message.questions.push_back(std::move(question));
  }
  for (size_t i = 0; i < records; ++i) {
    MdnsRecord record;
    record.name = reader.name();
    record.type = reader.number16();
    reader.skip(6);  // class, time to live
    const size_t length = reader.number16();
    if (!reader.ok()) return wrong;
    read_data(reader, bytes, record, length);
    if (!reader.ok()) return wrong;
    message.records.push_back(std::move(record));
  }
  return message;
}

bool asks_for(const MdnsMessage& message, const MdnsHub& hub) {
  if (message.response) return false;
  const std::string service = lower(service_name(hub));
  const std::string host = lower(hub.instance + ".local");
  return std::any_of(message.questions.begin(), message.questions.end(),
                     [&](const MdnsRecord& question) {
                       const bool any = question.type == kAny;
                       return (question.name == kMdnsService && (any || question.type == kPtr)) ||
                              (question.name == service &&
                               (any || question.type == kSrv || question.type == kTxt)) ||
                              (question.name == host && (any || question.type == kA));
                     });
}

std::string make_mdns_answer(const MdnsHub& hub, uint16_t id) {
  std::string message;
  add16(message, id);
  add16(message, 0x8400);  // an answer, of whoever knows
  add16(message, 0);
  add16(message, 4);
  add16(message, 0);
  add16(message, 0);
  const std::string service = service_name(hub);
  const std::string host = hub.instance + ".local";
  add_record(message, std::string(kMdnsService), kPtr, false, name_bytes(service));
  std::string location;
  add16(location, 0);
  add16(location, 0);
  add16(location, hub.port);
  add_record(message, service, kSrv, true, location + name_bytes(host));
  const std::string text = "f=" + hub.fingerprint;
  add_record(message, service, kTxt, true, static_cast<char>(text.size()) + text);
  add_record(message, host, kA, true, hub.address);
  return message;
}

std::string make_mdns_question() {
  std::string message;
  for (const unsigned number : {0U, 0U, 1U, 0U, 0U, 0U}) add16(message, number);
  message += name_bytes(kMdnsService);
  add16(message, kPtr);
  add16(message, kInternet | kTopBit);
  return message;
}

Result<HubAddress> read_mdns_answer(const MdnsMessage& message) {
  HubAddress hub;
  bool ours = false;
  bool located = false;
  for (const MdnsRecord& record : message.records) {
    ours = ours || (record.type == kPtr && record.name == kMdnsService);
    if (record.type == kSrv && record.port != 0) {
      hub.port = record.port;
      located = true;
    }
    if (record.type == kA && record.data.size() == 4) {
      std::array<char, INET_ADDRSTRLEN> text{};
      if (::inet_ntop(AF_INET, record.data.data(), text.data(), text.size()) != nullptr) {
        hub.host = text.data();
      }
    }
    for (const std::string& text : record.texts) {
      Digest digest;
      if (text.starts_with("f=") && parse_hex(std::string_view(text).substr(2), digest)) {
        hub.fingerprint = hex(digest);
      }
    }
  }
  if (!message.response || !ours || !located || hub.host.empty()) {
    return Error{ErrorKind::kNotFound, "no hub's answer"};
  }
  return hub;
}

}  // namespace tandem::hub
