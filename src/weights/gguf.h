// The GGUF format, versions 2 and 3, read through a mapping.
//
//   file    = "GGUF" version:u32 tensors:u64 pairs:u64 pair*pairs info*tensors padding data
//   pair    = key:string type:u32 value
//   info    = name:string dims:u32 extent:u64*dims type:u32 offset:u64
//   string  = length:u64 bytes
//   value   = a number or boolean of its type, a string, or (type 9) of:u32 count:u64 value*count
//
// little-endian; extents begin with the innermost; offsets count from the start of the data, which
// begins at the first multiple of general.alignment (32 if it is not given) after the infos, and
// are multiples of it.
//
// Source: ggml/docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/source.h"

namespace tandem::weights {

/// Most keys of a file, longest key, most elements of an array, longest string.
inline constexpr uint64_t kMaxGgufPairs = 65536;
inline constexpr uint64_t kMaxGgufKey = 1024;
inline constexpr uint64_t kMaxGgufArray = uint64_t{1} << 24;
inline constexpr uint64_t kMaxGgufString = uint64_t{16} << 20;
inline constexpr size_t kMaxGgufDims = 4;
/// Most files that a model is split into.
inline constexpr uint32_t kMaxGgufParts = 1000;

/// A value of the metadata. Numbers are widened; arrays keep the type of their elements. Arrays of
/// arrays are not kept (no key of a model that is read has one).
using GgufValue = std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string,
                               std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufPair {
  std::string key;
  GgufValue value;
};

/// One tensor as a file lists it.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;  ///< row-major, as everywhere else in Tandem: the innermost last
  uint64_t offset = 0;          ///< of its first byte from the start of the file
  uint64_t bytes = 0;
  uint32_t part = 0;  ///< which file of a split model
};

/// What a file says before its data. Pairs are ordered by key, tensors by name.
struct GgufHeader {
  uint32_t version = 0;
  std::vector<GgufPair> pairs;
  std::vector<GgufTensor> tensors;

  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;

  /// The value of a key, nothing where the key is missing. Errors: kInvalid (another type, a number
  /// outside [low, high]); they name the key.
  [[nodiscard]] Result<std::optional<uint64_t>> integer(std::string_view key, uint64_t low,
                                                        uint64_t high) const;
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> flag(std::string_view key) const;
  /// The fallback where the key is missing.
  [[nodiscard]] Result<std::string> text(std::string_view key,
                                         std::string_view fallback = {}) const;
};

/// Reads a header. `file` is the file's bytes, or those up to the end of the header; `file_size`
/// the size of the whole. Every tensor lies within the file, aligned; none overlaps another.
/// Errors: kInvalid, kUnsupported (a version, a type of tensors that Tandem does not read, more
/// than the limits above); they name the key or tensor but not the file.
Result<GgufHeader> parse_gguf(std::span<const std::byte> file, uint64_t file_size);

/// Whether these are the first bytes of a GGUF file.
bool looks_like_gguf(std::span<const std::byte> file);
/// Whether a path is a regular file that begins so. False if it can't be read.
bool is_gguf(const std::filesystem::path& path);

/// The GGUF models in a folder (not below it), ordered by name: files that end in .gguf, of a split
/// model the first, without image encoders (mmproj-…). What can't be listed is not there.
std::vector<std::filesystem::path> gguf_models(const std::filesystem::path& folder);

/// The files of a model: `path` itself, or, for the name PREFIX-00001-of-0000N.gguf, all N.
/// Errors: kInvalid (another part than the first, more than kMaxGgufParts).
Result<std::vector<std::filesystem::path>> gguf_parts(const std::filesystem::path& path);

}  // namespace tandem::weights
