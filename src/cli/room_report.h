// A room from the side of the commands that ask it for an answer: entered, its model found, and
// told what happens.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/session.h"
#include "room/deal.h"
#include "room/host.h"

namespace tandem::cli {

/// Enters the room that `given` names (a link or code, @FILE, or - for standard input) to ask it
/// for an answer, and waits for this process's turn if `turn`.
Result<std::shared_ptr<room::Host>> enter_room(const std::string& given, bool turn, bool quiet);

/// The room's model on this device: what -m names, or a model of the room's name in that folder,
/// beside the default model, or $TANDEM_MODEL. Sets weights, KV bits and context of `flags` to the
/// room's. Error: kNotFound, which says what the room runs.
Result<Model> open_room_model(const room::Host& room, ModelFlags& flags);
/// The model of the flags: of their room, which is entered, and whose turn is this process's then,
/// or as -m says.
Result<Model> open_model(ModelFlags& flags, std::shared_ptr<room::Host>& room);
/// Error: kInvalid, if the room was made for other content.
Status check_room_model(const room::Host& room, const weights::Manifest& manifest);
Result<ring::Objective> room_objective(const room::Host& room);
/// The room was made with devices standing by.
bool room_spares(const room::Host& room);
/// "LABEL gets no layers: WHY", a line each, of the devices that the plan does not know of.
std::string left_out_lines(const room::Deal& deal);
/// Devices without layers and why, as further sentences; empty if there are none.
std::string left_out_text(const room::Deal& deal);

/// What happened in a room from the `told`-th on, which counts on: the `events` of --json.
nlohmann::ordered_json room_events_json(room::Host& room, size_t& told);

/// A dealt room, and what it is told of while its devices load and compute. Thread-safe, but for
/// replan() and events(), which belong to the thread that asks.
class RoomReport {
 public:
  /// `options` are those that led to `deal`; what they refer to has to outlive this.
  RoomReport(std::shared_ptr<room::Host> host, room::DealOptions options, room::Deal deal);
  /// Tells the room that nobody asks any more.
  ~RoomReport();
  RoomReport(const RoomReport&) = delete;
  RoomReport& operator=(const RoomReport&) = delete;

  [[nodiscard]] std::vector<ring::RingWorker> workers() const {
    const std::lock_guard lock(mutex_);
    return deal_.workers;
  }
  /// Who gets which layers, and why others get none.
  [[nodiscard]] std::string plan_text() const;
  void loading(const ring::LoadEvent& event);
  void loaded(const std::vector<ring::StageReport>& stages);
  /// Figures of the laps so far.
  void laps(const std::vector<ring::StageReport>& stages, const std::string& state = "answering");
  /// True every two seconds: time for laps().
  bool due();
  Status answer_lobby(const std::string& device, bool let_in) {
    return host_->answer_lobby(device, let_in);
  }
  /// Deals the layers out anew, without the workers at these addresses: for RingOptions::replan.
  Result<std::vector<ring::RingWorker>> replan(const std::vector<std::string>& lost);
  /// Who is to stand by for whom: for RingOptions::choose_spares.
  std::vector<ring::RingWorker> choose_spares(const std::vector<ring::RingWorker>& workers);
  /// Devices may stand by, as the room was made and the user wants.
  [[nodiscard]] bool spares() const { return options_.spares; }
  /// Takes note of what happens to the ring.
  void happened(const ring::Event& event);
  /// What happened since the last call, for --json.
  nlohmann::ordered_json events();

 private:
  [[nodiscard]] std::string device_of(const std::string& label) const;

  void take(room::Deal deal);
  /// Takes note of how the device of `stage` reaches the next one.
  void saw_link(const std::string& from, const std::string& to, const ring::StageReport& stage);
  void loading_spare(const std::string& device, const ring::LoadEvent& event);
  /// Tells the room what a device holds, and what it stands by for.
  void place(const std::string& device, room::Json placement);

  std::shared_ptr<room::Host> host_;
  room::DealOptions options_;
  mutable std::mutex mutex_;  ///< guards what follows
  room::Deal deal_;
  /// Of devices that stand by or load to: layers, and whether they have them.
  std::map<std::string, std::map<std::string, bool>> standing_by_;
  std::map<std::string, room::Member> met_;  ///< members by the address that they were reached at
  std::map<std::string, room::Json> last_;   ///< placement by device
  std::map<std::string, int> phases_;
  room::Pairs relayed_;         ///< devices whose link was last seen to go by the relay
  room::Pairs parted_;          ///< … or through this host
  std::set<std::string> slow_;  ///< devices that became so, and were not lost since
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now();
  size_t told_ = 0;
};

/// Deals a room's layers out for an answer, and says unless `flags.quiet` who gets none and why.
/// `probe`: model, bits, context and the host's own stages; what it refers to has to outlive the
/// report. Errors: those of room::deal(), kInvalid (another model), kMemory (the room is short).
Result<std::shared_ptr<RoomReport>> deal_room(std::shared_ptr<room::Host> host,
                                              const ModelFlags& flags, ring::ProbeOptions probe);
/// A listener that tells `other` (which may be empty) and `room` (which may be null).
ring::Listener room_events(ring::Listener other, RoomReport* room);

}  // namespace tandem::cli
