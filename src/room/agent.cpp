#include "room/agent.h"

#include <algorithm>

#include "ring/system_memory.h"
#include "room/machine.h"

namespace tandem::room {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 15s;
constexpr auto kTick = 5s;
constexpr auto kRenew = 8s;      // a lease is 30 s
constexpr auto kUnserved = 30s;  // after which a job whose host is not there is given back
constexpr auto kHubAway = 600s;  // for which a lease that nobody could renew still counts
constexpr auto kLookAtRoom = 60s;
constexpr auto kRetry = 2s;
constexpr auto kCallLasts = 300s;  // clocks of hub and device may differ
constexpr int kWaitSeconds = 25;
constexpr auto kQuietFirst = 60s;  // before the memory is measured
constexpr uint64_t kRoomToMeasure = uint64_t{4} << 30;

uint64_t least_limit(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

hub::Condition condition() {
  return {battery_percent(), temperature()};
}

}  // namespace

Agent::Agent(hub::Home home, Way way, AgentOptions options)
    : home_(std::move(home)), way_(std::move(way)), options_(std::move(options)) {}

Result<std::unique_ptr<Agent>> Agent::start(hub::Home home, Way way, AgentOptions options) {
  std::unique_ptr<Agent> agent(new Agent(std::move(home), std::move(way), std::move(options)));
  TANDEM_ASSIGN(const hub::OwnerSettings local, agent->local_settings());
  (void)local;
  TANDEM_ASSIGN(hub::Client client,
                agent->home_.connect(agent->way_.link.hub, agent->options_.name));
  agent->way_.link.hub = client.hub();
  EnterOptions enter_options;
  enter_options.waiting = agent->options_.waiting;
  enter_options.cancel = agent->options_.cancel;
  client.stop_on(agent->options_.cancel);
  TANDEM_ASSIGN(const Json room, enter(agent->home_, client, agent->way_, enter_options));
  TANDEM_ASSIGN(agent->tls_, room_tls(agent->home_.identity(), agent->way_.link.key));
  ring::WorkerOptions worker = agent->options_.worker;
  worker.tls = agent->tls_;
  worker.admit = [self = agent.get()](const wire::Fingerprint& host) {
    return self->grants_.admit(host);
  };
  agent->sharing_ = std::make_unique<Sharing>(agent->options_.sharing, agent->way_,
                                              agent->home_.identity().device_id(), agent->tls_,
                                              worker, [self = agent.get()]() -> Result<Json> {
                                                TANDEM_ASSIGN(hub::Client asking, self->connect());
                                                return asking.room(self->way_.link.code);
                                              });
  agent->sharing_->use_hub(client.hub(), client.token());
  agent->sharing_->apply(room, worker);
  agent->relay_ = std::make_shared<Relay>(client, agent->way_.link.code, &agent->stopping_);
  worker.dialler = [relay = agent->relay_.get()](const std::string& where,
                                                 std::chrono::milliseconds timeout) {
    return relay->dial(where, timeout);
  };
  agent->limit_ = worker.memory;
  TANDEM_ASSIGN(agent->worker_, ring::Worker::start(std::move(worker)));
  if (!agent->beat(client)) {
    return Error{ErrorKind::kPeer, "the hub " + client.hub().authority() + " took no heartbeat"};
  }
  agent->known_ = std::thread([self = agent.get()] { self->keep_known(); });
  agent->jobs_ = std::thread([self = agent.get()] { self->take_jobs(); });
  agent->calls_ = std::thread(
      [self = agent.get(), after = number_of(room, "events")] { self->take_calls(after); });
  return agent;
}

Agent::~Agent() {
  stop();
}

void Agent::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_.exchange(true)) return;
  }
  grants_.pause("it is stopping");
  changed_.notify_all();
  if (known_.joinable()) known_.join();
  if (jobs_.joinable()) jobs_.join();
  if (calls_.joinable()) calls_.join();
  if (worker_ != nullptr) worker_->stop();
}

