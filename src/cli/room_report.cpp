#include "cli/room_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/hub_access.h"
#include "cli/room_plan.h"
#include "room/spares.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kLapsEvery = std::chrono::seconds(2);

bool is_named(const fs::path& path, const std::string& name) {
  return path.filename() == name || path.lexically_normal().parent_path().filename() == name;
}

}  // namespace

Result<std::shared_ptr<room::Host>> enter_room(const std::string& given, bool turn, bool quiet) {
  TANDEM_ASSIGN(const std::string text, secret_argument(given));
  TANDEM_ASSIGN(hub::Home home, hub::Home::open(hub::Home::usual_folder()));
  TANDEM_ASSIGN(room::Way way, room::find_way(home, text));
  room::HostOptions options;
  options.name = machine_name();
  options.cancel = &cancel_flag();
  if (!quiet) {
    options.say = [](const std::string& line) { note(styled(Style::kDim, line) + "\n"); };
  }
  TANDEM_ASSIGN(std::shared_ptr<room::Host> host,
                room::Host::enter(std::move(home), std::move(way), std::move(options)));
  if (turn) TANDEM_TRY(host->take_turn());
  return host;
}

Result<Model> open_room_model(const room::Host& room, ModelFlags& flags) {
  const room::Json& spec = room.spec();
  const std::string name = room::text_of(spec, "model");
  auto found = find_model(flags.model);
  std::error_code error;
  if (found.ok() && !flags.model.empty() && fs::is_directory(*found / name, error)) {
    found = *found / name;
  } else if (flags.model.empty() && (!found.ok() || !is_named(*found, name))) {
    found = find_model(name);
  }
  if (!found.ok()) {
    return Error{ErrorKind::kNotFound, "room " + room.code() + " runs the model '" + name +
                                           "', which is not here; name its folder with -m"};
  }
  TANDEM_ASSIGN(Model model, Model::open(found->string()));
  const uint64_t layers = room::size_of(spec, "layers");
  const std::string architecture = room::text_of(spec, "architecture");
  if (layers != model.config.layers || architecture != model.config.architecture) {
    return invalid("room " + room.code() + " runs the model '" + name + "' (" + architecture +
                   " of " + std::to_string(layers) + " layers); " + found->string() + " is " +
                   model.config.architecture + " of " + std::to_string(model.config.layers));
  }
  const uint64_t bits = room::size_of(spec, "weights");
  if (bits == 4 || bits == 16) flags.weights = std::to_string(bits);
  if (room::size_of(spec, "kv") == 8) flags.kv = "8";
  const uint64_t context = room::size_of(spec, "context");
  if (context > 0 && context <= model.config.context) {
    const auto limit = static_cast<uint32_t>(context);
    flags.context = flags.context == 0 ? limit : std::min(flags.context, limit);
  }
  return model;
}

Result<Model> open_model(ModelFlags& flags, std::shared_ptr<room::Host>& room) {
  if (flags.room.empty()) return Model::open(flags.model);
  TANDEM_ASSIGN(room, enter_room(flags.room, false, flags.quiet));
  TANDEM_ASSIGN(Model model, open_room_model(*room, flags));
  TANDEM_TRY(room->take_turn());
  return model;
}

Status check_room_model(const room::Host& room, const weights::Manifest& manifest) {
  const std::string expected = room::text_of(room.spec(), "model_hash");
  const std::string found = hex(weights::model_hash(manifest));
  if (expected.empty() || expected == found) return {};
  return invalid("room " + room.code() + " was made for a model of other content: its hash is " +
                 expected + ", that of the model here " + found);
}

Result<ring::Objective> room_objective(const room::Host& room) {
  const std::string objective = room::text_of(room.spec(), "objective");
  if (objective.empty()) return ring::Objective::kFastest;
  return ring::parse_objective(objective);
}

bool room_spares(const room::Host& room) {
  const room::Json& spares = room::part_of(room.spec(), "spares");
  return !spares.is_boolean() || spares.get<bool>();
}

std::string left_out_lines(const room::Deal& deal) {
  std::string text;
  for (const auto& [label, why] : deal.left_out) {
    text.append(label).append(" gets no layers: ").append(why).append("\n");
  }
  return text;
}

std::string left_out_text(const room::Deal& deal) {
  std::string text;
  for (const auto& [label, why] : deal.left_out) {
    text.append(text.empty() ? "; left out: " : ", ")
        .append(label)
        .append(" (")
        .append(why)
        .append(")");
  }
  return text;
}

nlohmann::ordered_json room_events_json(room::Host& room, size_t& told) {
  auto list = nlohmann::ordered_json::array();
  const auto all = room.happenings().all();
  for (; told < all.size(); ++told) {
    const room::Happening& one = all[told];
    nlohmann::ordered_json event{{"at_ms", one.at_ms}, {"kind", one.kind}};
    if (!one.device.empty()) event["peer"] = one.device;
    if (!one.text.empty()) event["text"] = one.text;
    list.push_back(std::move(event));
  }
  return list;
}

