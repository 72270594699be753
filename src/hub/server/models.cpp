// Requests for files of models.
#include "hub/server/core.h"

namespace tandem::hub {

Response list_models(Call& call) {
  Json models = Json::object();
  if (call.core.models != nullptr) {
    for (const auto& [name, files] : call.core.models->list()) models[name] = files;
  }
  return reply({{"models", models}, {"chunk_bytes", ModelServer::kChunkBytes}});
}

Response model_file(Call& call) {
  const auto& path = call.request.path;
  if (call.core.models == nullptr) {
    return refusal(404, "not_found", "this hub serves no models (tandem hub --models DIR)");
  }
  if (call.request.query.contains("chunks")) {
    const auto chunks = call.core.models->chunks(path.at(2), path.at(3));
    if (chunks.ok()) {
      return reply({{"chunk_bytes", ModelServer::kChunkBytes}, {"sha256", *chunks}});
    }
    if (chunks.error().kind != ErrorKind::kCancelled) {
      return refusal(404, "not_found", chunks.error().message);
    }
    Response response = refusal(503, "busy", chunks.error().message);
    response.fields.emplace_back("Retry-After", "1");
    return response;
  }
  const auto file = call.core.models->find(path.at(2), path.at(3));
  if (!file.ok()) {
    if (file.error().kind == ErrorKind::kNotFound) {
      return refusal(404, "not_found", file.error().message);
    }
    call.core.log(file.error().message);
    return refusal(503, "io", "the file can't be read");
  }
  Response response;
  response.content_type = "application/octet-stream";
  response.fields = {{"ETag", file->etag}, {"Accept-Ranges", "bytes"}};
  if (!call.request.if_none_match.empty() && call.request.if_none_match == file->etag) {
    response.status = 304;
    return response;
  }
  const auto range = parse_range(call.request.range, file->size);
  if (!range.ok()) {
    Response outside = refusal(416, "invalid", range.error().message);
    outside.fields.emplace_back("Content-Range", "bytes */" + std::to_string(file->size));
    return outside;
  }
  response.file = FilePart{file->descriptor, 0, file->size};
  if (range->has_value()) {
    const auto [offset, length] = **range;
    response.status = 206;
    response.file->offset = offset;
    response.file->length = length;
    response.fields.emplace_back("Content-Range", "bytes " + std::to_string(offset) + "-" +
                                                      std::to_string(offset + length - 1) + "/" +
                                                      std::to_string(file->size));
  }
  return response;
}

}  // namespace tandem::hub
