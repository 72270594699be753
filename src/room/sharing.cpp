#include "room/sharing.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "fetch/stage_source.h"
#include "model/config.h"
#include "model/stage.h"
#include "ring/range_client.h"
#include "room/machine.h"
#include "room/reach.h"

namespace tandem::room {
namespace {

using namespace std::chrono_literals;
using fetch::SourceKind;

constexpr auto kRefreshEvery = 2s;
constexpr auto kLookAtMatrices = 30s;
/// For another load of this device, into the same folder.
constexpr auto kPatience = 1h;
// A heartbeat has 2 KiB for all that a device says.
constexpr size_t kMostModels = 4;
constexpr size_t kMostText = 60;
constexpr int64_t kSilentMs = 45000;
/// Of a layer's bytes so few are read beside the quantized ones that it counts as held without.
constexpr uint64_t kSmallPart = 16;

/// Another device of the room, which is connected to once it is asked for something.
class PeerReader {
 public:
  PeerReader(Member member, std::shared_ptr<const wire::Tls> tls, Digest model_hash)
      : member_(std::move(member)), tls_(std::move(tls)), model_hash_(model_hash) {}

  Status read(const std::string& tensor, uint64_t offset, std::span<std::byte> out) {
    if (client_ == nullptr) {
      TANDEM_ASSIGN(const std::string address, reach(member_, *tls_, loopback_mark()));
      ring::RangeClientOptions options;
      options.address = address;
      options.pin = *member_.certificate;
      options.tls = tls_;
      auto client = ring::RangeClient::dial(options);
      if (!client.ok()) return client.error().in(address);
      client_ = std::move(*client);
    }
    return client_->read(model_hash_, tensor, offset, out);
  }

 private:
  const Member member_;
  const std::shared_ptr<const wire::Tls> tls_;
  const Digest model_hash_;
  std::unique_ptr<ring::RangeClient> client_;
};

/// What a manifest says, for those who want no bytes.
class Names final : public weights::ManifestSource {
 public:
  using ManifestSource::ManifestSource;
  Result<weights::TensorData> read(std::string_view /*tensor*/) override {
    return Error{ErrorKind::kNotFound, "no bytes"};
  }
};

std::vector<ring::LayerRange> held_layers(const fetch::Shelved& model, model::WeightBits bits,
                                          const weights::PackedStore* cache) {
  std::vector<ring::LayerRange> ranges;
  auto config = model::parse_config(model.config_json);
  if (!config.ok()) return ranges;
  const Names names(*model.manifest);
  model::resolve_prefix(*config, [&](std::string_view tensor) { return names.find(tensor); });
  for (uint32_t layer = 0; layer < config->layers; ++layer) {
    uint64_t all = 0;
    for (const auto& tensor : model::layer_tensors(*config, layer, layer + 1)) {
      const auto* info = names.find(tensor.name);
      all += info == nullptr ? 0 : info->bytes();
    }
    uint64_t lacking = 0;
    for (const std::string& name :
         model::tensors_to_read(*config, layer, layer + 1, bits, names, cache)) {
      const auto* info = names.find(name);
      if (!model.tensors.contains(name)) lacking += info == nullptr ? all : info->bytes();
    }
    if (lacking > all / kSmallPart) continue;
    if (!ranges.empty() && ranges.back().last == layer) {
      ranges.back().last = layer + 1;
    } else {
      ranges.push_back({layer, layer + 1});
    }
  }
  return ranges;
}

}  // namespace

std::string room_mark(const hub::HubAddress& hub, const std::string& code) {
  // Begins with a dot: no model server gives such files.
  return ".room-" + hex(sha256(hub.authority() + " " + code)).substr(0, 16);
}

Sharing::Sharing(SharingOptions options, const Way& way, std::string device,
                 std::shared_ptr<const wire::Tls> tls, const ring::WorkerOptions& worker,
                 std::function<Result<Json>()> refresh)
    : options_(std::move(options)),
      device_(std::move(device)),
      mark_(room_mark(way.link.hub, way.link.code)),
      tls_(std::move(tls)),
      cache_(worker.cache),
      log_(worker.log),
      refresh_(std::move(refresh)),
      shelf_(std::make_shared<fetch::Shelf>(fetch::Store(options_.store))) {}

bool Sharing::allows(SourceKind kind) const {
  if (kind == SourceKind::kCache) return true;  // nobody is asked
  const std::lock_guard lock(mutex_);
  return allowed_.contains(kind) && (!options_.own || options_.own->contains(kind));
}

void Sharing::apply(const Json& room, ring::WorkerOptions& worker) {
  see(room);
  worker.tensors_of_host = allows(SourceKind::kHost);
  if (options_.store.empty()) return;
  worker.fetch = [this](const ring::FetchRequest& request) { return fetch(request); };
  if (!allows(SourceKind::kPeer)) return;
  worker.share.bytes_per_second = options_.bytes_per_second;
  worker.share.admit = [this](const wire::Fingerprint& device) { return admit(device); };
  worker.share.give = [this](const wire::NeedRange& range, std::span<std::byte> out) -> Status {
    Status given = shelf_->read(range.model_hash, range.tensor, range.offset, out, mark_);
    if (given.ok() || given.error().kind != ErrorKind::kIo) return given;
    // Where things lie on this machine is nobody else's business.
    say(given.error().message);
    return Error{ErrorKind::kNotFound, "the tensor can't be read here"};
  };
}

void Sharing::see(const Json& room) {
  auto members = members_of(room);
  const Json& spec = part_of(room, "spec");
  const std::lock_guard lock(mutex_);
  members_ = std::move(members);
  allowed_ = room_sources(spec);
  const uint64_t bits = size_of(spec, "weights");
  bits_ = bits <= 255 && model::is_weight_bits(static_cast<uint32_t>(bits))
              ? static_cast<uint8_t>(bits)
              : uint8_t{8};
  if (recent_ == Digest{} && !parse_hex(text_of(spec, "model_hash"), recent_)) recent_ = {};
}

void Sharing::pause(const std::string& why) {
  const std::lock_guard lock(mutex_);
  paused_ = why;
}

void Sharing::use_hub(const hub::HubAddress& hub, const std::string& token) {
  const std::lock_guard lock(mutex_);
  hub_ = hub;
  token_ = token;
}

bool Sharing::is_member(const wire::Fingerprint& device) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& member) { return member.certificate == device; });
}

