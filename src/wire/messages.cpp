#include "wire/messages.h"

#include <algorithm>

#include "base/bytes.h"

namespace tandem::wire {
namespace {

constexpr uint32_t kMaxSoftware = 64;
constexpr uint32_t kMaxReason = 2000;
constexpr uint32_t kMaxAddress = 300;
constexpr uint32_t kMaxOrigin = 300;
constexpr uint32_t kMaxConfig = 1u << 20;
constexpr uint32_t kMaxManifest = 16u << 20;
constexpr uint32_t kMaxTensorName = 512;

Error malformed(std::string_view message) {
  return invalid("malformed " + std::string(message) + " message");
}

template <size_t N>
void put(ByteWriter& writer, const std::array<uint8_t, N>& bytes) {
  writer.append(std::as_bytes(std::span(bytes)));
}

template <size_t N>
void get(ByteReader& reader, std::array<uint8_t, N>& bytes) {
  const auto part = reader.take(N);
  for (size_t i = 0; i < part.size(); ++i) bytes[i] = static_cast<uint8_t>(part[i]);
}

void put(ByteWriter& writer, const Spread& spread) {
  for (const uint64_t value : {spread.median, spread.low, spread.high}) writer.write(value);
}

/// False unless the values are in order and none is 0.
bool get(ByteReader& reader, Spread& spread) {
  for (uint64_t* value : {&spread.median, &spread.low, &spread.high}) {
    *value = reader.read<uint64_t>();
  }
  return 0 < spread.low && spread.low <= spread.median && spread.median <= spread.high;
}

std::string_view cut(const std::string& text, size_t limit) {
  return std::string_view(text).substr(0, limit);
}

// Text from a peer is shown to people: control characters must not reach a terminal.
std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return result;
}

bool read_kind(ByteReader& reader, ErrorKind& kind) {
  const auto value = reader.read<uint8_t>();
  if (value > static_cast<uint8_t>(ErrorKind::kCancelled)) return false;
  kind = static_cast<ErrorKind>(value);
  return true;
}

}  // namespace

Bytes Hello::encode() const {
  ByteWriter writer;
  writer.write(protocol);
  writer.write(contract);
  writer.write(static_cast<uint8_t>(role));
  put(writer, key);
  writer.text(cut(software, kMaxSoftware));
  return writer.release();
}

Result<Hello> Hello::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Hello hello;
  hello.protocol = reader.read<uint32_t>();
  hello.contract = reader.read<uint32_t>();
  if (!reader.ok()) return malformed("hello");
  if (hello.protocol != kProtocolVersion) return hello;  // the rest may have any form
  const auto role = reader.read<uint8_t>();
  get(reader, hello.key);
  hello.software = printable(reader.text(kMaxSoftware));
  if (!reader.finished() || role < 1 || role > static_cast<uint8_t>(Role::kSource)) {
    return malformed("hello");
  }
  hello.role = static_cast<Role>(role);
  return hello;
}

Bytes Welcome::encode() const {
  ByteWriter writer;
  writer.write(protocol);
  writer.write(contract);
  writer.write(threads);
  writer.write(memory_limit);
  writer.write(memory_free);
  writer.write(memory_available);
  writer.text(cut(software, kMaxSoftware));
  return writer.release();
}

Result<Welcome> Welcome::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Welcome welcome;
  welcome.protocol = reader.read<uint32_t>();
  welcome.contract = reader.read<uint32_t>();
  if (!reader.ok()) return malformed("welcome");
  if (welcome.protocol != kProtocolVersion) return welcome;
  welcome.threads = reader.read<uint32_t>();
  welcome.memory_limit = reader.read<uint64_t>();
  welcome.memory_free = reader.read<uint64_t>();
  welcome.memory_available = reader.read<uint64_t>();
  welcome.software = printable(reader.text(kMaxSoftware));
  if (!reader.finished()) return malformed("welcome");
  return welcome;
}

Bytes Refusal::encode() const {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(kind));
  writer.text(cut(reason, kMaxReason));
  return writer.release();
}

Result<Refusal> Refusal::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Refusal refusal;
  const bool known = read_kind(reader, refusal.kind);
  refusal.reason = printable(reader.text(kMaxReason));
  if (!reader.finished() || !known) return malformed("refusal");
  return refusal;
}

Bytes Load::encode() const {
  ByteWriter writer;
  put(writer, model_hash);
  writer.write(first_layer);
  writer.write(last_layer);
  writer.write(weight_bits);
  writer.write(kv_bits);
  writer.write(context);
  writer.write(sequences);
  writer.text(config_json);
  writer.write(static_cast<uint32_t>(manifest.size()));
  writer.append(manifest);
  writer.text(cut(origin, kMaxOrigin));
  return writer.release();
}

