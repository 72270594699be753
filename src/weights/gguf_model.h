// A GGUF file as a checkpoint: a config.json that says what its metadata says, and its tensors
// under the names and in the order that the model's description knows.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/gguf.h"
#include "weights/gguf_families.h"
#include "weights/mapped_file.h"
#include "weights/stored_weight.h"

namespace tandem::weights {

/// An open GGUF model of one or several files.
struct GgufModel {
  GgufHeader header;        ///< the first file's pairs, all files' tensors
  std::string config_json;  ///< made from the pairs; the same for the same pairs and tensors
  std::vector<StoredWeight> weights;
  std::vector<std::shared_ptr<const MappedFile>> files;
};

/// Opens a file, or all files of a split model by the first. Only headers are read.
/// Errors: kNotFound, kIo, kInvalid, kUnsupported (an architecture, a key of it, a tensor or a type
/// of tensors that is not known); each names the file and the key or tensor.
Result<GgufModel> open_gguf(const std::filesystem::path& path);

/// The config.json of a header's model. A key of the architecture that may change an answer and is
/// not understood is refused by name.
Result<std::string> gguf_config(const GgufHeader& header, const GgufFamily& family);

/// A header's tensors as weights. `config_json` is gguf_config()'s; `files` holds one for each part
/// that tensors name, or is empty: then the pieces have none. Errors: kUnsupported, kInvalid; they
/// name the tensor.
Result<std::vector<StoredWeight>> gguf_weights(
    const GgufHeader& header, const GgufFamily& family, const std::string& config_json,
    const std::vector<std::shared_ptr<const MappedFile>>& files);

}  // namespace tandem::weights
