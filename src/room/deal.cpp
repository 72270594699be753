#include "room/deal.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "ring/system_memory.h"
#include "room/machine.h"
#include "room/reach.h"
#include "room/spares.h"

namespace tandem::room {
namespace {

/// So often a device may go while the room is measured.
constexpr int kAttempts = 3;
/// For links by the relay, while an answer waits.
constexpr auto kRelayedTime = std::chrono::seconds(8);

MeasuredModel measured_model(const DealOptions& options) {
  const ring::ProbeOptions& probe = options.probe;
  return {weights::model_hash(*probe.manifest), static_cast<uint8_t>(probe.local.weights),
          static_cast<uint8_t>(probe.local.kv), probe.local.threads,
          std::string(model::name(probe.local.isa))};
}

class Dealer {
 public:
  Dealer(Host& host, const DealOptions& options) : host_(host), options_(options) {}

  Result<Deal> run() {
    for (int attempt = 0;; ++attempt) {
      deal_ = {};
      TANDEM_TRY(gather());
      // A room that is short whatever its devices' speed is said to be so at once.
      TANDEM_ASSIGN(Deal quick, planned(guessed()));
      if (quick.plan.shortage) return quick;
      TANDEM_TRY(find_ways());
      auto probe = options_.measure ? figures() : known_anyway();
      // Somebody left or says no, most likely: the next round goes without.
      const int most = kAttempts + static_cast<int>(failed_.size());
      if (!probe.ok() && options_.measure && probe.error().kind == ErrorKind::kPeer &&
          attempt + 1 < most) {
        host_.happenings().add("measuring_failed", "", probe.error().message);
        host_.say("measuring failed, again: " + probe.error().message);
        continue;
      }
      if (!probe.ok()) return probe.error();
      TANDEM_ASSIGN(Deal result, planned(std::move(*probe)));
      if (!options_.hire || result.plan.shortage) return result;
      TANDEM_ASSIGN(const bool all, hire(result));
      if (all || attempt + 1 == kAttempts) return result;
    }
  }

 private:
  void leave_out(const Member& member, const std::string& why) {
    deal_.left_out.emplace_back(member.label, why);
    host_.place(member.device, {{"why", why}});
  }

  /// Who is there and lends something.
  Status gather() {
    auto members = host_.members();
    const bool away = !members.ok() && members.error().kind == ErrorKind::kPeer;
    if (away && !options_.measure) members = host_.hired();
    if (!members.ok()) return members.error();
    for (const Member& member : *members) {
      if (!member.lends()) continue;
      std::string why = why_not(member);
      if (const auto without = options_.without.find(member.device);
          without != options_.without.end()) {
        why = without->second;
      }
      if (const auto failed = failed_.find(member.device); why.empty() && failed != failed_.end()) {
        why = failed->second;
      }
      if (why.empty()) {
        deal_.members.push_back(member);
      } else {
        leave_out(member, why);
      }
    }
    return {};
  }

  /// Takes those out for whom there is a reason; `why` is by index.
  void drop(const std::map<size_t, std::string>& why) {
    std::vector<Member> rest;
    std::vector<std::string> addresses;
    for (size_t i = 0; i < deal_.members.size(); ++i) {
      const auto reason = why.find(i);
      if (reason == why.end()) {
        rest.push_back(deal_.members[i]);
        addresses.push_back(addresses_[i]);
      } else {
        leave_out(deal_.members[i], reason->second);
      }
    }
    deal_.members = std::move(rest);
    addresses_ = std::move(addresses);
  }

  /// Directly, else through the hub.
  Result<std::string> way_to(const Member& member, const std::string& loopback) {
    auto direct = reach(member, *host_.tls(), loopback);
    if (direct.ok() || host_.cancelled()) return direct;
    auto relayed = reach_by_relay(member, *host_.tls(), host_.relay());
    if (!relayed.ok()) {
      return Error{ErrorKind::kPeer, direct.error().message + "; " + relayed.error().message};
    }
    host_.happenings().add("relayed", member.label, direct.error().message);
    return relayed;
  }

  /// What the ring knows a member by.
  [[nodiscard]] static ring::RingWorker ring_worker(const Member& member,
                                                    const std::string& address,
                                                    ring::LayerRange layers) {
    // Others may reach it where this device can't.
    const std::string others = is_relayed(address) ? way_for_others(member) : "";
    return {address, layers, member.certificate, member.label, others, relay_way(member.device)};
  }