Result<Load> Load::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Load load;
  get(reader, load.model_hash);
  load.first_layer = reader.read<uint32_t>();
  load.last_layer = reader.read<uint32_t>();
  load.weight_bits = reader.read<uint8_t>();
  load.kv_bits = reader.read<uint8_t>();
  load.context = reader.read<uint32_t>();
  load.sequences = reader.read<uint32_t>();
  load.config_json = reader.text(kMaxConfig);
  const auto length = reader.read<uint32_t>();
  if (length > kMaxManifest) return malformed("load");
  const auto manifest = reader.take(length);
  load.origin = printable(reader.text(kMaxOrigin));
  if (!reader.finished()) return malformed("load");
  load.manifest.assign(manifest.begin(), manifest.end());
  if (load.weight_bits != 8 && load.weight_bits != 4 && load.weight_bits != 16) {
    return invalid("load message asks for weights of " + std::to_string(load.weight_bits) +
                   " bits, expected 16, 8 or 4");
  }
  if (load.kv_bits != 16 && load.kv_bits != 8) {
    return invalid("load message asks for keys and values of " + std::to_string(load.kv_bits) +
                   " bits, expected 16 or 8");
  }
  if (load.sequences < 1 || load.sequences > 64) {
    return invalid("load message asks for " + std::to_string(load.sequences) +
                   " sequences, expected 1 to 64");
  }
  return load;
}

Bytes Progress::encode() const {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(phase));
  writer.write(done);
  writer.write(total);
  return writer.release();
}

Result<Progress> Progress::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Progress progress;
  const auto phase = reader.read<uint8_t>();
  progress.done = reader.read<uint64_t>();
  progress.total = reader.read<uint64_t>();
  if (!reader.finished() || phase > static_cast<uint8_t>(LoadPhase::kLoading)) {
    return malformed("progress");
  }
  progress.phase = static_cast<LoadPhase>(phase);
  return progress;
}

Bytes Ready::encode() const {
  ByteWriter writer;
  writer.write(weight_bytes);
  writer.write(kv_bytes);
  writer.write(streamed);
  writer.write(static_cast<uint8_t>(from));
  return writer.release();
}

Result<Ready> Ready::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Ready ready;
  ready.weight_bytes = reader.read<uint64_t>();
  ready.kv_bytes = reader.read<uint64_t>();
  ready.streamed = reader.read<uint64_t>();
  const auto from = reader.read<uint8_t>();
  if (!reader.finished() || from > static_cast<uint8_t>(LoadedFrom::kFetched)) {
    return malformed("ready");
  }
  ready.from = static_cast<LoadedFrom>(from);
  return ready;
}

Bytes Activate::encode() const {
  ByteWriter writer;
  writer.write(number);
  put(writer, in);
  put(writer, out);
  return writer.release();
}

Result<Activate> Activate::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Activate activate;
  activate.number = reader.read<uint64_t>();
  get(reader, activate.in);
  get(reader, activate.out);
  if (!reader.finished()) return malformed("activate");
  return activate;
}

namespace {

// Messages that name a device to connect to: Dial and TestLink.
template <typename Message>
Bytes encode_way(const Message& message) {
  ByteWriter writer;
  put(writer, message.key);
  put(writer, message.pin);
  writer.text(cut(message.address, kMaxAddress));
  return writer.release();
}

template <typename Message>
Result<Message> decode_way(std::span<const std::byte> bytes, std::string_view name) {
  ByteReader reader(bytes);
  Message message;
  get(reader, message.key);
  get(reader, message.pin);
  message.address = reader.text(kMaxAddress);
  if (!reader.finished()) return malformed(name);
  return message;
}

}  // namespace

Bytes Dial::encode() const {
  return encode_way(*this);
}

Result<Dial> Dial::decode(std::span<const std::byte> bytes) {
  return decode_way<Dial>(bytes, "dial");
}

Bytes Trouble::encode() const {
  ByteWriter writer;
  writer.write(activation);
  writer.write(static_cast<uint8_t>(blame));
  writer.write(static_cast<uint8_t>(kind));
  writer.write(static_cast<uint8_t>(link_lost ? 1 : 0));
  writer.text(cut(text, kMaxReason));
  return writer.release();
}

Result<Trouble> Trouble::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Trouble trouble;
  trouble.activation = reader.read<uint64_t>();
  const auto blame = reader.read<uint8_t>();
  const bool known = read_kind(reader, trouble.kind);
  const auto lost = reader.read<uint8_t>();
  trouble.text = printable(reader.text(kMaxReason));
  if (!reader.finished() || !known || lost > 1 || blame > static_cast<uint8_t>(Blame::kRequest)) {
    return malformed("trouble");
  }
  trouble.blame = static_cast<Blame>(blame);
  trouble.link_lost = lost == 1;
  return trouble;
}

Bytes Pong::encode() const {
  ByteWriter writer;
  for (const uint64_t value : {passes, received, sent, bytes_in, bytes_out, stage_passes, stage_us,
                               single_passes, single_us})
    writer.write(value);
  for (const uint32_t value : {pass_ms, allowed_ms}) writer.write(value);
  writer.write(busy);
  return writer.release();
}

