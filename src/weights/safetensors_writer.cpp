#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "weights/printable.h"
#include "weights/safetensors.h"

namespace tandem::weights {

namespace {

Error io_error(const std::filesystem::path& path, const char* action, int code) {
  return {ErrorKind::kIo,
          path.string() + ": can't " + action + ": " + std::generic_category().message(code)};
}

Status write_all(int descriptor, const std::filesystem::path& path,
                 std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error(path, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

/// Length and header for tensors that follow each other. Sets `data_size`.
Result<std::vector<std::byte>> make_header(const std::vector<StoredTensor>& tensors,
                                           const std::map<std::string, std::string>& metadata,
                                           uint64_t& data_size) {
  std::string text;
  data_size = 0;
  try {
    nlohmann::json header = nlohmann::json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    for (const StoredTensor& tensor : tensors) {
      uint64_t bytes = size_of(tensor.type);
      for (const uint64_t extent : tensor.shape) {
        if (__builtin_mul_overflow(bytes, extent, &bytes)) bytes = UINT64_MAX;
      }
      const uint64_t begin = data_size;
      if (__builtin_add_overflow(data_size, bytes, &data_size) || data_size >> 62 != 0) {
        return invalid("tensor " + printable(tensor.name) + ": expected less than 2^62 bytes");
      }
      // A second tensor of one name would replace the first in the object, unseen.
      if (!header
               .emplace(tensor.name, nlohmann::json{{"dtype", name(tensor.type)},
                                                    {"shape", tensor.shape},
                                                    {"data_offsets", {begin, data_size}}})
               .second) {
        return invalid("tensor " + printable(tensor.name) + " stands twice");
      }
    }
    text = header.dump();
  } catch (const std::exception& exception) {
    return invalid(std::string("can't write the header: ") + exception.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data at a multiple of 8 bytes
  const uint64_t length = text.size();
  std::vector<std::byte> bytes(8 + text.size());
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  // The reader's rules are the writer's: nothing is written that would not be read again.
  TANDEM_TRY(parse_safetensors(bytes, bytes.size() + data_size));
  return bytes;
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  static std::atomic<uint64_t> counter{0};
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  auto header = make_header(tensors, metadata, writer->remaining_);
  if (!header.ok()) return header.error().in(path.string());
  writer->path_ = path;
  writer->temporary_ = path;
  writer->temporary_ += '.';
  writer->temporary_ += std::to_string(::getpid());
  writer->temporary_ += '-';
  writer->temporary_ += std::to_string(counter++);
  writer->temporary_ += ".tmp";
  writer->descriptor_ =
      ::open(writer->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (writer->descriptor_ < 0) return io_error(writer->temporary_, "create", errno);
  TANDEM_TRY(write_all(writer->descriptor_, path, *header));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

Status SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > remaining_) {
    return invalid(path_.string() + ": expected at most " + std::to_string(remaining_) +
                   " more bytes of tensors, found " + std::to_string(bytes.size()));
  }
  TANDEM_TRY(write_all(descriptor_, path_, bytes));
  remaining_ -= bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  if (descriptor_ < 0) return invalid(path_.string() + ": already finished");
  if (remaining_ != 0) {
    return invalid(path_.string() + ": expected " + std::to_string(remaining_) +
                   " more bytes of tensors, found the end");
  }
  const int descriptor = std::exchange(descriptor_, -1);
  // close() is the last that can report a write that failed late (a quota, a network folder).
  if (::close(descriptor) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    return io_error(path_, "finish", code);
  }
  return {};
}

}  // namespace tandem::weights
