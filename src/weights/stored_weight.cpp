#include "weights/stored_weight.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "weights/printable.h"

namespace tandem::weights {
namespace {

// Below this a thread costs more than it saves.
constexpr uint64_t kBytesPerThread = uint64_t{4} << 20;
constexpr uint64_t kMostThreads = 16;

Status check(const StoredWeight& weight, const FilePiece& piece) {
  if (const Status status = piece.file->check_unchanged(); !status.ok()) {
    return Error{status.error().kind,
                 status.error().message + " (tensor " + printable(weight.info.name) + ")"};
  }
  return {};
}

/// The one piece as it lies in its mapping.
TensorData borrow(const StoredWeight& weight, const FilePiece& piece) {
  piece.file->will_need(piece.offset, piece.bytes);
  const auto bytes = piece.file->bytes().subspan(piece.offset, piece.bytes);
  std::shared_ptr<const void> owner(
      bytes.data(), [piece](const void*) { piece.file->release(piece.offset, piece.bytes); });
  auto release = [piece](uint64_t offset, uint64_t length) {
    if (offset < piece.bytes) {
      piece.file->release(piece.offset + offset, std::min(length, piece.bytes - offset));
    }
  };
  return TensorData{weight.info, bytes, std::move(owner), std::move(release)};
}

void make_rows(const RowMaker& make, const TensorInfo& info, std::span<std::byte> out) {
  const uint64_t rows = row_count(info);
  const uint64_t width = row_bytes(info);
  const uint64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const uint64_t wanted =
      std::clamp<uint64_t>(out.size() / kBytesPerThread, 1, std::min(cores, kMostThreads));
  const uint64_t share = (rows + wanted - 1) / wanted;
  std::vector<std::thread> helpers;
  uint64_t begin = 0;
  for (; begin + share < rows; begin += share) {
    const auto part = out.subspan(begin * width, share * width);
    try {
      helpers.emplace_back([&make, begin, share, part] { make(begin, share, part); });
    } catch (const std::system_error&) {
      make(begin, share, part);  // no more threads: the same work here
    }
  }
  make(begin, rows - begin, out.subspan(begin * width));
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

Result<TensorData> read_weight(const StoredWeight& weight) {
  for (const FilePiece& piece : weight.pieces) TANDEM_TRY(check(weight, piece));
  if (!weight.convert) return borrow(weight, weight.pieces.front());
  std::vector<std::span<const std::byte>> pieces;
  for (const FilePiece& piece : weight.pieces) {
    piece.file->will_need(piece.offset, piece.bytes);
    pieces.push_back(piece.file->bytes().subspan(piece.offset, piece.bytes));
  }
  auto make = weight.convert(pieces);
  if (!make.ok()) {
    return make.error().in(weight.pieces.front().file->identity().path + ": tensor " +
                           printable(weight.info.name));
  }
  const uint64_t bytes = weight.info.bytes();
  const std::shared_ptr<std::byte[]> buffer(new (std::nothrow) std::byte[bytes]);
  if (buffer == nullptr) {
    return Error{ErrorKind::kMemory, "tensor " + printable(weight.info.name) + ": no memory for " +
                                         std::to_string(bytes) + " bytes"};
  }
  make_rows(*make, weight.info, {buffer.get(), bytes});
  for (const FilePiece& piece : weight.pieces) piece.file->release(piece.offset, piece.bytes);
  return TensorData{weight.info, {buffer.get(), bytes}, buffer};
}

}  // namespace tandem::weights
