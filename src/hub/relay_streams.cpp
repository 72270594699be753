#include "hub/relay_streams.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>

#include "hub/secret.h"

namespace tandem::hub {
namespace {

constexpr size_t kMaxStreams = 256;
constexpr size_t kMaxAnswers = 32;
constexpr auto kAnswerTime = std::chrono::seconds(5);

/// Bytes of one direction on their way.
struct Direction {
  std::array<char, 65536> bytes{};
  size_t begin = 0;
  size_t end = 0;
  bool ended = false;     ///< nothing more comes in
  bool finished = false;  ///< and the other side was told so
  [[nodiscard]] bool empty() const { return begin == end; }
  [[nodiscard]] std::string_view waiting() const { return {bytes.data() + begin, end - begin}; }
  void taken(size_t count) {
    begin += count;
    if (empty()) begin = end = 0;
  }
};

}  // namespace

struct RelayStreams::Stream {
  Stream(Channel to_hub, wire::Socket socket, std::string first)
      : channel(std::move(to_hub)), local(std::move(socket)), early(std::move(first)) {}
  ~Stream() {
    end();
    if (thread.joinable()) thread.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void end() {
    channel.shutdown();
    ::shutdown(local.fd(), SHUT_RDWR);
  }
  void run() {
    while (step()) {
    }
    end();
    done = true;
  }
  /// Moves what can be moved, or waits. False: the stream is over.
  bool step();
  bool from_hub(bool& moved);
  bool to_hub(bool& moved);
  bool wait();

  Channel channel;
  wire::Socket local;
  std::string early;
  Direction down;        ///< from the hub
  Direction up;          ///< to the hub
  bool hung_up = false;  ///< the local end is closed in both directions
  std::atomic<bool> done{false};
  std::thread thread;
};

bool RelayStreams::Stream::from_hub(bool& moved) {
  if (down.empty() && !early.empty()) {
    const size_t count = std::min(early.size(), down.bytes.size());
    std::copy_n(early.begin(), count, down.bytes.begin());
    early.erase(0, count);
    down.end = count;
  }
  if (down.empty() && !down.ended) {
    const auto count = channel.try_read(down.bytes, down.ended);
    if (!count.ok()) return false;
    down.end = *count;
    moved = moved || *count > 0 || down.ended;
  }
  if (!down.empty()) {
    const std::string_view bytes = down.waiting();
    const ssize_t sent =
        ::send(local.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (sent > 0) down.taken(static_cast<size_t>(sent));
    moved = moved || sent > 0;
  }
  if (down.ended && down.empty() && !down.finished) {
    ::shutdown(local.fd(), SHUT_WR);
    down.finished = true;
  }
  return true;
}

bool RelayStreams::Stream::to_hub(bool& moved) {
  if (up.empty() && !up.ended) {
    const ssize_t got = ::recv(local.fd(), up.bytes.data(), up.bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (got >= 0) {
      up.end = static_cast<size_t>(got);
      up.ended = got == 0;
      moved = true;
    }
  }
  if (!up.empty()) {
    const auto sent = channel.try_write(up.waiting());
    if (!sent.ok()) return false;
    up.taken(*sent);
    moved = moved || *sent > 0;
  }
  if (up.ended && up.empty() && !up.finished) {
    channel.finish();
    up.finished = true;
  }
  return true;
}

bool RelayStreams::Stream::wait() {
  std::array<pollfd, 2> polled{};
  const auto events = [](bool in, bool out) {
    return static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0));
  };
  polled[0] = {channel.fd(), events(down.empty() && !down.ended, !up.empty()), 0};
  polled[1] = {hung_up ? -1 : local.fd(), events(up.empty() && !up.ended, !down.empty()), 0};
  // Nothing to wait for at the hub's side is asked about there: an end would wake this for ever.
  if (polled[0].events == 0) polled[0].fd = -1;
  if (polled[0].fd < 0 && polled[1].fd < 0) return false;
  if (::poll(polled.data(), polled.size(), -1) < 0) return errno == EINTR;
  hung_up = hung_up || (polled[1].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
  return true;
}

bool RelayStreams::Stream::step() {
  bool moved = false;
  if (!from_hub(moved) || !to_hub(moved)) return false;
  if (down.finished && up.finished) return false;
  if (hung_up && up.finished) return false;  // nobody is left to read
  return moved || wait();
}

struct RelayStreams::Answer {
  std::atomic<bool> done{false};
  std::thread thread;
};

RelayStreams::RelayStreams(std::function<Client()> connect, std::string code)
    : connect_(std::move(connect)), code_(std::move(code)) {}

RelayStreams::~RelayStreams() {
  std::list<std::unique_ptr<Answer>> answers;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  for (const auto& answer : answers) answer->thread.join();
  const std::lock_guard lock(mutex_);
  streams_.clear();
}

/// With mutex_ held.
void RelayStreams::reap() {
  streams_.remove_if([](const auto& stream) { return stream->done.load(); });
  answers_.remove_if([](const auto& answer) {
    if (!answer->done) return false;
    answer->thread.join();
    return true;
  });
}

size_t RelayStreams::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(),
                                           [](const auto& stream) { return !stream->done; }));
}

Result<wire::Socket> RelayStreams::carry(Channel channel, std::string early) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Error{ErrorKind::kIo, "the system gives no more sockets"};
  }
  wire::Socket ours(ends[0]);
  wire::Socket theirs(ends[1]);
  const std::lock_guard lock(mutex_);
  reap();
  if (streams_.size() >= kMaxStreams) {
    return Error{ErrorKind::kMemory, "256 streams pass the relay already"};
  }
  streams_.push_back(
      std::make_unique<Stream>(std::move(channel), std::move(ours), std::move(early)));
  Stream& stream = *streams_.back();
  stream.thread = std::thread([&stream] { stream.run(); });
  return theirs;
}

Result<wire::Socket> RelayStreams::call(const std::string& device,
                                        std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string name = make_token();
  Client client = connect_();
  client.be_patient_for(timeout);
  TANDEM_TRY(client.publish(code_, "relay", device, {{"channel", name}}));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  std::string early;
  TANDEM_ASSIGN(Channel channel, client.relay(code_, device, name, early,
                                              std::max(left, std::chrono::milliseconds(1))));
  return carry(std::move(channel), std::move(early));
}

bool RelayStreams::answer(const Json& event, const std::function<void(wire::Socket)>& accept) {
  const auto text = [](const Json& object, const char* name) -> std::string {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (text(event, "kind") != "message:relay" || text(event, "to").empty()) return false;
  const std::string sender = text(event, "sender");
  const std::string name = event.contains("data") ? text(event["data"], "channel") : "";
  if (sender.empty() || name.empty() || name.size() > 64) return false;
  const std::lock_guard lock(mutex_);
  reap();
  if (answers_.size() >= kMaxAnswers) return false;
  answers_.push_back(std::make_unique<Answer>());
  Answer& answer = *answers_.back();
  answer.thread = std::thread([this, &answer, sender, name, accept] {
    std::string early;
    auto channel = connect_().relay(code_, sender, name, early, kAnswerTime);
    if (channel.ok()) {
      auto socket = carry(std::move(*channel), std::move(early));
      if (socket.ok()) accept(std::move(*socket));
    }
    answer.done = true;
  });
  return true;
}

}  // namespace tandem::hub