std::optional<std::string> Agent::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Agent::log(const std::string& line) const {
  if (options_.worker.log) options_.worker.log(line);
}

Result<hub::Client> Agent::connect() {
  TANDEM_ASSIGN(hub::Client client, home_.connect(way_.link.hub, options_.name));
  client.stop_on(&stopping_);
  if (relay_ != nullptr) relay_->use_token(client.token());
  return client;
}

void Agent::rest(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return stopping_ || beat_now_; });
}

void Agent::pause_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return stopping_.load(); });
}

void Agent::hub_state(bool here, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (hub_here_ == here) return;
    hub_here_ = here;
  }
  log(here ? "the hub is back" : "the hub is away, trying again: " + why);
}

Result<hub::OwnerSettings> Agent::local_settings() {
  if (options_.settings.empty()) return hub::OwnerSettings();
  TANDEM_ASSIGN(const std::string text, hub::read_small_file(options_.settings, 1 << 20, false));
  auto parsed = hub::parse_settings_toml(text);
  if (!parsed.ok()) return parsed.error().in(options_.settings.string());
  return parsed;
}

Json Agent::report() const {
  Json report;
  const std::string& address = worker_->address();
  const std::string port = address.substr(address.rfind(':') + 1);
  const std::string host = address.substr(0, address.rfind(':'));
  Json addresses = Json::array();
  if (!options_.address.empty()) {
    addresses.push_back(options_.address);
  } else if (host == "0.0.0.0" || host == "[::]") {
    for (const std::string& one : own_addresses()) {
      const bool six = one.find(':') != std::string::npos;
      if (six && host == "0.0.0.0") continue;
      addresses.push_back((six ? "[" + one + "]" : one) + ":" + port);
    }
  } else {
    addresses.push_back(address);
  }
  const Json held = sharing_->held();
  const std::lock_guard lock(mutex_);
  const uint64_t used = worker_->memory_used();
  const uint64_t available = ring::available_memory();
  // What it holds already can be given up for another stage.
  const uint64_t most = available + used;
  report["addresses"] = stopping_ ? Json::array() : addresses;
  const uint64_t limit = worker_->memory_limit();
  report["memory"] = limit == 0 ? most : std::min(limit, most);
  report["limit"] = limit;
  report["could_lend"] = most;
  report["used"] = used;
  report["stages"] = worker_->stages();
  report["shared_bytes"] = worker_->shared_bytes();
  if (!held.empty()) report["cached"] = held;
  report["hosts"] = worker_->sessions();
  report["threads"] = options_.worker.threads;
  report["isa"] = std::string(model::name(options_.worker.isa));
  report["version"] = ring::software_version();
  report["contract"] = ring::contract_version();
  report["machine"] = machine_mark();
  report["loopback"] = loopback_mark();
  if (bandwidth_ > 0) report["memory_bandwidth"] = bandwidth_;
  if (!why_.empty()) report["why"] = why_;
  const hub::Condition now = condition();
  if (now.battery) report["battery"] = *now.battery;
  if (now.temperature) report["temperature"] = *now.temperature;
  return report;
}

void Agent::apply(const hub::OwnerSettings& owner) {
  auto local = local_settings();
  if (!local.ok()) log(local.error().message + "; it lends nothing until that is mended");
  std::string why = local.ok() ? "" : "its settings file can't be read";
  if (why.empty()) why = hub::why_no_work(owner, "stage", condition(), now_ms());
  if (why.empty()) why = hub::why_no_work(*local, "stage", condition(), now_ms());
  const uint64_t limit = least_limit(least_limit(options_.worker.memory, owner.memory),
                                     local.ok() ? local->memory : 0);
  bool changed = false;
  bool other_limit = false;
  {
    const std::lock_guard lock(mutex_);
    changed = why != why_;
    other_limit = limit != limit_;
    why_ = why;
    limit_ = limit;
    if (changed || other_limit) beat_now_ = true;  // the others should know at once
  }
  grants_.pause(stopping_ ? "it is stopping" : why);
  sharing_->pause(why);
  if (other_limit) worker_->set_memory(limit);
  if (changed) log(why.empty() ? "takes work" : "takes no work: " + why);
}

