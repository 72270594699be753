// tandem worker: lends this process's memory and cores to hosts.
#include "ring/worker.h"

#include <signal.h>
#if defined(__linux__)
#include <malloc.h>
#endif

#include <atomic>
#include <chrono>
#include <thread>

#include "cli/bandwidth.h"
#include "cli/cache.h"
#include "cli/commands.h"
#include "cli/fetch_flags.h"
#include "cli/hub_access.h"
#include "cli/models_cache.h"
#include "cli/observe.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/signals.h"
#include "fetch/shelf.h"
#include "ring/pass_memory.h"
#include "room/agent.h"
#include "room/device_folder.h"

namespace tandem::cli {
namespace {

/// What the program comes to take beside what it has when it starts: code that runs later, stacks,
/// connections, what memory is lost between blocks.
constexpr uint64_t kLater = uint64_t{20} << 20;

/// Has memory that was given back go to the system at once: the allocator would keep as much as the
/// largest tensor in each thread.
void hold_little_memory() {
#if defined(__GLIBC__) && defined(M_MMAP_THRESHOLD)
  ::mallopt(M_MMAP_THRESHOLD, 512 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

/// Slower than that a device only holds the others up.
constexpr uint64_t kLeastShareRate = ring::RangeServer::kLeastRate;

struct JoinFlags {
  std::string link;
  std::string name;
  std::string settings;
  room::SharingOptions sharing;
  std::string address;

  void add(Flags& flags) {
    flags.add("--join", "LINK", link,
              "lend to a room: its link or code, @FILE, or - for standard input");
    flags.add("--name", "NAME", name, "with --join: this device's name (default: the machine's)");
    flags.add("--settings", "FILE", settings, "with --join: TOML file of what is lent, and when");
    flags.add("--address", "HOST:PORT", address,
              "with --join: what others reach it by, such as a router's forwarded port");
    flags.add_size("--share-rate", sharing.bytes_per_second,
                   "with --join: bytes/s of weights given to others, 64K or more");
  }
  /// A flag that was given and means nothing without --join; or null.
  static const char* only(const Flags& flags) {
    for (const char* flag : {"--name", "--settings", "--address", "--share-rate"}) {
      if (flags.given(flag)) return flag;
    }
    return nullptr;
  }
};

void finish(weights::PackedCache* cache) {
  if (cache == nullptr) return;
  cache->finish(std::chrono::steady_clock::now() + std::chrono::milliseconds(700), nullptr, {});
}

/// As room::find_way(), with what this user's other device, the one that asks for answers, knows.
Result<room::Way> find_way(const hub::Home& home, const std::string& link) {
  auto own = room::find_way(home, link);
  if (own.ok() && !own->link.key.empty()) return own;
  TANDEM_ASSIGN(const hub::Home usual, hub::Home::open(hub::Home::usual_folder()));
  auto other = room::find_way(usual, link);
  if (!other.ok()) return own.ok() ? own : other;
  if (own.ok()) other->pass = own->pass;
  if (!own.ok()) other->pass.clear();  // it is good for one device alone
  return other;
}

Result<std::unique_ptr<room::Agent>> start_agent(const JoinFlags& flags,
                                                 const room::DeviceFolder& folder,
                                                 ring::WorkerOptions worker) {
  TANDEM_ASSIGN(const std::string link, secret_argument(flags.link));
  TANDEM_ASSIGN(hub::Home home, hub::Home::open(folder.path()));
  TANDEM_ASSIGN(room::Way way, find_way(home, link));
  room::AgentOptions options;
  options.name = folder.name();
  options.worker = std::move(worker);
  options.settings = flags.settings;
  options.sharing = flags.sharing;
  options.address = flags.address;
  options.cancel = &cancel_flag();
  options.bandwidth = [threads = options.worker.threads] {
    ThreadPool pool(threads);
    return ReadBandwidth(pool).measure();
  };
  options.waiting = [&home, &way] {
    note("waiting in the lobby of room " + way.link.code + " as device " +
         home.identity().device_id() + "\n");
  };
  return room::Agent::start(std::move(home), std::move(way), std::move(options));
}

int join_room(const JoinFlags& flags, ring::WorkerOptions worker, EndSignals& end_signals,
              const std::shared_ptr<weights::PackedCache>& cache) {
  worker.log = [](const std::string& line) { note(line + "\n"); };
  const auto folder =
      room::DeviceFolder::take(hub::Home::usual_folder(), flags.name, machine_name());
  if (!folder.ok()) return fail("worker", folder.error());
  // The lobby may keep it waiting for long, and only this thread hears the signals.
  Result<std::unique_ptr<room::Agent>> agent = Error{};
  std::atomic<bool> started{false};
  std::thread starter([&] {
    agent = start_agent(flags, *folder, std::move(worker));
    started = true;
  });
  while (!started && !cancel_flag()) end_signals.wait(std::chrono::milliseconds(20));
  starter.join();
  if (!agent.ok()) return fail("worker", agent.error());
  write_out(ring::listening_line((*agent)->address()) + "\n");
  note(folder->name() + " has joined\n");
  std::optional<std::string> ended;
  while (!cancel_flag() && !(ended = (*agent)->ended())) {
    end_signals.wait(std::chrono::seconds(1));
  }
  (*agent)->stop();
  finish(cache.get());
  if (ended) return fail("worker", Error{ErrorKind::kPeer, *ended});
  return kSuccess;
}

}  // namespace

int worker_command(Arguments arguments) {
  std::string listen = "127.0.0.1:7000";
  uint64_t memory = 0;
  uint32_t threads = cores();
  std::string models;
  std::string isa = "best";
  std::string cache;
  std::string experts;
  std::string key;
  std::string identity;
  ObserveFlags observe;
  FetchFlags fetch_flags;
  JoinFlags joining;
  bool child = false;
  Flags flags(
      "worker", "--join LINK | --listen HOST:PORT [FLAGS]",
      "Lends this machine's memory and cores, to a room with --join: holds the layers that a\n"
      "host asks for and runs them. Without --join and --key there is no encryption, and whoever\n"
      "reaches the address is served: use that in trusted networks only.");
  joining.add(flags);
  flags.add("--listen", "HOST:PORT", listen,
            "address to listen at (default: 127.0.0.1:7000; --join: all, port 0)");
  flags.add_size("--memory", memory, "most memory that this process takes (default: no limit)");
  flags.add("--threads", "N", threads, 1, 256, "threads (default: one a core)");
  flags.add("--models", "DIR", models,
            "folder of models held here already; others come from the host");
  flags.add_choice("--isa", "SET", isa, isa_names(),
                   "instruction set of the kernels (default: best); the answer is the same");
  flags.add("--experts-memory", "SIZE", experts, kExpertsMemoryHelp);
  add_cache_flag(flags, cache);
  add_key_flags(flags, key, identity);
  observe.add(flags);
  fetch_flags.add(flags);
  flags.add("--child", child, "quiet, and ended by the program that started it (for --local)");
  flags.add_example("tandem worker --join @room.link --memory 8G");
  flags.add_example("tandem worker --listen 127.0.0.1:7001");
  flags.add_example("tandem worker --listen 0.0.0.0:7000 --memory 8G --models ~/models");
  if (const auto code = flags.parse(arguments)) return *code;

  ring::WorkerOptions options;
  options.listen = listen;
  options.memory = memory;
  hold_little_memory();
  options.own_memory = ring::resident_memory() + kLater;
  if (memory != 0 && memory <= options.own_memory && !child) {
    note("--memory " + bytes_text(memory) + " leaves nothing for layers: the program takes " +
         bytes_text(options.own_memory) + " itself\n");
  }
  options.threads = threads;
  options.models = models;
  const auto parsed = model::parse_isa(isa);
  if (!parsed.ok()) return flags.wrong_use(parsed.error().message);
  options.isa = *parsed;
  const auto limit = parse_limit(experts, "--experts-memory");
  if (!limit.ok()) return flags.wrong_use(limit.error().message);
  options.experts_memory = *limit;
  for (const char* flag : {"--hub", "--peers", "--endpoint", "--token-file"}) {
    if (flags.given(flag) && fetch_flags.sources.empty() && joining.link.empty()) {
      return flags.wrong_use(std::string(flag) + " needs --sources or --join");
    }
  }
  const bool join = !joining.link.empty();
  if (join) {
    if (flags.given("--share-rate") && joining.sharing.bytes_per_second < kLeastShareRate) {
      return flags.wrong_use("--share-rate: expected at least " + std::to_string(kLeastShareRate) +
                             ", found " + std::to_string(joining.sharing.bytes_per_second) +
                             "; with --sources cache,host nothing is given");
    }
    // What a room loads is for its other devices too: a token of the owner's is no part of that
    // unless the owner says so.
    const auto sources =
        FetchSources::open(fetch_flags, fetch::all_sources(),
                           fetch_flags.sources.find("huggingface") != std::string::npos);
    if (!sources.ok()) return fail("worker", sources.error());
    const auto models_most = models_limit();
    if (!models_most.ok()) return fail("worker", models_most.error());
    joining.sharing.store = fetch::Store::usual_root();
    joining.sharing.limit = *models_most;
    joining.sharing.outside = [sources = *sources](const fetch::ModelName& model,
                                                   const std::atomic<bool>* cancel,
                                                   const auto& waiting) {
      return sources->of(model, "", cancel, waiting);
    };
    if (!fetch_flags.sources.empty()) {
      const auto own = fetch::parse_sources(fetch_flags.sources);
      if (own.ok()) joining.sharing.own = *own;
    }
  }
  if (!join && !fetch_flags.sources.empty()) {
    const auto sources = FetchSources::open(fetch_flags, {});
    if (!sources.ok()) return fail("worker", sources.error());
    if ((*sources)->any()) {
      options.fetch = stage_fetcher(*sources, [child](const std::string& line) {
        if (!child) note(line + "\n");
      });
    }
    options.tensors_of_host = (*sources)->allows(fetch::SourceKind::kHost);
  }
  EndSignals end_signals;
  auto opened = open_cache(cache, child);
  if (!opened.ok()) return flags.wrong_use(opened.error().message);
  options.cache = *opened;
  if (join) {
    if (!key.empty() || child) return flags.wrong_use("--join excludes --key and --child");
    if (!joining.address.empty()) {
      const auto address = wire::parse_address(joining.address);
      if (!address.ok()) return flags.wrong_use("--address: " + address.error().message);
    }
    if (!flags.given("--listen")) options.listen = "0.0.0.0:0";
    return join_room(joining, std::move(options), end_signals, *opened);
  }
  if (const char* flag = joining.only(flags)) {
    return flags.wrong_use(std::string(flag) + " needs --join");
  }
  if (key.empty() && !identity.empty()) return flags.wrong_use("--identity needs --key");
  const auto tls = open_tls(key, identity);
  if (!tls.ok()) return fail("worker", tls.error());
  options.tls = *tls;
  if (*tls != nullptr) note("this device is " + hex((*tls)->fingerprint()) + "\n");
  if (child) {
    // Ctrl-C goes to the whole group; the host decides what it means and ends its workers itself.
    ::signal(SIGINT, SIG_IGN);
  } else {
    options.log = [](const std::string& line) { note(line + "\n"); };
  }
  const auto events = observe.open_log();
  if (!events.ok()) return fail("worker", events.error());
  options.events = *events;
  auto worker = ring::Worker::start(std::move(options));
  if (!worker.ok()) return fail("worker", worker.error());
  const auto metrics = observe.serve([&served = **worker] { return served.metrics(); });
  if (!metrics.ok()) return fail("worker", metrics.error());
  events->write("listening", (*worker)->address());
  write_out(ring::listening_line((*worker)->address()) + "\n");
  end_signals.wait();
  (*worker)->stop();
  events->write("stopped", (*worker)->address());
  // Less than the second that a host waits for its children.
  finish(opened->get());
  return kSuccess;
}

}  // namespace tandem::cli
