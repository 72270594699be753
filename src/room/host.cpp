#include "room/host.h"

#include <algorithm>
#include <chrono>

namespace tandem::room {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kWaitSeconds = 25;
constexpr auto kRetry = 1s;
constexpr auto kTurnAgain = 2s;  // if no event says that a turn has ended
constexpr auto kKeepTurn = 12s;  // it lasts 45 s
constexpr auto kTellEvery = 500ms;
constexpr auto kReadyIn = 15s;
constexpr auto kLookAtJobs = 500ms;
constexpr auto kGoodbye = 3s;

}  // namespace

Host::Host(hub::Home home, Way way, HostOptions options)
    : home_(std::move(home)), way_(std::move(way)), options_(std::move(options)) {}

Result<hub::Client> Host::connect(const std::atomic<bool>* stop) {
  TANDEM_ASSIGN(hub::Client client, home_.connect(way_.link.hub, options_.name));
  client.stop_on(stop);
  return client;
}

Result<std::unique_ptr<Host>> Host::enter(hub::Home home, Way way, HostOptions options) {
  std::unique_ptr<Host> host(new Host(std::move(home), std::move(way), std::move(options)));
  TANDEM_ASSIGN(host->client_, host->connect(host->options_.cancel));
  host->way_.link.hub = host->client_->hub();
  EnterOptions entering;
  entering.role = "guest";
  entering.cancel = host->options_.cancel;
  entering.waiting = [self = host.get()] {
    self->happenings_.add("waiting", "", "in the lobby");
    self->say("waiting in the lobby of room " + self->code() + " as device " +
              self->home_.identity().device_id());
  };
  TANDEM_ASSIGN(const Json room, room::enter(host->home_, *host->client_, host->way_, entering));
  TANDEM_ASSIGN(host->tls_, room_tls(host->home_.identity(), host->way_.link.key));
  static const std::atomic<bool> kNever{false};
  const std::atomic<bool>* cancel = host->options_.cancel;
  host->relay_ =
      std::make_shared<Relay>(*host->client_, host->code(), cancel == nullptr ? &kNever : cancel);
  host->spec_ = part_of(room, "spec");
  for (const Member& member : members_of(room)) host->labels_[member.device] = member.label;
  const int64_t after = number_of(room, "events");
  host->watcher_ = std::thread([self = host.get(), after] { self->watch(after); });
  host->carrier_ = std::thread([self = host.get()] { self->carry(); });
  return host;
}

Host::~Host() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (carrier_.joinable()) carrier_.join();
}

Result<Json> Host::room() {
  return client_->room(code());
}

Result<std::vector<Member>> Host::members() {
  TANDEM_ASSIGN(const Json now, room());
  auto members = members_of(now);
  const std::lock_guard lock(mutex_);
  for (const Member& member : members) labels_[member.device] = member.label;
  last_members_ = members;
  return members;
}

std::vector<Member> Host::hired() {
  std::vector<Member> members;
  const std::lock_guard lock(mutex_);
  for (const Member& member : last_members_) {
    const bool hired = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
      return job.second.device == member.device && job.second.kind == "stage" &&
             ready_.count(job.first) != 0;
    });
    if (hired) members.push_back(member);
  }
  return members;
}

Status Host::answer_lobby(const std::string& device, bool let_in) {
  if (!let_in) return client_->answer_lobby(code(), device, false, "");
  TANDEM_ASSIGN(const Json now, room());
  return allow(*client_, way_.link, device, now);
}

std::string Host::label_of(const std::string& device) {
  const std::lock_guard lock(mutex_);
  const auto found = labels_.find(device);
  return found == labels_.end() ? device.substr(0, 6) : found->second;
}