RoomReport::RoomReport(std::shared_ptr<room::Host> host, room::DealOptions options, room::Deal deal)
    : host_(std::move(host)), options_(std::move(options)) {
  take(std::move(deal));
}

void RoomReport::take(room::Deal deal) {
  const std::lock_guard lock(mutex_);
  deal_ = std::move(deal);
  phases_.clear();
  standing_by_.clear();
  std::string text;
  for (const ring::RingWorker& worker : deal_.workers) {
    text += (text.empty() ? "" : ", ") + worker.label() + " " + ring::text(worker.layers);
    for (const room::Member& member : deal_.members) {
      if (member.label == worker.label()) met_[worker.address] = member;
    }
  }
  for (const room::Idle& idle : deal_.idle) {
    met_[idle.worker.address] = deal_.members[idle.device - 1];
  }
  host_->happenings().add("planned", "", text.empty() ? "all layers on the host" : text);
  for (const auto& [label, why] : deal_.left_out) host_->happenings().add("left_out", label, why);
  for (const auto& [device, reason] : deal_.plan.left_out) {
    host_->happenings().add("left_out", deal_.input.devices[device].id,
                            std::string(ring::name(reason)));
  }
}

Result<std::vector<ring::RingWorker>> RoomReport::replan(const std::vector<std::string>& lost) {
  room::DealOptions options = options_;
  options.measure = false;  // the devices are in the middle of an answer
  std::string names;
  {
    const std::lock_guard lock(mutex_);
    options.relayed = relayed_;
    options.parted = parted_;
    for (const std::string& address : lost) {
      const auto member = met_.find(address);
      if (member == met_.end()) continue;
      const bool slow = slow_.contains(member->second.device);
      options.without[member->second.device] = slow ? "it has become slow" : "it was lost";
      names += (names.empty() ? "" : ", ") + member->second.label;
      last_.erase(member->second.device);
    }
  }
  TANDEM_ASSIGN(room::Deal dealt, room::deal(*host_, options));
  if (dealt.plan.shortage) {
    return Error{ErrorKind::kMemory, "room " + host_->code() + " is short without " + names + ": " +
                                         shortage_text(dealt.input, *dealt.plan.shortage)};
  }
  take(std::move(dealt));
  std::string holders;
  for (const ring::RingWorker& worker : workers()) {
    holders += ", " + worker.label() + " " + ring::text(worker.layers);
  }
  host_->say("without " + names + " the layers are dealt anew" +
             (holders.empty() ? ": all to this device" : ":" + holders.substr(1)));
  return workers();
}

std::vector<ring::RingWorker> RoomReport::choose_spares(
    const std::vector<ring::RingWorker>& workers) {
  const std::lock_guard lock(mutex_);
  auto chosen = room::choose_spares(deal_, workers);
  std::map<std::string, std::map<std::string, bool>> now;
  for (const ring::RingWorker& spare : chosen) {
    const std::string device = device_of(spare.label());
    const auto before = standing_by_.find(device);
    const std::string layers = ring::text(spare.layers);
    const bool has = before != standing_by_.end() && before->second.contains(layers) &&
                     before->second.at(layers);
    now[device][layers] = has;
  }
  standing_by_.swap(now);
  for (const auto& [device, layers] : now) {
    if (!standing_by_.contains(device) && last_.contains(device)) place(device, last_[device]);
  }
  return chosen;
}

void RoomReport::happened(const ring::Event& event) {
  const std::lock_guard lock(mutex_);
  const auto member = met_.find(event.peer);
  const std::string label = member == met_.end() ? event.peer : member->second.label;
  host_->happenings().add(std::string(name(event.kind)), label, event.text);
  const std::string device = device_of(label);
  if (event.kind == ring::Event::Kind::kSlow && !device.empty()) {
    room::age_figures(*host_, options_, device);
    slow_.insert(device);
    host_->say(event.text + "; the layers are dealt anew after this answer");
  }
  if (event.kind != ring::Event::Kind::kLost || device.empty()) return;
  slow_.erase(device);
  last_.erase(device);
  standing_by_.erase(device);
  host_->place(device, {{"why", event.text}});
}

void RoomReport::place(const std::string& device, room::Json placement) {
  placement.erase("spare_for");
  const auto standing_by = standing_by_.find(device);
  if (standing_by != standing_by_.end()) {
    for (const auto& [layers, has] : standing_by->second) {
      if (has) placement["spare_for"].push_back(layers);
    }
  }
  last_[device] = placement;
  host_->place(device, placement);
}

void RoomReport::loading_spare(const std::string& device, const ring::LoadEvent& event) {
  auto& layers = standing_by_[device];
  bool& has = layers[ring::text(event.layers)];
  has = event.phase == ring::LoadEvent::Phase::kReady;
  // Who holds layers of the ring shows those first.
  room::Json placement = last_.contains(device) ? last_[device] : room::Json::object();
  if (room::text_of(placement, "layers").empty()) {
    const bool all =
        std::all_of(layers.begin(), layers.end(), [](const auto& l) { return l.second; });
    placement = {{"layers", ""}, {"state", all ? "spare" : "loading"}};
    if (!all && event.total != 0) {
      placement["done"] = event.done;
      placement["total"] = event.total;
    }
  }
  place(device, std::move(placement));
}

