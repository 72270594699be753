// tandem worker: lends this process's memory and cores to hosts.
#include "ring/worker.h"

#include <signal.h>

#include <chrono>

#include "cli/cache.h"
#include "cli/commands.h"
#include "cli/fetch_flags.h"
#include "cli/session.h"
#include "cli/signals.h"

namespace tandem::cli {

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
  FetchFlags fetch_flags;
  bool child = false;
  Flags flags(
      "worker", "--listen HOST:PORT [FLAGS]",
      "Lends this machine's memory and cores: holds the layers that a host asks for and runs\n"
      "them. Without --key there is no encryption, and whoever reaches the address is served:\n"
      "use that in trusted networks only.");
  flags.add("--listen", "HOST:PORT", listen,
            "address to listen at (default: 127.0.0.1:7000); port 0 chooses one");
  flags.add_size("--memory", memory, "most memory for weights and KV caches (default: no limit)");
  flags.add("--threads", "N", threads, 1, 256, "threads (default: one a core)");
  flags.add("--models", "DIR", models,
            "folder of models held here already; others come from the host");
  flags.add_choice("--isa", "SET", isa, isa_names(),
                   "instruction set of the kernels (default: best); the answer is the same");
  flags.add("--experts-memory", "SIZE", experts, kExpertsMemoryHelp);
  add_cache_flag(flags, cache);
  add_key_flags(flags, key, identity);
  fetch_flags.add(flags);
  flags.add("--child", child, "quiet, and ended by the program that started it (for --local)");
  flags.add_example("tandem worker --listen 127.0.0.1:7001");
  flags.add_example("tandem worker --listen 0.0.0.0:7000 --memory 8G --models ~/models");
  if (const auto code = flags.parse(arguments)) return *code;

  ring::WorkerOptions options;
  options.listen = listen;
  options.memory = memory;
  options.threads = threads;
  options.models = models;
  const auto parsed = model::parse_isa(isa);
  if (!parsed.ok()) return flags.wrong_use(parsed.error().message);
  options.isa = *parsed;
  const auto limit = parse_experts_memory(experts);
  if (!limit.ok()) return flags.wrong_use(limit.error().message);
  options.experts_memory = *limit;
  for (const char* flag : {"--hub", "--peers", "--endpoint", "--token-file"}) {
    if (flags.given(flag) && fetch_flags.sources.empty()) {
      return flags.wrong_use(std::string(flag) + " needs --sources");
    }
  }
  if (!fetch_flags.sources.empty()) {
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
  auto worker = ring::Worker::start(std::move(options));
  if (!worker.ok()) return fail("worker", worker.error());
  write_out(ring::listening_line((*worker)->address()) + "\n");
  end_signals.wait();
  (*worker)->stop();
  if (*opened != nullptr) {
    // Less than the second that a host waits for its children.
    (*opened)->finish(std::chrono::steady_clock::now() + std::chrono::milliseconds(700), nullptr,
                      {});
  }
  return kSuccess;
}

}  // namespace tandem::cli