Status Sharing::admit(const wire::Fingerprint& device) {
  {
    const std::lock_guard lock(mutex_);
    if (!paused_.empty()) return Error{ErrorKind::kUnsupported, "gives no weights: " + paused_};
  }
  if (is_member(device)) return {};
  {
    // It may have come after the room was last looked at.
    const std::lock_guard lock(refresh_mutex_);
    if (!is_member(device) && std::chrono::steady_clock::now() - refreshed_ > kRefreshEvery) {
      refreshed_ = std::chrono::steady_clock::now();
      if (const auto room = refresh_(); room.ok()) see(*room);
    }
  }
  if (is_member(device)) return {};
  return Error{ErrorKind::kPeer,
               "weights go to devices of the room only, and device " + hex(device) + " is none"};
}

Result<std::vector<std::unique_ptr<fetch::Source>>> Sharing::sources(
    const ring::FetchRequest& request, const fetch::ModelName* model) {
  std::vector<std::unique_ptr<fetch::Source>> sources;
  const auto waiting = [this](const std::string& line) { say(line); };
  // What another device of this machine has fetched, or this one under another form.
  sources.push_back(fetch::source_of_tensors(
      SourceKind::kCache, "this machine's cache",
      [this, hash = request.model_hash](const std::string& tensor, uint64_t offset,
                                        std::span<std::byte> out) {
        return shelf_->read(hash, tensor, offset, out);
      }));
  std::vector<Member> members;
  std::optional<hub::HubAddress> hub;
  std::string token;
  {
    const std::lock_guard lock(mutex_);
    members = members_;
    hub = hub_;
    token = token_;
  }
  // Not all begin with the same one.
  std::sort(members.begin(), members.end(), [this](const Member& a, const Member& b) {
    return sha256(device_ + a.device) < sha256(device_ + b.device);
  });
  // A device may call itself what another one is called with a part of its id.
  std::map<std::string, int> labels;
  for (const Member& member : members) ++labels[member.label];
  for (Member& member : members) {
    const bool has = std::any_of(member.held.begin(), member.held.end(), [&](const auto& held) {
      return held.model_hash == request.model_hash;
    });
    if (!allows(SourceKind::kPeer) || !has || member.device == device_ || !member.certificate ||
        member.addresses.empty() || member.silent_ms > kSilentMs) {
      continue;
    }
    const bool alone = labels[member.label] == 1;
    const std::string name = "peer " + member.label + (alone ? "" : " " + member.device);
    auto reader = std::make_shared<PeerReader>(std::move(member), tls_, request.model_hash);
    sources.push_back(fetch::source_of_tensors(
        SourceKind::kPeer, name,
        [reader](const std::string& tensor, uint64_t offset, std::span<std::byte> out) {
          return reader->read(tensor, offset, out);
        }));
  }
  std::vector<std::unique_ptr<fetch::Source>> outside;
  if (options_.outside && model != nullptr) {
    auto opened = options_.outside(*model, request.gone, waiting);
    if (opened.ok()) outside = std::move(*opened);
    if (!opened.ok()) say(opened.error().message);
  }
  const auto take = [&](SourceKind kind) {
    for (auto& source : outside) {
      if (source != nullptr && source->kind() == kind && allows(kind)) {
        sources.push_back(std::move(source));
      }
    }
  };
  take(SourceKind::kPeer);
  take(SourceKind::kHub);
  const bool own_hub = std::any_of(sources.begin(), sources.end(), [](const auto& source) {
    return source->kind() == SourceKind::kHub;
  });
  if (!own_hub && model != nullptr && hub && allows(SourceKind::kHub)) {
    fetch::SourceOptions options;
    options.kind = SourceKind::kHub;
    options.base = "https://" + hub->authority();
    options.credentials = {token, hub->fingerprint};
    options.model = *model;
    options.http.cancel = request.gone;
    options.waiting = waiting;
    TANDEM_ASSIGN(auto source, fetch::Source::open(std::move(options)));
    sources.push_back(std::move(source));
  }
  if (request.host && allows(SourceKind::kHost)) {
    sources.push_back(fetch::source_of_tensors(SourceKind::kHost, "host", request.host));
  }
  take(SourceKind::kHuggingFace);
  return sources;
}