Status Host::take_turn() {
  bool told = false;
  for (;;) {
    if (cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
    const auto token = client_->take_turn(code(), 0);
    if (token.ok()) {
      const std::lock_guard lock(mutex_);
      turn_ = *token;
      return {};
    }
    if (client_->status() != 409) return token.error();
    if (!told) {
      told = true;
      const auto now = room();
      const std::string holder =
          now.ok() ? text_of(part_of(*now, "turn"), "device") : std::string();
      const bool own = holder == home_.identity().device_id();
      const std::string who = own ? "another process of this device" : label_of(holder);
      happenings_.add("waiting", who, "for its turn");
      say("waiting for " + who + ", which uses room " + code() + " now");
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kTurnAgain, [&] { return turn_over_; });
    turn_over_ = false;
  }
}

Result<std::map<std::string, std::string>> Host::hire(const std::vector<std::string>& devices,
                                                      const std::string& kind) {
  std::map<std::string, std::string> waiting;  // job, device
  std::map<std::string, std::string> failed;   // device, why
  for (const std::string& device : devices) {
    {
      const std::lock_guard lock(mutex_);
      const bool has = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
        return job.second.device == device && job.second.kind == kind &&
               ready_.count(job.first) != 0;
      });
      if (has) continue;
    }
    const auto job = client_->add_job(code(), device, kind, Json::object());
    if (!job.ok() && client_->status() != 404 && client_->status() != 429) return job.error();
    if (!job.ok()) {
      failed[device] = job.error().message;
      continue;
    }
    waiting[*job] = device;
    const std::lock_guard lock(mutex_);
    jobs_[*job] = {device, kind};
  }
  const auto deadline = Clock::now() + kReadyIn;
  while (!waiting.empty()) {
    if (cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
    {
      std::unique_lock lock(mutex_);
      const auto any = [&] {
        return std::any_of(waiting.begin(), waiting.end(),
                           [&](const auto& job) { return ready_.count(job.first) != 0; });
      };
      changed_.wait_for(lock, kLookAtJobs, any);
      std::erase_if(waiting, [&](const auto& job) { return ready_.count(job.first) != 0; });
    }
    for (auto job = waiting.begin(); job != waiting.end();) {
      const auto state = client_->job(job->first);
      const std::string found = state.ok() ? text_of(*state, "state") : std::string();
      std::string why;
      if (found == "failed" || found == "done" || found == "cancelled") {
        why = text_of(part_of(*state, "result"), "error");
        if (why.empty()) why = "its job ended as " + found;
      } else if (Clock::now() >= deadline) {
        why = "it did not take its job within " + std::to_string(kReadyIn / 1s) + " s";
        (void)client_->cancel_job(job->first).ok();
      }
      if (why.empty()) {
        ++job;
        continue;
      }
      failed[job->second] = why;
      const std::lock_guard lock(mutex_);
      jobs_.erase(job->first);
      job = waiting.erase(job);
    }
  }
  return failed;
}

void Host::place(const std::string& device, const Json& placement) {
  const std::lock_guard lock(mutex_);
  placements_[device] = placement;
}

void Host::watch(int64_t after) {
  auto client = connect(&stopping_);
  bool away = false;
  while (!stopping_) {
    if (!client.ok()) client = connect(&stopping_);
    const auto events = client.ok() ? client->room_events(code(), after, kWaitSeconds)
                                    : Result<Json>(client.error());
    if (stopping_) return;
    if (!events.ok()) {
      if (!away) happenings_.add("hub_away", "", events.error().message);
      away = true;
      if (client.ok() && client->status() == 401) {
        client = Error{ErrorKind::kPeer, "the hub forgot this device"};
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kRetry, [&] { return stopping_.load(); });
      continue;
    }
    if (away) happenings_.add("hub_back", "", "");
    away = false;
    after = number_of(*events, "next");
    for (const Json& event : part_of(*events, "events")) watched(*client, event);
  }
}