  Status find_ways() {
    const size_t count = deal_.members.size();
    std::vector<Result<std::string>> found(count, std::string());
    std::vector<std::thread> threads;
    const std::string loopback = loopback_mark();
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] { found[i] = way_to(deal_.members[i], loopback); });
    }
    for (std::thread& thread : threads) thread.join();
    if (host_.cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
    std::map<size_t, std::string> unreachable;
    addresses_.assign(count, "");
    for (size_t i = 0; i < count; ++i) {
      if (found[i].ok()) {
        addresses_[i] = *found[i];
      } else {
        unreachable[i] = found[i].error().message;
      }
    }
    drop(unreachable);
    return {};
  }

  /// What is known, once what is not has been measured.
  Result<ring::RoomProbe> figures() {
    auto measured = Measured::load(host_.home().folder(), measured_model(options_));
    Missing missing = to_measure(measured);
    if (!missing.none()) {
      std::vector<std::string> devices;
      for (uint32_t i = 1; i <= deal_.members.size(); ++i) {
        if (missing.involves(i)) devices.push_back(deal_.members[i - 1].device);
      }
      TANDEM_ASSIGN(const auto failed, host_.hire(devices, "probe"));
      std::map<size_t, std::string> why;
      for (size_t i = 0; i < deal_.members.size(); ++i) {
        const auto one = failed.find(deal_.members[i].device);
        if (one != failed.end()) why[i] = one->second;
      }
      drop(why);
      if (!why.empty()) missing = to_measure(measured);
    }
    if (!missing.none()) {
      TANDEM_ASSIGN(const ring::RoomProbe probe, measure(missing));
      measured.put(deal_.members, addresses_, probe, missing);
      deal_.measured = true;
    }
    if (auto probe = measured.find(deal_.members, addresses_)) return std::move(*probe);
    return Error{ErrorKind::kPeer, "what was measured is not what was asked for"};
  }

  [[nodiscard]] Missing to_measure(const Measured& measured) const {
    Missing missing = measured.missing(deal_.members, addresses_);
    const auto before = measured.find(deal_.members, addresses_, true);
    if (!before) return missing;
    ring::RoomProbe today = *before;
    lend(today);
    for (uint32_t i = 0; i < today.devices.size(); ++i) {
      // Not a layer fitted then; now one may.
      const bool unmeasured = today.devices[i].alone.empty();
      if (!unmeasured || today.devices[i].memory <= before->devices[i].memory) continue;
      missing.devices[i] = true;
      for (uint32_t other = 0; other < today.devices.size(); ++other) {
        if (i != 0 && other != i) missing.links.insert(std::minmax(i, other));
      }
    }
    return missing;
  }

  /// Leaves out whoever was never measured, and takes links that were not for missing.
  Result<ring::RoomProbe> known_anyway() {
    auto measured = Measured::load(host_.home().folder(), measured_model(options_));
    std::map<size_t, std::string> unknown;
    for (size_t i = 0; i < deal_.members.size(); ++i) {
      if (!measured.find({deal_.members[i]}, {addresses_[i]}, true)) {
        unknown[i] = "came after the room was measured";
      }
    }
    drop(unknown);
    measure_relayed(measured);
    auto probe = measured.find(deal_.members, addresses_, true, options_.relayed);
    if (!probe) return Error{ErrorKind::kNotFound, "the room's host was not measured"};
    std::erase_if(probe->links, [&](const ring::LinkProbe& link) {
      return link.a != 0 && options_.parted.contains(pair_of(deal_.members[link.a - 1].device,
                                                             deal_.members[link.b - 1].device));
    });
    return std::move(*probe);
  }

