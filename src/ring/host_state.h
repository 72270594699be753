// The inside of a Ring: its stations, and how they are put together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ring/host.h"
#include "ring/host_peer.h"
#include "ring/lap.h"
#include "ring/monitor.h"

namespace tandem::ring {

class RingState {
 public:
  explicit RingState(RingOptions options)
      : options_(std::move(options)), listener_(options_.listener) {}
  ~RingState();
  RingState(const RingState&) = delete;
  RingState& operator=(const RingState&) = delete;

  Status open();
  Result<model::HiddenStates> forward(model::HiddenStates hidden, uint32_t position, uint32_t want);
  Status rollback(uint32_t length);
  Result<uint32_t> go_back(uint32_t length);
  Status keep();
  [[nodiscard]] Result<std::vector<std::byte>> write_state() const;
  Status read_state(std::span<const std::byte> bytes);
  [[nodiscard]] bool recurrent() const { return recurrent_; }
  [[nodiscard]] size_t stage_count() const;
  Status reset();
  Status mark(wire::Control control, uint32_t slot);
  [[nodiscard]] uint32_t length() const { return length_; }
  std::vector<StageReport> stages();
  [[nodiscard]] bool survives() const { return options_.survive; }
  [[nodiscard]] bool wants_replan() const { return !slow_.empty() && options_.replan; }
  void listen(Listener listener);

 private:
  struct Mark {
    uint32_t length = 0;
    uint32_t floor = 0;
  };
  Status check_options();
  Status forget();
  Status recover(uint32_t position, uint32_t tokens);
  Status restore_own(uint32_t slot, const Mark& mark);
  Status flush();
  Status load_local();
  Result<std::unique_ptr<Station>> load_own(LayerRange layers);
  Status connect();
  // host_repair.cpp
  Status repair();
  void note_failure(const Error& failure);
  Status replace(std::vector<std::string>& lost, bool& hopeless);
  void take_spares();
  Status reconnect();
  Status reassign();
  Result<std::unique_ptr<Peer>> find_taker(size_t gone, std::string& reasons);
  Status deal(const std::vector<RingWorker>& workers);
  // host_spares.cpp
  void choose_spares();
  void load_spares();
  void take_arrivals();
  void drop_spares();
  [[nodiscard]] bool cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load();
  }
  Status establish();
  Status link();
  Result<bool> link_workers(size_t i);
  Status link_station(Station& station);
  Status activate_all();
  void watch();
  Status prove();
  Result<model::HiddenStates> lap(model::HiddenStates hidden, uint32_t position, uint32_t want,
                                  wire::Control control, uint32_t argument);
  void fence();
  void report_lap(uint32_t tokens, wire::Clock::time_point start,
                  const Result<model::HiddenStates>& result);
  void report_opening(wire::Clock::time_point start, const Status& status);
  PeerModel peer_model();
  [[nodiscard]] Status alive() const;

  void emit(Event::Kind kind, const std::string& peer, const std::string& text);
  void hand_out();
  /// Takes the monitor's events.
  void collect();

  RingOptions options_;
  Listener listener_;
  std::vector<Event> untold_;
  std::string slow_;  ///< address of a worker that has become slow
  /// How often a worker, or a link between two, failed lately.
  struct Strikes {
    uint32_t count = 0;
    wire::Clock::time_point last;
    uint32_t add();
    [[nodiscard]] bool many() const;
  };
  std::map<std::string, Strikes> strikes_;
  using Way = std::pair<std::string, std::string>;  ///< addresses of two workers
  std::map<Way, Strikes> broken_;
  std::set<Way> no_links_;  ///< ways that are not dialed directly any more
  std::set<Way> detours_;   ///< ways that are gone through the host at once
  bool repairing_ = false;
  bool opening_ = false;
  /// From worker `i` to the next one.
  [[nodiscard]] Way way(size_t i) const {
    return {peers_[i]->worker.address, peers_[i + 1]->worker.address};
  }
  std::mutex progress_mutex_;  ///< one call of options_.progress at a time
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Peer>> spares_;
  /// Spares that load beside the answers, on a thread of their own. `done` ones are the ring's
  /// again; the flag says that there are some.
  struct Arrival {
    std::unique_ptr<Peer> peer;
    Status status;
    bool done = false;
  };
  std::mutex arrivals_mutex_;  ///< guards `status` and `done` of arrivals_
  std::vector<Arrival> arrivals_;
  std::atomic<bool> arrived_{false};
  std::atomic<bool> spares_give_up_{false};
  bool choose_again_ = false;  ///< once those have loaded
  std::thread spare_loader_;
  std::vector<std::unique_ptr<Station>> own_;     ///< the host's stages
  std::vector<std::unique_ptr<Station>> remote_;  ///< made anew by link()
  std::vector<Station*> stations_;                ///< both, in the order of the layers
  std::vector<wire::Activate> keys_;              ///< of each peer
  std::atomic<bool> give_up_{false};
  wire::Wake wake_;
  std::unique_ptr<Monitor> monitor_;
  std::optional<Error> failure_;
  uint64_t activation_ = 0;
  uint64_t lap_ = 0;
  uint32_t length_ = 0;
  /// What the workers are still to be told, with the next frame.
  wire::Control pending_ = wire::Control::kNone;
  uint32_t pending_length_ = 0;
  std::map<uint32_t, Mark> marks_;  ///< by checkpoint
  bool recurrent_ = false;
  uint32_t batch_ = 0;  ///< tokens a frame of the last lap
  /// The first position, other than 0, that the stages can roll back to.
  uint32_t floor_ = 0;
  uint32_t window_floor_ = 0;  ///< the same for layers with a window
};

}  // namespace tandem::ring