ring::Listener room_events(ring::Listener other, RoomReport* room) {
  if (room == nullptr) return other;
  return [other = std::move(other), room](const ring::Event& event) {
    room->happened(event);
    if (other) other(event);
  };
}

RoomReport::~RoomReport() {
  for (auto& [device, placement] : last_) {
    placement["state"] = "idle";
    placement.erase("spare_for");
    host_->place(device, placement);
  }
}

std::string RoomReport::device_of(const std::string& label) const {
  for (const room::Member& member : deal_.members) {
    if (member.label == label) return member.device;
  }
  return "";
}

std::string RoomReport::plan_text() const {
  const std::lock_guard lock(mutex_);
  std::string text = alone_text(deal_.input, deal_.plan) + left_out_lines(deal_);
  for (const auto& [device, reason] : deal_.plan.left_out) {
    if (device == 0) continue;
    text += deal_.input.devices[device].id + " gets no layers: " + std::string(ring::name(reason)) +
            "\n";
  }
  return text + spares_text(room::choose_spares(deal_, deal_.workers));
}

void RoomReport::loading(const ring::LoadEvent& event) {
  const std::lock_guard lock(mutex_);
  const std::string device = device_of(event.peer);
  if (device.empty()) return;
  if (event.spare) return loading_spare(device, event);
  int& phase = phases_[device];
  const bool is_new = phase != static_cast<int>(event.phase) + 1;
  phase = static_cast<int>(event.phase) + 1;
  const bool ready = event.phase == ring::LoadEvent::Phase::kReady;
  if (is_new && ready) host_->happenings().add("ready", event.peer, ring::text(event.layers));
  if (is_new && event.phase == ring::LoadEvent::Phase::kLoading) {
    host_->happenings().add("loading", event.peer, ring::text(event.layers));
  }
  room::Json placement{{"layers", ring::text(event.layers)},
                       {"state", ready ? "ready" : "loading"}};
  if (event.total != 0) {
    placement["done"] = event.done;
    placement["total"] = event.total;
  }
  place(device, std::move(placement));
}

void RoomReport::loaded(const std::vector<ring::StageReport>& stages) {
  laps(stages, "ready");
}

void RoomReport::laps(const std::vector<ring::StageReport>& stages, const std::string& state) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    saw_link(device_of(stages[i].peer), device_of(stages[i + 1].peer), stages[i]);
  }
  for (const ring::StageReport& stage : stages) {
    const std::string device = device_of(stage.peer);
    if (device.empty()) continue;
    place(device, {{"layers", ring::text(stage.layers)},
                   {"state", state},
                   {"weight_bytes", stage.weight_bytes},
                   {"state_bytes", stage.kv_bytes},
                   {"loaded_from_host", stage.load_bytes},
                   {"ms_per_pass", stage.ms_per_pass},
                   {"hop_ms", stage.hop_ms},
                   {"bytes_received", stage.bytes_received},
                   {"bytes_sent", stage.bytes_sent},
                   {"way", stage.host_by_relay ? "relay" : "direct"},
                   {"next", stage.relayed         ? "host"
                            : stage.next_by_relay ? "relay"
                                                  : "direct"}});
  }
}

void RoomReport::saw_link(const std::string& from, const std::string& to,
                          const ring::StageReport& stage) {
  if (from.empty() || to.empty()) return;
  const auto pair = room::pair_of(from, to);
  relayed_.erase(pair);
  parted_.erase(pair);
  if (stage.relayed) {
    parted_.insert(pair);
  } else if (stage.next_by_relay) {
    relayed_.insert(pair);
  }
}

bool RoomReport::due() {
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return false;
  due_ = now + kLapsEvery;
  return true;
}

nlohmann::ordered_json RoomReport::events() {
  return room_events_json(*host_, told_);
}

Result<std::shared_ptr<RoomReport>> deal_room(std::shared_ptr<room::Host> host,
                                              const ModelFlags& flags, ring::ProbeOptions probe) {
  TANDEM_TRY(check_room_model(*host, *probe.manifest));
  room::DealOptions options;
  options.probe = std::move(probe);
  TANDEM_ASSIGN(options.probe.host_memory, parse_limit(flags.room_memory, "--memory"));
  TANDEM_ASSIGN(options.objective, room_objective(*host));
  if (!flags.objective.empty()) {
    TANDEM_ASSIGN(options.objective, ring::parse_objective(flags.objective));
  }
  options.spares = flags.recover && !flags.no_recovery && !flags.no_spares && room_spares(*host);
  TANDEM_ASSIGN(auto dealt, room::deal(*host, options));
  if (dealt.plan.shortage) {
    return Error{ErrorKind::kMemory, "room " + host->code() + " is short: " +
                                         shortage_text(dealt.input, *dealt.plan.shortage) +
                                         left_out_text(dealt)};
  }
  auto report = std::make_shared<RoomReport>(std::move(host), std::move(options), std::move(dealt));
  if (!flags.quiet) note(report->plan_text());
  return report;
}

}  // namespace tandem::cli
