#include "ring/lap.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ring/states.h"

namespace tandem::ring {
namespace {

double milliseconds(wire::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

void copy_rows(const model::HiddenStates& from, uint32_t first, uint32_t count,
               model::HiddenStates& to, uint32_t at) {
  const size_t width = from.width;
  std::copy_n(from.values.begin() + static_cast<ptrdiff_t>(first * width), count * width,
              to.values.begin() + static_cast<ptrdiff_t>(at * width));
  std::copy_n(from.exponents.begin() + first, count, to.exponents.begin() + at);
}

}  // namespace

Lap::Lap(std::span<Station* const> stations, const LapOptions& options, Monitor& monitor,
         const wire::Wake& wake)
    : options_(options), monitor_(monitor), wake_(wake) {
  for (Station* station : stations) stops_.push_back({station, {}, {}});
}

uint32_t Lap::rows_back(const Batch& batch, size_t stop) const {
  return stop + 1 == stops_.size() ? batch.want : batch.tokens;
}

Result<model::HiddenStates> Lap::run(model::HiddenStates hidden) {
  const uint32_t tokens = hidden.tokens();
  input_ = std::move(hidden);
  output_.resize(options_.want, options_.width);
  for (uint32_t first = 0; first < tokens || batches_.empty(); first += options_.batch) {
    Batch batch;
    batch.first = first;
    batch.tokens = std::min(options_.batch, tokens - first);
    const uint32_t end = first + batch.tokens;
    const uint32_t unwanted = tokens - options_.want;
    batch.want = end - std::clamp(unwanted, first, end);
    batches_.push_back(std::move(batch));
  }
  if (batches_.size() == 1) {
    batches_[0].hidden = std::move(input_);
    batches_[0].placed = true;
  }
  while (finished_ < batches_.size()) {
    if (monitor_.events() && options_.on_events) options_.on_events();
    if (monitor_.failed()) return *monitor_.failure();
    if (cancelled()) return Error{ErrorKind::kCancelled, "stopped"};
    bool moved = false;
    TANDEM_TRY(advance(moved));
    if (!moved) TANDEM_TRY(wait());
  }
  return std::move(output_);
}

Status Lap::advance(bool& moved) {
  while (started_ < batches_.size() && started_ - finished_ < options_.in_flight) {
    arrive(started_++, 0);
  }
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].station->local()) continue;
    if (!stops_[i].flying.empty()) {
      const size_t before = stops_[i].flying.size();
      TANDEM_TRY(receive(i));
      moved = moved || stops_[i].flying.size() != before;
    }
    // What a full socket has not taken yet comes first: the rest waits here, not in its queue.
    while (!stops_[i].waiting.empty() && !stops_[i].station->in->pending()) {
      TANDEM_TRY(send(stops_[i], i + 1 == stops_.size()));
      moved = true;
    }
  }
  // The host's own layers last, one pass at a time, furthest first: then the workers have what they
  // can work on meanwhile, and what is nearly done makes room for new batches.
  for (size_t i = stops_.size(); i-- > 0;) {
    if (!stops_[i].station->local() || stops_[i].waiting.empty()) continue;
    moved = true;
    return compute(stops_[i], i + 1);
  }
  return {};
}

void Lap::arrive(size_t index, size_t next) {
  Batch& batch = batches_[index];
  if (next < stops_.size()) {
    stops_[next].waiting.push_back(index);
    return;
  }
  ++finished_;
  if (batch.want == 0) return;
  const uint32_t rows = batch.hidden.tokens();
  if (batches_.size() == 1 && rows == batch.want) {
    output_ = std::move(batch.hidden);
    return;
  }
  uint32_t before = 0;
  for (size_t i = 0; i < index; ++i) before += batches_[i].want;
  copy_rows(batch.hidden, rows - batch.want, batch.want, output_, before);
  batch.hidden = {};
}

Status Lap::compute(Stop& stop, size_t next) {
  const size_t index = stop.waiting.front();
  stop.waiting.pop_front();
  Batch& batch = batches_[index];
  if (!batch.placed) {
    batch.hidden.resize(batch.tokens, options_.width);
    copy_rows(input_, batch.first, batch.tokens, batch.hidden, 0);
    batch.placed = true;
  }
  if (batch.tokens > 0) {
    const auto start = wire::Clock::now();
    monitor_.computing(true);
    const Status status = stop.station->stage->run(*stop.station->sequence,
                                                   options_.position + batch.first, batch.hidden);
    monitor_.computing(false);
    monitor_.moved();
    if (!status.ok()) {
      return status.error().in("the host's layers " + text(stop.station->layers));
    }
    const auto took =
        std::chrono::duration_cast<std::chrono::microseconds>(wire::Clock::now() - start);
    stop.station->totals.add(batch.tokens, static_cast<uint64_t>(took.count()));
  }
  arrive(index, next);
  return {};
}

