// make_checkpoint SHAPE DIR: a checkpoint of a known model's shape with random weights.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint_maker/random_weights.h"
#include "checkpoint_maker/shapes.h"
#include "checkpoint_maker/tokenizer.h"
#include "weights/safetensors.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunk = uint64_t{2} << 20;  ///< elements; 4 MiB

struct Options {
  std::string_view shape;
  fs::path folder;
  uint64_t layers = 0;  ///< 0: as the shape has
  uint64_t seed = 1;
  uint64_t shard_mb = 2000;
};

void print_usage(std::FILE* stream) {
  std::fputs(
      "Usage: make_checkpoint SHAPE DIR [--layers N] [--seed N] [--shard-mb N]\n\n"
      "Writes a checkpoint of a known model's shape with random BF16 weights into DIR, which must\n"
      "be new or empty: config.json, safetensors (in shards of at most 2 GB), a tokenizer that\n"
      "works, and generation settings. Equal seeds give equal files.\n\n"
      "  --layers N  this many layers instead of the model's own number (1 to 1000)\n"
      "  --seed N    another set of weights (default 1)\n"
      "  --shard-mb N  largest shard in megabytes (1 to 1000000, default 2000)\n\n"
      "Shapes:",
      stream);
  for (const Shape& shape : shapes()) std::fprintf(stream, " %s", std::string(shape.name).c_str());
  std::fputs("\n", stream);
}

bool parse_number(std::string_view text, uint64_t& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size();
}

Result<Options> parse_options(const std::vector<std::string_view>& arguments) {
  Options options;
  std::vector<std::string_view> positional;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const bool layers = argument == "--layers";
    const bool shard = argument == "--shard-mb";
    if (layers || shard || argument == "--seed") {
      uint64_t& number = layers ? options.layers : shard ? options.shard_mb : options.seed;
      const uint64_t low = layers || shard ? 1 : 0;
      const uint64_t high = layers ? 1000 : shard ? 1'000'000 : UINT64_MAX;
      const std::string_view value = i + 1 < arguments.size() ? arguments[++i] : "";
      if (!parse_number(value, number) || number < low || number > high) {
        return invalid(std::string(argument) + ": expected a number from " + std::to_string(low) +
                       " to " + std::to_string(high) + ", found \"" + std::string(value) + "\"");
      }
    } else if (argument.starts_with("-")) {
      return invalid("unknown option " + std::string(argument));
    } else {
      positional.push_back(argument);
    }
  }
  if (positional.size() != 2) {
    return invalid("expected SHAPE and DIR, found " + std::to_string(positional.size()) +
                   " arguments");
  }
  options.shape = positional[0];
  options.folder = positional[1];
  return options;
}

Status write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.fail()) return Error{ErrorKind::kIo, path.string() + ": can't write"};
  return {};
}

/// A run of elements of one tensor.
struct Piece {
  const RandomWeights* weights;
  uint64_t first;
  uint64_t count;
};

/// Writes one shard; the next piece is made while the last one is being written.
Status write_shard(const fs::path& path, std::span<const MadeTensor> tensors, uint64_t seed) {
  std::vector<weights::StoredTensor> stored;
  std::vector<RandomWeights> random;
  random.reserve(tensors.size());
  for (const MadeTensor& tensor : tensors) {
    stored.push_back(
        {tensor.info.name, weights::stored_type(tensor.info.dtype), tensor.info.shape});
    random.emplace_back(seed, tensor.info.name, tensor.values);
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t count = tensors[i].info.elements();
    for (uint64_t first = 0; first < count; first += kChunk) {
      pieces.push_back({&random[i], first, std::min(kChunk, count - first)});
    }
  }
  TANDEM_ASSIGN(auto writer, weights::SafetensorsWriter::create(path, stored, {{"format", "pt"}}));
  std::vector<uint16_t> buffers[2] = {std::vector<uint16_t>(kChunk), std::vector<uint16_t>(kChunk)};
  const auto make = [&](size_t index) {
    const Piece& piece = pieces[index];
    piece.weights->fill(piece.first, std::span(buffers[index % 2]).first(piece.count));
  };
  make(0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::future<void> next;  // waits for its task when it goes, also on an error
    if (i + 1 < pieces.size()) next = std::async(std::launch::async, make, i + 1);
    TANDEM_TRY(writer->write(
        std::as_bytes(std::span<const uint16_t>(buffers[i % 2]).first(pieces[i].count))));
  }
  return writer->finish();
}