bool Agent::beat(hub::Client& client) {
  const auto answer = client.heartbeat(report());
  if (!answer.ok()) {
    hub_state(false, answer.error().message);
    return false;
  }
  hub_state(true, "");
  const auto owner = hub::parse_settings(dump(part_of(*answer, "settings")));
  if (!owner.ok()) {
    log("the hub's settings are not understood: " + owner.error().message);
    return true;
  }
  owner_ = *owner;
  apply(owner_);
  return true;
}

void Agent::renew(hub::Client& client) {
  grants_.serve(worker_->hosts());
  for (const Grant& grant : grants_.all()) {
    const auto now = Clock::now();
    if (now - grant.served > kUnserved) {
      // Its host is gone, or never came.
      (void)client.finish_job(grant.job, grant.token, true, Json::object()).ok();
      grants_.remove(grant.job);
      continue;
    }
    if (now - grant.renewed < kRenew) continue;
    const Status renewed = client.renew_job(grant.job, grant.token);
    if (renewed.ok()) {
      grants_.renewed(grant.job);
    } else if (client.status() == 404 || client.status() == 409) {
      grants_.remove(grant.job);
    } else if (now - grant.renewed > kHubAway) {
      log("the hub has been away for 10 minutes: job " + grant.job + " is given up");
      grants_.remove(grant.job);
    }
  }
}

void Agent::measure_bandwidth(Clock::time_point started) {
  const bool may = options_.worker.memory == 0 || options_.worker.memory >= kRoomToMeasure;
  if (!options_.bandwidth || !may || Clock::now() - started < kQuietFirst) return;
  if (worker_->sessions() != 0) return;
  const double measured = options_.bandwidth();
  options_.bandwidth = {};
  const std::lock_guard lock(mutex_);
  bandwidth_ = measured;
  beat_now_ = true;
}

void Agent::keep_known() {
  auto client = connect();
  const auto started = Clock::now();
  auto next_beat = Clock::now() + kBeat;
  auto next_look = Clock::now() + kLookAtRoom;
  while (!stopping_) {
    rest(std::min(next_beat, Clock::now() + kTick));
    if (stopping_) break;
    if (!client.ok()) {
      client = connect();
      if (!client.ok()) {
        hub_state(false, client.error().message);
        pause_for(kRetry);
        continue;
      }
    }
    apply(owner_);  // hours come and go, and a file may have been changed
    bool asked = false;
    {
      const std::lock_guard lock(mutex_);
      asked = std::exchange(beat_now_, false);
    }
    measure_bandwidth(started);
    if (Json held = sharing_->held(); held != told_) {
      told_ = std::move(held);  // the others may fetch it from here
      asked = true;
    }
    bool good = true;
    if (asked || Clock::now() >= next_beat) {
      good = beat(*client);
      next_beat = Clock::now() + (good ? std::chrono::seconds(kBeat) : kRetry);
    }
    if (good) renew(*client);
    if (client->status() == 401) client = Error{ErrorKind::kPeer, "the hub forgot this device"};
    if (good && Clock::now() >= next_look) {
      next_look = Clock::now() + kLookAtRoom;
      const auto room = client->room(way_.link.code);
      if (room.ok()) sharing_->see(*room);
      if (!room.ok() && client->status() == 404) {
        const std::lock_guard lock(mutex_);
        ended_ = "the room is closed, or this device was sent away";
      }
    }
  }
  if (!client.ok()) return;
  // Goodbye: others need not wait until the device is silent for long.
  client->stop_on(nullptr);
  (void)client->heartbeat(report()).ok();
  for (const Grant& grant : grants_.all()) {
    (void)client->finish_job(grant.job, grant.token, false, {{"error", "the device stops"}}).ok();
  }
  // The room's creator stays in it, and who could not come back by itself.
  const auto room = client->room(way_.link.code);
  if (!room.ok() || way_.link.key.empty()) return;
  if (text_of(*room, "creator") == home_.identity().device_id()) {
    (void)client->publish(way_.link.code, "stops", "", Json::object()).ok();
  } else {
    (void)client->leave_room(way_.link.code, "me").ok();
  }
}