  /// Measures links that go by the relay now, and were not measured so. An answer waits for it: if
  /// it can't be done in a few seconds, what is known of these links has to do.
  void measure_relayed(Measured& measured) {
    Missing missing;
    missing.devices.assign(deal_.members.size() + 1, false);
    missing.links = measured.unknown_relayed(deal_.members, addresses_, options_.relayed);
    if (missing.links.empty()) return;
    const auto hired = host_.hired();
    std::vector<std::string> idle;
    for (uint32_t i = 1; i <= deal_.members.size(); ++i) {
      const std::string& device = deal_.members[i - 1].device;
      const bool mine = std::any_of(hired.begin(), hired.end(),
                                    [&](const Member& one) { return one.device == device; });
      if (missing.involves(i) && !mine) idle.push_back(device);
    }
    if (!idle.empty()) {
      const auto failed = host_.hire(idle, "probe");
      if (!failed.ok() || !failed->empty()) return;
    }
    host_.happenings().add("measuring", "", "links by the relay");
    std::atomic<bool> stop{false};
    std::atomic<bool> done{false};
    std::thread timer([&] {
      const auto until = std::chrono::steady_clock::now() + kRelayedTime;
      while (!done && !stop) {
        stop = host_.cancelled() || std::chrono::steady_clock::now() > until;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    ring::ProbeOptions options = probe_options(missing);
    options.by_relay = [](uint32_t, uint32_t) { return true; };
    options.cancel = &stop;
    const auto probe = ring::probe_room(options);
    done = true;
    timer.join();
    if (probe.ok()) return measured.put_relayed(deal_.members, *probe);
    host_.happenings().add("measuring_failed", "", probe.error().message);
  }

  std::vector<ring::RingWorker> workers() const {
    std::vector<ring::RingWorker> workers;
    for (size_t i = 0; i < deal_.members.size(); ++i) {
      workers.push_back(ring_worker(deal_.members[i], addresses_[i], {}));
    }
    return workers;
  }

  /// `missing` has to outlive it.
  [[nodiscard]] ring::ProbeOptions probe_options(const Missing& missing) const {
    ring::ProbeOptions options = options_.probe;
    options.workers = workers();
    options.tls = host_.tls();
    options.dialler = host_.dialler();
    options.devices = missing.devices;
    options.links = [&](uint32_t a, uint32_t b) { return missing.links.contains({a, b}); };
    return options;
  }

  Result<ring::RoomProbe> measure(const Missing& missing) {
    std::string names;
    for (size_t i = 0; i < missing.devices.size(); ++i) {
      if (!missing.devices[i]) continue;
      names += (names.empty() ? "" : ", ") + (i == 0 ? "host" : deal_.members[i - 1].label);
    }
    host_.happenings().add("measuring", "", names.empty() ? "links" : names);
    ring::ProbeOptions options = probe_options(missing);
    std::mutex mutex;
    options.failed = [&](size_t worker, const Error& why) {
      const std::lock_guard lock(mutex);
      failed_[deal_.members[worker].device] = why.message;
    };
    return ring::probe_room(options);
  }

  /// As if all were alike: for whether the layers fit at all.
  [[nodiscard]] ring::RoomProbe guessed() {
    ring::RoomProbe probe;
    probe.host_ms = 1;
    probe.host_token_ms = 1;
    addresses_.assign(deal_.members.size(), "");
    for (size_t i = 0; i <= deal_.members.size(); ++i) {
      ring::DeviceProbe device;
      device.id = i == 0 ? "host" : deal_.members[i - 1].label;
      device.layers = {0, 1};
      device.alone = {{1, 1, {1000000, 1000000, 1000000}}};
      probe.devices.push_back(std::move(device));
    }
    for (uint32_t b = 1; b < probe.devices.size(); ++b) {
      for (uint32_t a = 0; a < b; ++a) {
        probe.links.push_back({a, b, {1000000, 0, 0}, {100000000, 0, 0}});
      }
    }
    return probe;
  }

  /// What the devices lend today. Those of one machine without limits share what it has.
  void lend(ring::RoomProbe& probe) const {
    const std::string here = machine_mark();
    const std::optional<uint64_t>& own = options_.probe.host_memory;
    std::map<std::string, std::pair<uint64_t, uint32_t>> shared;  // bytes promised, sharers
    if (!own) ++shared[here].second;
    if (own) shared[here].first += *own;
    for (const Member& member : deal_.members) {
      if (member.limit == 0) ++shared[member.machine].second;
      if (member.limit != 0) shared[member.machine].first += member.limit;
    }
    const auto share = [&](uint64_t most, const std::string& machine) {
      const auto& [promised, sharers] = shared[machine];
      return (most - std::min(most, promised)) / std::max(1U, sharers);
    };
    ring::DeviceProbe& host = probe.devices.front();
    const uint64_t ends = model::ends_bytes(options_.probe.config, options_.probe.local.weights);
    host.could_lend = ring::available_memory();
    host.memory = std::max(own ? *own : share(host.could_lend, here), ends);
    for (size_t i = 0; i < deal_.members.size(); ++i) {
      const Member& member = deal_.members[i];
      ring::DeviceProbe& device = probe.devices[i + 1];
      device.could_lend = member.could_lend;
      device.memory = member.limit == 0 ? share(member.memory, member.machine) : member.memory;
      if (member.limit == 0) device.could_lend = device.memory;
    }
  }

  /// Layers of this model whose weights a device has already.
  [[nodiscard]] std::vector<ring::LayerRange> held(const Member& member) const {
    std::vector<ring::LayerRange> layers;
    const Digest model = weights::model_hash(*options_.probe.manifest);
    for (const Held& held : member.held) {
      if (held.model_hash != model) continue;
      for (ring::LayerRange range : held.layers) {
        range.last = std::min(range.last, options_.probe.config.layers);
        if (range.first < range.last) layers.push_back(range);
      }
    }
    return layers;
  }

  Result<Deal> planned(ring::RoomProbe probe) {
    lend(probe);
    Deal result = deal_;
    result.input = ring::plan_input(options_.probe, probe);
    for (size_t i = 0; i < deal_.members.size(); ++i) {
      result.input.devices[i + 1].cached = held(deal_.members[i]);
    }
    result.input.objective = options_.objective;
    result.input.prompt = options_.prompt;
    TANDEM_ASSIGN(result.plan, ring::plan(result.input));
    for (const ring::PlanStage& stage : result.plan.stages) {
      if (stage.device == 0) continue;
      const Member& member = result.members[stage.device - 1];
      result.workers.push_back(ring_worker(member, addresses_[stage.device - 1], stage.layers));
    }
    if (options_.spares && !result.plan.shortage) {
      for (uint32_t device = 1; device < result.input.devices.size(); ++device) {
        const bool used = std::any_of(result.plan.stages.begin(), result.plan.stages.end(),
                                      [&](const auto& stage) { return stage.device == device; });
        const Member& member = result.members[device - 1];
        if (used || addresses_[device - 1].empty()) continue;
        result.idle.push_back({device, ring_worker(member, addresses_[device - 1], {})});
      }
    }
    return result;
  }

  /// False if one of them does not take its job: it is left out the next time.
  Result<bool> hire(Deal& result) {
    std::vector<std::string> devices;
    for (const ring::PlanStage& stage : result.plan.stages) {
      if (stage.device != 0) devices.push_back(result.members[stage.device - 1].device);
    }
    const size_t needed = devices.size();
    keep_useful(result);
    for (const Idle& idle : result.idle) devices.push_back(device_of(result, idle));
    TANDEM_ASSIGN(const auto failed, host_.hire(devices, "stage"));
    std::erase_if(result.idle,
                  [&](const Idle& idle) { return failed.contains(device_of(result, idle)); });
    devices.resize(needed);
    bool all = true;
    for (const std::string& device : devices) {
      const auto why = failed.find(device);
      if (why == failed.end()) continue;
      failed_[device] = why->second;
      all = false;
    }
    return all;
  }

  static const std::string& device_of(const Deal& deal, const Idle& idle) {
    return deal.members[idle.device - 1].device;
  }

  /// Of the idle, those that would stand by now; during an answer only those that hold a job
  /// already, since nobody waits for others then.
  void keep_useful(Deal& result) {
    if (!options_.measure) {
      const auto hired = host_.hired();
      std::erase_if(result.idle, [&](const Idle& idle) {
        return std::none_of(hired.begin(), hired.end(), [&](const Member& member) {
          return member.device == device_of(result, idle);
        });
      });
    }
    const auto chosen = choose_spares(result, result.workers);
    std::erase_if(result.idle, [&](const Idle& idle) {
      return std::none_of(chosen.begin(), chosen.end(),
                          [&](const auto& spare) { return spare.address == idle.worker.address; });
    });
  }

  Host& host_;
  const DealOptions& options_;
  Deal deal_;
  std::vector<std::string> addresses_;  ///< of deal_.members; empty before find_ways()
  std::map<std::string, std::string> failed_;
};

}  // namespace

void age_figures(const Host& host, const DealOptions& options, const std::string& device) {
  Measured::load(host.home().folder(), measured_model(options)).age(device);
}

Result<Deal> deal(Host& host, const DealOptions& options) {
  TANDEM_ASSIGN(Deal result, Dealer(host, options).run());
  for (const auto& [device, reason] : result.plan.left_out) {
    if (device == 0) continue;
    const Member& member = result.members[device - 1];
    host.place(member.device, {{"why", std::string(ring::name(reason))}});
  }
  for (const ring::PlanStage& stage : result.plan.stages) {
    if (stage.device == 0 || !options.hire) continue;
    host.place(result.members[stage.device - 1].device,
               {{"layers", ring::text(stage.layers)},
                {"state", "planned"},
                {"bytes", stage.weight_bytes + stage.state_bytes}});
  }
  return result;
}

}  // namespace tandem::room