/// Consecutive tensors a shard, none over `limit` bytes unless one tensor alone is.
std::vector<std::span<const MadeTensor>> split(const std::vector<MadeTensor>& tensors,
                                               uint64_t limit) {
  std::vector<std::span<const MadeTensor>> shards;
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t size = tensors[i].info.bytes();
    if (i > begin && bytes + size > limit) {
      shards.push_back(std::span(tensors).subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += size;
  }
  shards.push_back(std::span(tensors).subspan(begin));
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

Status write_weights(const Options& options, const std::vector<MadeTensor>& tensors) {
  const fs::path& folder = options.folder;
  const auto shards = split(tensors, options.shard_mb * 1'000'000);
  if (shards.size() == 1) return write_shard(folder / "model.safetensors", shards[0], options.seed);
  uint64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    for (const MadeTensor& tensor : shards[i]) {
      map[tensor.info.name] = name;
      total += tensor.info.bytes();
    }
    TANDEM_TRY(write_shard(folder / name, shards[i], options.seed));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

Status make_checkpoint(const Options& options) {
  const Shape* known = find_shape(options.shape);
  if (known == nullptr) {
    std::string names;
    for (const Shape& shape : shapes()) names += " " + std::string(shape.name);
    return invalid("expected one of the shapes" + names + ", found \"" +
                   std::string(options.shape) + "\"");
  }
  Shape shape = *known;
  if (options.layers != 0) shape.layers = options.layers;
  std::error_code code;
  fs::create_directories(options.folder, code);
  const bool empty = !code && fs::is_empty(options.folder, code);
  if (code) return Error{ErrorKind::kIo, options.folder.string() + ": " + code.message()};
  if (!empty) return invalid(options.folder.string() + ": expected a new or empty folder");

  const auto list = tensors(shape);
  uint64_t bytes = 0;
  for (const MadeTensor& tensor : list) bytes += tensor.info.bytes();
  const auto start = std::chrono::steady_clock::now();
  TANDEM_TRY(write_weights(options, list));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  TANDEM_TRY(write_text(options.folder / "tokenizer.json", tokenizer_json(shape).dump() + "\n"));
  TANDEM_TRY(write_text(options.folder / "tokenizer_config.json",
                        tokenizer_config_json(shape).dump(2) + "\n"));
  TANDEM_TRY(write_text(options.folder / "generation_config.json",
                        generation_config_json(shape).dump(2) + "\n"));
  // Last, because a folder without it is no model: an interrupted run can't be mistaken for one.
  TANDEM_TRY(write_text(options.folder / "config.json", config_json(shape).dump(2) + "\n"));
  std::printf("%s: %s with %llu layers, %.1f MB of weights in %.1f s\n", options.folder.c_str(),
              std::string(shape.name).c_str(), static_cast<unsigned long long>(shape.layers),
              static_cast<double>(bytes) * 1e-6, seconds.count());
  return {};
}

int run(const std::vector<std::string_view>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    print_usage(stdout);
    return 0;
  }
  const auto options = parse_options(arguments);
  const Status status = options.ok() ? make_checkpoint(*options) : Status(options.error());
  if (status.ok()) return 0;
  std::fprintf(stderr, "make_checkpoint: %s\n", status.error().message.c_str());
  if (!options.ok()) print_usage(stderr);
  return options.ok() ? 1 : 2;
}

}  // namespace
}  // namespace tandem::tools

int main(int argc, char** argv) {
  try {
    return tandem::tools::run({argv + 1, argv + argc});
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "make_checkpoint: %s\n", exception.what());
    return 1;
  }
}