void Host::watched(hub::Client& client, const Json& event) {
  const std::string kind = text_of(event, "kind");
  const std::string sender = text_of(event, "sender");
  const Json& data = part_of(event, "data");
  if (kind == "message:ready") {
    const std::lock_guard lock(mutex_);
    const auto job = jobs_.find(text_of(data, "job"));
    // Jobs' names are known to their two ends alone; the sender is the hub's word.
    if (job != jobs_.end() && job->second.device == sender) ready_.insert(job->first);
    // It may be that the job's name is not known here yet.
    if (job == jobs_.end()) ready_.insert(text_of(data, "job"));
    changed_.notify_all();
    return;
  }
  if (kind == "turn") {
    const std::lock_guard lock(mutex_);
    turn_over_ = text_of(data, "device").empty();
    changed_.notify_all();
    return;
  }
  const std::string device = text_of(data, "device");
  if (kind == "joined" || kind == "returned" || kind == "asks") {
    asked(client, device);
    happenings_.add(kind, label_of(device), "");
    if (kind != "asks") say(label_of(device) + " has " + kind);
  } else if (kind == "left") {
    happenings_.add("left", label_of(device), text_of(data, "why"));
    say(label_of(device) + " has left the room");
  } else if (kind == "message:stops") {
    happenings_.add("left", label_of(sender), "its worker stops");
    say(label_of(sender) + " stops");
  }
}

void Host::asked(hub::Client& client, const std::string& device) {
  const auto now = client.room(code());
  if (!now.ok()) return;
  const auto members = members_of(*now);
  std::string waiting;
  for (const Json& one : part_of(*now, "lobby")) {
    if (text_of(one, "device") == device) waiting = text_of(one, "name");
  }
  {
    const std::lock_guard lock(mutex_);
    for (const Member& member : members) labels_[member.device] = member.label;
    if (!waiting.empty()) labels_[device] = waiting;
  }
  if (waiting.empty()) return;
  say(waiting + " asks to join: tandem room " + code() + " --allow " + device + " (or --deny)");
}

void Host::carry_placements(hub::Client& client) {
  std::map<std::string, Json> now;
  {
    const std::lock_guard lock(mutex_);
    now.swap(placements_);
  }
  for (auto& [device, placement] : now) {
    const Status told = client.place(code(), device, placement);
    // Refused: the device has left, or this process is the host no more.
    const bool refused = client.status() >= 400 && client.status() < 500 && client.status() != 429;
    if (told.ok() || refused) continue;
    const std::lock_guard lock(mutex_);
    placements_.emplace(device, std::move(placement));  // unless there is a newer one
  }
}

void Host::carry() {
  auto client = connect(nullptr);
  auto keep = Clock::now() + kKeepTurn;
  for (;;) {
    int64_t token = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTellEvery, [&] { return stopping_.load(); });
      if (stopping_) break;
      token = turn_;
    }
    if (!client.ok() || client->status() == 401) client = connect(nullptr);
    if (!client.ok()) continue;
    carry_placements(*client);
    if (token != 0 && Clock::now() >= keep) {
      const auto kept = client->take_turn(code(), token);
      keep = Clock::now() + (kept.ok() ? std::chrono::seconds(kKeepTurn) : kRetry);
      if (!kept.ok() && client->status() == 409) {
        // The answer goes on: the devices serve whoever has a job of theirs.
        happenings_.add("turn_lost", "", kept.error().message);
        const std::lock_guard lock(mutex_);
        turn_ = 0;
      }
    }
  }
  if (!client.ok()) return;
  // Goodbye, in a time that a hub which does not answer can't stretch.
  std::atomic<bool> late{false};
  client->stop_on(&late);
  std::mutex done_mutex;
  std::condition_variable done_changed;
  bool done = false;
  std::thread clock([&] {
    std::unique_lock lock(done_mutex);
    if (!done_changed.wait_for(lock, kGoodbye, [&] { return done; })) late = true;
  });
  carry_placements(*client);
  for (const auto& [job, what] : jobs_) (void)client->cancel_job(job).ok();
  if (turn_ != 0) (void)client->end_turn(code(), turn_).ok();
  {
    const std::lock_guard lock(done_mutex);
    done = true;
  }
  done_changed.notify_all();
  clock.join();
}

}  // namespace tandem::room