Status Agent::take(hub::Client& client, const Json& job) {
  Grant grant;
  grant.job = text_of(job, "job");
  grant.kind = text_of(job, "kind");
  grant.token = number_of(job, "token");
  const std::string submitter = text_of(job, "submitter");
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    why = why_;
  }
  if (why.empty() && text_of(job, "room") != way_.link.code)
    why = "it lends itself to another room";
  TANDEM_ASSIGN(const Json room, client.room(way_.link.code));
  sharing_->see(room);
  for (const Json& member : part_of(room, "members")) {
    Digest certificate;
    if (text_of(member, "device") != submitter) continue;
    if (parse_hex(text_of(member, "certificate"), certificate)) grant.host = certificate;
  }
  if (why.empty() && grant.host == wire::Fingerprint{}) why = "its host is not in the room";
  if (!why.empty()) return client.finish_job(grant.job, grant.token, false, {{"error", why}});
  grant.granted = grant.renewed = grant.served = Clock::now();
  grants_.add(grant);
  // Only now may the host come: it waits for this.
  return client.publish(way_.link.code, "ready", submitter, {{"job", grant.job}});
}

void Agent::lease_all(hub::Client& client) {
  for (int i = 0; i < 64 && !stopping_; ++i) {
    const auto job = client.lease_job();
    if (!job.ok() || !job->is_object()) return;
    if (const Status taken = take(client, *job); !taken.ok()) {
      log("job " + text_of(*job, "job") + ": " + taken.error().message);
    }
  }
}

void Agent::take_jobs() {
  auto client = connect();
  int64_t after = 0;
  bool away = false;
  while (!stopping_) {
    if (!client.ok() || client->status() == 401) {
      client = connect();
      if (!client.ok()) {
        pause_for(kRetry);
        continue;
      }
    }
    lease_all(*client);
    const auto events = client->device_events(after, away ? 0 : kWaitSeconds);
    if (!events.ok()) {
      if (stopping_) break;
      away = true;
      hub_state(false, events.error().message);
      pause_for(kRetry);
      continue;
    }
    after = number_of(*events, "next");
    // A hub that was away may have forgotten what it was told last.
    bool settings = std::exchange(away, false);
    for (const Json& event : part_of(*events, "events")) {
      const std::string kind = text_of(event, "kind");
      settings = settings || kind == "settings";
      if (kind == "job_cancelled") grants_.remove(text_of(part_of(event, "data"), "job"));
    }
    if (settings) {
      const std::lock_guard lock(mutex_);
      beat_now_ = true;
      changed_.notify_all();
    }
  }
}

void Agent::take_calls(int64_t after) {
  auto client = connect();
  while (!stopping_) {
    if (!client.ok() || client->status() == 401) client = connect();
    const auto events = client.ok() ? client->room_events(way_.link.code, after, kWaitSeconds)
                                    : Result<Json>(client.error());
    if (!events.ok()) {
      pause_for(kRetry);
      continue;
    }
    after = number_of(*events, "next");
    bool left = false;
    for (const Json& event : part_of(*events, "events")) {
      left = left || text_of(event, "kind") == "left";
      // Who called before the hub was away has long given up.
      if (now_ms() - number_of(event, "at") > kCallLasts / 1ms) continue;
      relay_->answer(event, [this](wire::Socket socket) { worker_->adopt(std::move(socket)); });
    }
    // Who was sent away gets no more weights.
    if (!left) continue;
    if (const auto room = client->room(way_.link.code); room.ok()) sharing_->see(*room);
  }
}

}  // namespace tandem::room
