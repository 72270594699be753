#include "model/state_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "arithmetic/format.h"
#include "base/bytes.h"

namespace tandem::model {
namespace {

constexpr std::string_view kMagic = "TDSTATE1";
constexpr uint32_t kMaxNote = uint32_t{16} << 20;

Digest tokens_hash(std::span<const uint32_t> tokens) {
  return sha256(std::as_bytes(tokens));
}

Digest read_digest(ByteReader& reader) {
  Digest digest{};
  const auto bytes = reader.take(digest.size());
  if (bytes.size() == digest.size()) std::memcpy(digest.data(), bytes.data(), bytes.size());
  return digest;
}

void append(ByteWriter& writer, const Digest& digest) {
  writer.append(std::as_bytes(std::span(digest)));
}

}  // namespace

std::vector<std::byte> StateFile::serialize() const {
  ByteWriter writer;
  writer.append(std::as_bytes(std::span(kMagic)));
  writer.write(arithmetic::kContractVersion);
  append(writer, identity.model);
  writer.write(identity.first_layer);
  writer.write(identity.last_layer);
  writer.write(identity.weight_bits);
  writer.write(static_cast<uint32_t>(tokens.size()));
  append(writer, tokens_hash(tokens));
  writer.append(std::as_bytes(std::span(tokens)));
  writer.text(note);
  writer.write(static_cast<uint64_t>(state.size()));
  writer.append(state);
  append(writer, sha256(writer.bytes()));
  return writer.release();
}

Result<StateFile> StateFile::parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.take(kMagic.size());
  if (!reader.ok() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return invalid("not the state of a conversation, or one of another version");
  }
  const auto contract = reader.read<uint32_t>();
  if (reader.ok() && contract != arithmetic::kContractVersion) {
    return unsupported("the state is of arithmetic " + std::to_string(contract) +
                       ", this program computes " + std::to_string(arithmetic::kContractVersion));
  }
  StateFile file;
  file.identity.model = read_digest(reader);
  file.identity.first_layer = reader.read<uint32_t>();
  file.identity.last_layer = reader.read<uint32_t>();
  file.identity.weight_bits = reader.read<uint8_t>();
  const auto count = reader.read<uint32_t>();
  const Digest hash = read_digest(reader);
  const auto tokens = reader.take(uint64_t{count} * sizeof(uint32_t));
  file.note = reader.text(kMaxNote);
  const auto length = reader.read<uint64_t>();
  const auto state = reader.take(length);
  const size_t hashed = bytes.size() - reader.remaining();
  const Digest whole = read_digest(reader);
  if (!reader.finished()) {
    return invalid("the state of a conversation is cut short, or has bytes left over");
  }
  if (sha256(bytes.first(hashed)) != whole) {
    return invalid("the state of a conversation is damaged: its SHA-256 is another one");
  }
  if (count > arithmetic::kMaxPositions) {
    return invalid("a state of " + std::to_string(count) + " tokens, at most " +
                   std::to_string(arithmetic::kMaxPositions) + " are possible");
  }
  file.tokens.resize(count);
  if (count != 0) std::memcpy(file.tokens.data(), tokens.data(), tokens.size());
  if (tokens_hash(file.tokens) != hash) {
    return invalid("the state's tokens are not those that it names");
  }
  file.state.assign(state.begin(), state.end());
  return file;
}

Status StateFile::write(const std::filesystem::path& path) const {
  const std::vector<std::byte> bytes = serialize();
  std::filesystem::path next = path;
  next += ".new";
  std::ofstream file(next, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code code;
  if (!file.fail()) std::filesystem::rename(next, path, code);
  if (file.fail() || code) {
    std::error_code ignored;
    std::filesystem::remove(next, ignored);
    return Error{ErrorKind::kIo, path.string() + ": can't write the conversation's state" +
                                     (code ? ": " + code.message() : "")};
  }
  return {};
}

Result<StateFile> StateFile::read(const std::filesystem::path& path, uint64_t limit) {
  std::error_code code;
  const uint64_t size = std::filesystem::file_size(path, code);
  if (code) {
    const bool missing = code == std::errc::no_such_file_or_directory;
    return Error{missing ? ErrorKind::kNotFound : ErrorKind::kIo,
                 path.string() + ": " + code.message()};
  }
  if (size > limit) {
    return invalid(path.string() + ": " + std::to_string(size) +
                   " bytes, more than a conversation's state may have (" + std::to_string(limit) +
                   ")");
  }
  std::vector<std::byte> bytes(size);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (file.fail() || static_cast<uint64_t>(file.gcount()) != size) {
    return Error{ErrorKind::kIo, path.string() + ": can't be read"};
  }
  auto parsed = parse(bytes);
  if (!parsed.ok()) return parsed.error().in(path.string());
  return parsed;
}

}  // namespace tandem::model
