// The safetensors format, read through a mapping and written as a stream.
//
//   file   = length header data
//   length = unsigned 64-bit little-endian size of header in bytes, 2 to 100,000,000
//   header = JSON object, spaces allowed after it:
//            { "__metadata__"?: { string: string … },
//              name: { "dtype": string, "shape": [n …], "data_offsets": [begin, end] } … }
//   data   = the tensors' bytes, little-endian and row-major; begin and end count from its start;
//            together the tensors cover it without gap or overlap
//
// Source: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/source.h"

namespace tandem::weights {

/// Longest header that is read, in bytes; the reference implementation's limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
/// Most tensors of one file or checkpoint.
inline constexpr uint64_t kMaxTensors = 100'000;
/// Longest tensor name in bytes.
inline constexpr uint64_t kMaxTensorName = 512;
/// Most dimensions that a weight may have, and that a file may list.
inline constexpr size_t kMaxWeightDims = 4;
inline constexpr size_t kMaxStoredDims = 8;

/// Every element type of the format. Only F32, F16 and BF16 can be weights.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64,
};
/// As the format spells it: "BOOL", "F8_E4M3", "BF16", …
std::string_view name(StoredType type);
/// Bytes of one element: 1, 2, 4 or 8.
uint64_t size_of(StoredType type);
/// The weight type, or nothing if weights can't have this type.
std::optional<DType> weight_type(StoredType type);
/// Of F32, F16 and BF16; the format has no others of DType.
StoredType stored_type(DType dtype);

/// Checks a tensor's name: 1 to 512 bytes of UTF-8 without control characters and without what a
/// file's name could not have ('/', '\\', "." and ".."). Error: kInvalid.
Status check_tensor_name(std::string_view name);

/// One tensor as a file lists it.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<uint64_t> shape;  ///< row-major, 0 (a scalar) to 8 dimensions, none of them 0
  uint64_t offset = 0;          ///< of its first byte from the start of the file
  uint64_t bytes = 0;           ///< product of shape times size_of(type), below 2^63
};

/// The tensors of a file, ordered by name. `file` is the file's bytes, or at least those up to the
/// end of the header; `file_size` the size of the whole. Everything that the format demands is
/// checked. Errors: kInvalid, kUnsupported (an element type that the format does not know, or more
/// tensors or dimensions than the limits above); they name the tensor but not the file.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    uint64_t file_size);

/// One open .safetensors file. All members may be called concurrently.
class SafetensorsFile {
 public:
  /// Reads the header. Errors name the file.
  /// `growing`: see MappedFile.
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::filesystem::path& path,
                                                       bool growing = false);

  /// All tensors, of any type, ordered by name.
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const StoredTensor* find(std::string_view tensor) const;
  /// A weight's bytes, borrowed from the mapping; no alignment is promised. The range is read
  /// ahead, and its pages are given back when the last copy of `owner` goes.
  /// Errors: kNotFound, kUnsupported (a type or a number of dimensions that weights can't have),
  /// kInvalid (the file changed since it was opened).
  [[nodiscard]] Result<TensorData> read(std::string_view tensor) const;
  /// The bytes of a tensor of any type, as read() gives them.
  struct Raw {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  [[nodiscard]] Result<Raw> read_raw(const StoredTensor& tensor) const;
  [[nodiscard]] const MappedFile& file() const { return *file_; }
  [[nodiscard]] std::shared_ptr<const MappedFile> shared_file() const { return file_; }

 private:
  SafetensorsFile() = default;

  std::shared_ptr<const MappedFile> file_;
  std::vector<StoredTensor> tensors_;
};

/// Name, type and shape of a weight that a file lists.
/// Error kUnsupported: a type or a number of dimensions that weights can't have.
Result<TensorInfo> weight_info(const StoredTensor& tensor);

/// Writes a .safetensors file whose tensors are known beforehand, without holding their bytes.
/// The file appears under its name only once it is complete. Not thread-safe.
class SafetensorsWriter {
 public:
  /// Starts the file. `tensors` stand in the order in which their bytes will be written; only
  /// name, type and shape matter. Errors: kInvalid (a name or shape that parse_safetensors would
  /// refuse), kIo.
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
      const std::map<std::string, std::string>& metadata = {});

  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  /// Removes what was written unless finish() succeeded.
  ~SafetensorsWriter();

  /// Appends the next bytes; they may end anywhere within a tensor or span several.
  /// Errors: kInvalid (more bytes than the tensors have), kIo.
  [[nodiscard]] Status write(std::span<const std::byte> bytes);
  /// Ends the file and gives it its name. Errors: kInvalid (bytes are missing), kIo.
  [[nodiscard]] Status finish();

 private:
  SafetensorsWriter() = default;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  uint64_t remaining_ = 0;  ///< bytes of tensors not yet written
};

}  // namespace tandem::weights