Status Lap::send(Stop& stop, bool last) {
  const size_t index = stop.waiting.front();
  stop.waiting.pop_front();
  Batch& batch = batches_[index];
  wire::Header header;
  header.type = wire::Type::kStates;
  header.lap = options_.number;
  header.position = options_.position + batch.first;
  header.tokens = batch.tokens;
  header.want = last ? batch.want : batch.tokens;
  if (index == 0) {
    header.control = options_.control;
    header.argument = options_.argument;
  }
  batch.sent = wire::Clock::now();
  const Status status =
      batch.placed ? send_states(*stop.station->in, header, batch.hidden, 0, batch.tokens)
                   : send_states(*stop.station->in, header, input_, batch.first, batch.tokens);
  batch.placed = true;
  if (!status.ok()) return monitor_.verdict(stop.station->peers.front(), status.error());
  stop.flying.push_back(index);
  stop.station->out->acknowledge();
  if (batches_.size() == 1) stop.station->expectation.sent(batch.tokens, batch.sent);
  return {};
}

Status Lap::receive(size_t at) {
  Stop& stop = stops_[at];
  Station& station = *stop.station;
  wire::Connection& link = *station.out;
  Peer* last = station.peers.back();
  while (!stop.flying.empty()) {
    const uint64_t before = link.bytes_in();
    const auto step = link.read([&](const wire::Header& header) -> Result<wire::Connection::Place> {
      if (header.type != wire::Type::kStates) {
        return invalid("sent a " + std::string(wire::name(header.type)) + " frame on a link");
      }
      if (header.lap < options_.number) {
        if (header.length >
            states_bytes(std::max(options_.batch, kMostTokensChosen), options_.width)) {
          return invalid("sent a late frame of " + std::to_string(header.length) + " bytes");
        }
        station.late.resize(header.length);
        return wire::Connection::Place{std::span(station.late), {}};
      }
      const Batch& batch = batches_[stop.flying.front()];
      if (header.lap != options_.number || header.tokens != batch.tokens ||
          header.position != options_.position + batch.first) {
        return invalid("sent lap " + std::to_string(header.lap) + " position " +
                       std::to_string(header.position) + " tokens " +
                       std::to_string(header.tokens) + ", expected lap " +
                       std::to_string(options_.number) + " position " +
                       std::to_string(options_.position + batch.first) + " tokens " +
                       std::to_string(batch.tokens));
      }
      return place_states(station.incoming, rows_back(batch, at), options_.width, header.length);
    });
    if (!step.ok() && step.error().kind != ErrorKind::kPeer) {
      return monitor_.blame(last, step.error());
    }
    if (!step.ok() || *step == wire::Connection::Step::kClosed) {
      return monitor_.verdict(
          last, step.ok() ? Error{ErrorKind::kPeer, "closed its link to the host"} : step.error());
    }
    // A part of a frame on a slow link is movement too.
    if (link.bytes_in() != before) monitor_.moved();
    if (*step == wire::Connection::Step::kNothing) return {};
    if (link.header().lap < options_.number) continue;
    const size_t index = stop.flying.front();
    Batch& batch = batches_[index];
    std::swap(batch.hidden, station.incoming);
    if (const Status status = check_states(batch.hidden); !status.ok()) {
      return monitor_.blame(last, status.error().in("sent nonsense"));
    }
    stop.flying.pop_front();
    if (batches_.size() == 1) {
      station.expectation.came(wire::Clock::now());
      const double beyond =
          milliseconds(wire::Clock::now() - batch.sent) - link.header().compute_us * 1e-3;
      station.hop_ms.add(beyond / static_cast<double>(station.peers.size() + 1));
    }
    arrive(index, at + 1);
  }
  return {};
}

Status Lap::watch(size_t at, wire::Clock::time_point until) {
  Stop& stop = stops_[at];
  while (!stop.flying.empty() && !monitor_.failed() && !monitor_.events() && !cancelled()) {
    if (stop.station->out->readable()) TANDEM_TRY(receive(at));
    if (!stop.flying.empty() && wire::Clock::now() >= until) {
      stop.station->expectation.missed();
      break;
    }
    ::sched_yield();
  }
  return {};
}

Status Lap::wait() {
  std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}};
  for (const Stop& stop : stops_) {
    if (stop.station->local()) continue;
    if (!stop.flying.empty()) polled.push_back({stop.station->out->fd(), POLLIN, 0});
    if (stop.station->in->pending()) polled.push_back({stop.station->in->fd(), POLLOUT, 0});
  }
  // A flag that another thread sets wakes nobody.
  const int timeout = options_.cancel == nullptr ? -1 : 50;
  std::optional<Expectation::Window> window;
  size_t due = 0;
  if (batches_.size() == 1 && polled.size() == 2) {
    while (stops_[due].flying.empty()) ++due;
    window = stops_[due].station->expectation.window(wire::Clock::now());
  }
  const int ready = window ? poll_until(polled.data(), polled.size(), window->from)
                           : ::poll(polled.data(), polled.size(), timeout);
  if (ready > 0 && polled[0].revents != 0) wake_.clear();
  if (ready == 0 && window) return watch(due, window->until);
  for (Stop& stop : stops_) {
    if (stop.station->local() || !stop.station->in->pending()) continue;
    const Status status = stop.station->in->flush();
    if (!status.ok()) return monitor_.verdict(stop.station->peers.front(), status.error());
  }
  return {};
}

}  // namespace tandem::ring