Result<Pong> Pong::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Pong pong;
  for (uint64_t* value :
       {&pong.passes, &pong.received, &pong.sent, &pong.bytes_in, &pong.bytes_out,
        &pong.stage_passes, &pong.stage_us, &pong.single_passes, &pong.single_us}) {
    *value = reader.read<uint64_t>();
  }
  for (uint32_t* value : {&pong.pass_ms, &pong.allowed_ms}) {
    *value = reader.read<uint32_t>();
  }
  pong.busy = reader.read<uint8_t>();
  if (!reader.finished() || pong.busy > 1) return malformed("pong");
  return pong;
}

Bytes Measure::encode() const {
  ByteWriter writer;
  for (const uint32_t value : {warm_up, repeats, budget_ms, position}) writer.write(value);
  writer.write(static_cast<uint8_t>(widths.size()));
  for (const uint32_t width : widths) writer.write(width);
  return writer.release();
}

Result<Measure> Measure::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Measure measure;
  for (uint32_t* value :
       {&measure.warm_up, &measure.repeats, &measure.budget_ms, &measure.position}) {
    *value = reader.read<uint32_t>();
  }
  const auto count = reader.read<uint8_t>();
  if (!reader.ok() || count < 1 || count > kMostWidths) return malformed("measure");
  for (uint8_t i = 0; i < count; ++i) {
    measure.widths.push_back(reader.read<uint32_t>());
    if (measure.widths.back() < 1 || measure.widths.back() > kMaxFrameTokens) {
      return malformed("measure");
    }
  }
  if (!reader.finished() || measure.warm_up > 1000 || measure.repeats < 1 ||
      measure.repeats > 1000 || measure.budget_ms < 1 || measure.budget_ms > 60000) {
    return malformed("measure");
  }
  return measure;
}

Bytes Measured::encode() const {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(widths.size()));
  for (const Width& width : widths) {
    writer.write(width.width);
    writer.write(width.runs);
    put(writer, width.nanoseconds);
  }
  return writer.release();
}

Result<Measured> Measured::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Measured measured;
  const auto count = reader.read<uint8_t>();
  if (!reader.ok() || count < 1 || count > Measure::kMostWidths) return malformed("measured");
  for (uint8_t i = 0; i < count; ++i) {
    Width width;
    width.width = reader.read<uint32_t>();
    width.runs = reader.read<uint32_t>();
    if (!get(reader, width.nanoseconds) || width.runs < 1) return malformed("measured");
    measured.widths.push_back(width);
  }
  if (!reader.finished()) return malformed("measured");
  return measured;
}

Bytes TestLink::encode() const {
  return encode_way(*this);
}

Result<TestLink> TestLink::decode(std::span<const std::byte> bytes) {
  return decode_way<TestLink>(bytes, "test-link");
}

Bytes LinkTested::encode() const {
  ByteWriter writer;
  put(writer, rtt_ns);
  put(writer, bytes_per_second);
  return writer.release();
}

Result<LinkTested> LinkTested::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  LinkTested tested;
  const bool good = get(reader, tested.rtt_ns) && get(reader, tested.bytes_per_second);
  if (!good || !reader.finished()) return malformed("link-tested");
  return tested;
}

Bytes Echo::encode() const {
  ByteWriter writer;
  writer.write(answer);
  Bytes bytes = writer.release();
  bytes.resize(bytes.size() + filler);
  return bytes;
}

Result<Echo> Echo::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Echo echo;
  echo.answer = reader.read<uint32_t>();
  echo.filler = static_cast<uint32_t>(reader.remaining());
  const bool answered = echo.answer >= sizeof echo.answer && echo.answer <= kMaxEchoBytes;
  if (!reader.ok() || (echo.answer != 0 && !answered)) return malformed("echo");
  return echo;
}

Bytes NeedRange::encode() const {
  ByteWriter writer;
  put(writer, model_hash);
  writer.write(offset);
  writer.write(length);
  writer.text(tensor);
  return writer.release();
}

Result<NeedRange> NeedRange::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  NeedRange range;
  get(reader, range.model_hash);
  range.offset = reader.read<uint64_t>();
  range.length = reader.read<uint32_t>();
  range.tensor = reader.text(kMaxTensorName);
  if (!reader.finished() || range.tensor.empty() || range.offset >> 61 != 0) {
    return malformed("need-range");
  }
  if (range.length < 1 || range.length > kMaxRangeBytes) {
    return invalid("need-range message asks for " + std::to_string(range.length) +
                   " bytes, expected 1 to " + std::to_string(kMaxRangeBytes));
  }
  return range;
}

Result<std::string_view> decode_tensor_name(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kMaxTensorName) return malformed("need-tensor");
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace tandem::wire