Result<std::unique_ptr<weights::TensorSource>> Sharing::fetch(const ring::FetchRequest& request) {
  fetch::ModelName model;
  model.name = "model";
  bool named = !request.origin.empty();
  if (named) {
    auto parsed = fetch::parse_model_name(request.origin);
    named = parsed.ok();
    if (named) model = std::move(*parsed);
    if (!named) say(parsed.error().message + "; only tensors by their names are asked for");
  }
  {
    const std::lock_guard lock(mutex_);
    recent_ = request.model_hash;
  }
  fetch::StageSourceOptions options;
  TANDEM_ASSIGN(options.sources, sources(request, named ? &model : nullptr));
  options.model = model;
  options.shelf = shelf_;
  options.slot = device_.substr(0, 8);
  options.patience = kPatience;
  options.mark = mark_;
  options.limit = options_.limit;
  options.manifest = request.manifest;
  options.config_json = request.config_json;
  options.tensors = request.tensors;
  options.cancel = request.gone;
  options.progress = request.progress;
  options.notice = [this](const std::string& line) { say(line); };
  options.fetched = [this](const std::string& source, uint64_t bytes) {
    say(std::to_string(bytes) + " bytes of weights came from " + source);
  };
  return fetch::open_stage_source(std::move(options));
}

Json Sharing::held() {
  Json models = Json::array();
  if (options_.store.empty()) return models;
  uint8_t bits = 8;
  Digest recent{};
  {
    const std::lock_guard lock(mutex_);
    bits = bits_;
    recent = recent_;
  }
  std::vector<fetch::Shelved> list = shelf_->list(mark_);
  std::stable_partition(list.begin(), list.end(),
                        [&](const fetch::Shelved& model) { return model.model_hash == recent; });
  std::vector<std::pair<Digest, size_t>> now;
  now.reserve(list.size() + 1);
  now.emplace_back(recent, bits);
  for (const fetch::Shelved& model : list) now.emplace_back(model.model_hash, model.tensors.size());
  {
    const std::lock_guard lock(mutex_);
    const bool late = std::chrono::steady_clock::now() - told_at_ > kLookAtMatrices;
    if (now == told_of_ && !late) return told_;
  }
  for (const fetch::Shelved& model : list) {
    if (models.size() == kMostModels) break;
    std::string layers;
    for (const auto& range :
         held_layers(model, static_cast<model::WeightBits>(bits), cache_.get())) {
      layers += (layers.empty() ? "" : ",") + ring::text(range);
    }
    if (layers.size() > kMostText || layers.empty()) continue;
    models.push_back({{"model", hex(model.model_hash)}, {"layers", layers}});
  }
  const std::lock_guard lock(mutex_);
  told_of_ = std::move(now);
  told_at_ = std::chrono::steady_clock::now();
  told_ = models;
  return models;
}

}  // namespace tandem::room
