#include "ring/meter.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace tandem::ring {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kFillWidth = 64;
/// Passes begin at most so many tokens past the position asked for, since attention takes longer
/// the further on it is.
constexpr uint32_t kSpan = 256;
constexpr auto kLinkTime = 5s;  // for one measurement of a link, and then it is given up
constexpr int kRoundTrips = 15;
/// Before each round trip: a lap's frame finds threads that wait since the last one, and processors
/// that do other things or sleep.
constexpr auto kRest = 2ms;
constexpr int kTransfers = 5;
constexpr uint64_t kFirstTransfer = 64u << 10;
constexpr uint64_t kMostTransfer = 8u << 20;
constexpr double kTransferSeconds = 0.05;

uint64_t nanoseconds(wire::Clock::duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(1, std::chrono::nanoseconds(duration).count()));
}

Status await_echo(wire::Connection& connection, wire::Clock::time_point deadline) {
  TANDEM_ASSIGN(const wire::Header header, connection.receive_until(deadline, wire::kMaxEchoBytes));
  if (header.type == wire::Type::kEcho) return {};
  return invalid("answered an echo with a " + std::string(wire::name(header.type)) + " frame");
}

/// Time until the answer to the last of `bytes` bytes has come.
Result<uint64_t> transfer(wire::Connection& connection, uint64_t bytes,
                          wire::Clock::time_point deadline) {
  const auto start = wire::Clock::now();
  do {
    const uint64_t part = std::min<uint64_t>(bytes, wire::kMaxEchoBytes - 4);
    bytes -= part;
    const wire::Echo echo{bytes == 0 ? 4u : 0u, static_cast<uint32_t>(part)};
    TANDEM_TRY(connection.send_until(deadline, {.type = wire::Type::kEcho}, echo.encode()));
  } while (bytes > 0);
  TANDEM_TRY(await_echo(connection, deadline));
  return nanoseconds(wire::Clock::now() - start);
}

}  // namespace

wire::Spread spread(std::vector<uint64_t> values) {
  for (uint64_t& value : values) value = std::max<uint64_t>(value, 1);
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

StageMeter::StageMeter(model::Stage& stage, uint32_t hidden_size, uint32_t context)
    : stage_(stage), hidden_size_(hidden_size), context_(context) {}

Status StageMeter::begin(wire::Measure request) {
  const uint64_t widest = *std::max_element(request.widths.begin(), request.widths.end());
  if (request.position + 2 * widest > context_) {
    return invalid("asked to measure passes of " + std::to_string(widest) +
                   " tokens from position " + std::to_string(request.position) +
                   " in a context of " + std::to_string(context_));
  }
  if (request.position != request_.position) sequence_.reset();
  request_ = std::move(request);
  measured_ = {};
  if (sequence_ == nullptr) sequence_ = stage_.new_sequence(context_);
  return {};
}

Result<uint64_t> StageMeter::pass(uint32_t tokens) {
  model::HiddenStates hidden;
  hidden.resize(tokens, hidden_size_);
  for (uint16_t& value : hidden.values) {
    // Values between 0.5 and 2 of either sign: what is run depends on the numbers only where
    // experts are chosen, and there they should not be all the same.
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<uint32_t>(random_ >> 40);
    value = static_cast<uint16_t>(0x3800 + (bits & 0x7ff) + ((bits & 0x800) << 4));
  }
  const auto start = wire::Clock::now();
  TANDEM_TRY(stage_.run(*sequence_, sequence_->length(), hidden));
  return nanoseconds(wire::Clock::now() - start);
}

Result<bool> StageMeter::step() {
  const uint32_t width = request_.widths[measured_.widths.size()];
  const uint32_t length = sequence_->length();
  if (length < request_.position) {
    TANDEM_TRY(pass(std::min(kFillWidth, request_.position - length)));
    return false;
  }
  if (width > context_ - length || length > request_.position + kSpan) {
    sequence_ = stage_.new_sequence(context_);
    return false;
  }
  TANDEM_ASSIGN(const uint64_t took, pass(width));
  if (warmed_ < request_.warm_up) {
    ++warmed_;
    return false;
  }
  times_.push_back(took);
  spent_ += took;
  const bool enough = times_.size() >= request_.repeats ||
                      (times_.size() >= 2 && spent_ / 1000000 >= request_.budget_ms);
  if (!enough) return false;
  measured_.widths.push_back({width, static_cast<uint32_t>(times_.size()), spread(times_)});
  warmed_ = 0;
  spent_ = 0;
  times_.clear();
  return measured_.widths.size() == request_.widths.size();
}

Result<wire::LinkTested> measure_link(wire::Connection& connection) {
  const auto deadline = wire::Clock::now() + kLinkTime;
  wire::LinkTested result;
  std::vector<uint64_t> trips;
  TANDEM_TRY(transfer(connection, 1, deadline));  // warms up
  for (int i = 0; i < kRoundTrips; ++i) {
    std::this_thread::sleep_for(kRest);
    TANDEM_ASSIGN(const uint64_t took, transfer(connection, 0, deadline));
    trips.push_back(took);
    // A slow link's few trips say enough.
    if (i >= 2 && wire::Clock::now() > deadline - kLinkTime / 2) break;
  }
  result.rtt_ns = spread(trips);
  std::vector<uint64_t> speeds;
  uint64_t bytes = kFirstTransfer;
  for (int i = 0; i < kTransfers; ++i) {
    TANDEM_ASSIGN(const uint64_t took, transfer(connection, bytes, deadline));
    // What the last byte's way back takes is not transfer.
    const double seconds =
        static_cast<double>(std::max(took - std::min(took, result.rtt_ns.median), took / 10)) *
        1e-9;
    const double speed = static_cast<double>(bytes) / seconds;
    if (i > 0 || seconds > kTransferSeconds) speeds.push_back(static_cast<uint64_t>(speed));
    bytes = static_cast<uint64_t>(std::clamp(speed * kTransferSeconds,
                                             static_cast<double>(kFirstTransfer) / 4,
                                             static_cast<double>(kMostTransfer)));
    if (!speeds.empty() && wire::Clock::now() > deadline - kLinkTime / 2) break;
  }
  result.bytes_per_second = spread(speeds);
  return result;
}

Status answer_echo(wire::Connection& connection) {
  TANDEM_ASSIGN(const wire::Echo echo, wire::Echo::decode(connection.payload()));
  if (echo.answer == 0) return {};
  return connection.send({.type = wire::Type::kEcho}, wire::Echo{0, echo.answer - 4}.encode());
}

}  // namespace tandem::ring
