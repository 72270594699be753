#include "weights/shard_index.h"

#include <algorithm>
#include <set>
#include <utility>

#include <simdjson.h>

#include "weights/printable.h"
#include "weights/safetensors.h"

namespace tandem::weights {

namespace {

bool is_plain_shard_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.ends_with(".safetensors") && std::none_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return c == '/' || c == '\\' || byte < 0x20 || byte == 0x7f;
         });
}

}  // namespace

Result<std::map<std::string, std::string>> parse_shard_index(std::string_view json) {
  // The DOM parser, because it checks the parts that are not used, "metadata", too.
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto code = parser.parse(json.data(), json.size()).get(root)) {
    return invalid(std::string("expected JSON: ") + simdjson::error_message(code));
  }
  simdjson::dom::object members;
  if (root.get_object().get(members) != simdjson::SUCCESS) {
    return invalid("expected a JSON object with a \"weight_map\"");
  }
  bool found = false;
  simdjson::dom::object entries;
  for (const auto& [key, value] : members) {
    if (key != "weight_map") continue;
    if (std::exchange(found, true)) return invalid("\"weight_map\" stands twice");
    if (value.get_object().get(entries) != simdjson::SUCCESS) {
      return invalid("\"weight_map\": expected an object");
    }
  }
  if (!found) return invalid("expected a \"weight_map\", found none");

  std::map<std::string, std::string> map;
  std::set<std::string, std::less<>> shards;
  for (const auto& [key, value] : entries) {
    TANDEM_TRY(check_tensor_name(key));
    std::string_view shard;
    if (value.get_string().get(shard) != simdjson::SUCCESS) {
      return invalid("tensor " + printable(key) + ": expected the name of a shard as a string");
    }
    if (!is_plain_shard_name(shard)) {
      return invalid("tensor " + printable(key) +
                     ": expected a plain file name that ends in .safetensors, found \"" +
                     printable(shard) + "\"");
    }
    shards.emplace(shard);
    if (map.size() == kMaxTensors || shards.size() > kMaxShards) {
      return unsupported("expected at most " + std::to_string(kMaxTensors) + " tensors and " +
                         std::to_string(kMaxShards) + " shards, found more");
    }
    if (!map.emplace(key, shard).second) {
      return invalid("tensor " + printable(key) + " stands twice in \"weight_map\"");
    }
  }
  if (map.empty()) return invalid("\"weight_map\" is empty");
  return map;
}

}  // namespace tandem::weights
