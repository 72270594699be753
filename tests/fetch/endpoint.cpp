#include "fetch/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/hash.h"

namespace tandem::fetch_test {
namespace {

constexpr uint64_t kChunk = uint64_t{4} << 20;

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string header(int status, const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " X\r\n";
  for (const auto& [name, value] : fields) text += name + ": " + value + "\r\n";
  // Twice, as real servers say it.
  return text + "Vary: Origin\r\nVary: Accept\r\n\r\n";
}

}  // namespace

std::string sha256_text(const std::string& bytes) {
  return hex(sha256(bytes));
}

Endpoint::Endpoint(std::map<std::string, std::string> files) {
  for (auto& [name, bytes] : files) change(name, std::move(bytes));
  for (size_t i = 0; i < 2; ++i) {
    listeners_[i] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool ok =
        ::bind(listeners_[i], reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(listeners_[i], 64) == 0 &&
        ::getsockname(listeners_[i], reinterpret_cast<sockaddr*>(&address), &size) == 0;
    if (!ok) std::abort();
    ports_[i] = ntohs(address.sin_port);
  }
  accepting_ = std::thread([this] { accept_all(); });
}

Endpoint::~Endpoint() {
  stop_ = true;
  accepting_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (const int listener : listeners_) ::close(listener);
}

std::string Endpoint::address(int port) const {
  return "http://127.0.0.1:" + std::to_string(ports_.at(static_cast<size_t>(port)));
}

void Endpoint::accept_all() {
  while (!stop_) {
    std::array<pollfd, 2> waiting{{{listeners_[0], POLLIN, 0}, {listeners_[1], POLLIN, 0}}};
    if (::poll(waiting.data(), 2, 50) <= 0) continue;
    for (size_t i = 0; i < 2; ++i) {
      if (waiting[i].revents == 0) continue;
      const int socket = ::accept4(listeners_[i], nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) continue;
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket, i] { serve(socket, i == 1); });
    }
  }
}

void Endpoint::serve(int socket, bool storage) {
  std::string held;
  bool keep = true;
  while (keep && !stop_) {
    size_t end = 0;
    while ((end = held.find("\r\n\r\n")) == std::string::npos) {
      std::array<char, 8192> buffer{};
      const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), 0);
      if (count <= 0) {
        keep = false;
        break;
      }
      held.append(buffer.data(), static_cast<size_t>(count));
    }
    if (!keep) break;
    Request request;
    request.storage = storage;
    std::string text = held.substr(0, end + 2);
    held.erase(0, end + 4);
    const auto first_space = text.find(' ');
    std::string target =
        text.substr(first_space + 1, text.find(' ', first_space + 1) - first_space - 1);
    const auto question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string::npos) request.query = target.substr(question + 1);
    for (size_t at = text.find("\r\n") + 2; at < text.size();) {
      const size_t stop = text.find("\r\n", at);
      const size_t colon = text.find(": ", at);
      std::string name = text.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      request.fields[name] = text.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    if (const auto range = request.fields.find("range"); range != request.fields.end()) {
      const auto dash = range->second.find('-');
      request.first = std::stoull(range->second.substr(6, dash - 6));
      request.end = std::stoull(range->second.substr(dash + 1)) + 1;
    }
    for (const char* prefix : {"/org/name/resolve/", "/v1/models/name/", "/blob/"}) {
      if (!request.path.starts_with(prefix)) continue;
      request.file = request.path.substr(request.path.rfind('/') + 1);
    }
    answer(socket, request, keep);
  }
  const std::lock_guard lock(mutex_);
  sockets_.remove(socket);
  ::close(socket);
}

void Endpoint::answer(int socket, const Request& request, bool& keep) {
  std::shared_ptr<const std::string> bytes;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    if (const auto file = files_.find(request.file); file != files_.end()) bytes = file->second;
  }
  const Fault bad = fault ? fault(request) : Fault();
  const auto refuse = [&](int status, std::vector<std::pair<std::string, std::string>> fields) {
    const std::string body = "<html>refused</html>";
    fields.emplace_back("Content-Length", std::to_string(body.size()));
    keep = send_all(socket, header(status, fields) + body);
  };
  if (bad.kind == Fault::Kind::kStatus) return refuse(bad.status, bad.fields);
  const auto authorization = request.fields.find("authorization");
  const bool known = token.empty() || (authorization != request.fields.end() &&
                                       authorization->second == "Bearer " + token);
  if (!request.storage && !known) {
    return refuse(401, {{"X-Error-Code", "GatedRepo"},
                        {"X-Error-Message", "Access to model org/name is restricted."}});
  }
  if (bytes == nullptr) return refuse(404, {{"X-Error-Code", "EntryNotFound"}});
  const std::string other = bad.kind == Fault::Kind::kOtherTag ? "other" : "";
  if (request.query == "chunks=1") {
    if (!chunk_hashes) return refuse(404, {});
    std::string body = R"({"chunk_bytes": 4194304, "sha256": [)";
    for (uint64_t at = 0; at == 0 || at < bytes->size(); at += kChunk) {
      body += (at == 0 ? "\"" : ", \"") + sha256_text(bytes->substr(at, kChunk)) + "\"";
    }
    body += "]}";
    keep = send_all(socket, header(200, {{"Content-Length", std::to_string(body.size())}}) + body);
    return;
  }
  const std::string tag = sha256_text(other + *bytes);
  if (!request.storage && request.path.starts_with("/org") &&
      request.file.ends_with(".safetensors")) {
    keep = send_all(
        socket,
        header(302, {{"Location", storage_url() + "/blob/" + request.file + "?signature=s3cret"},
                     {"X-Linked-Size", std::to_string(bytes->size())},
                     {"X-Linked-ETag", "\"" + tag + "\""},
                     {"X-Repo-Commit", commit},
                     {"Content-Length", "0"}}));
    return;
  }
  std::vector<std::pair<std::string, std::string>> fields{
      {"ETag", "\"" + tag.substr(0, 40) + (request.storage ? "-storage\"" : "\"")}};
  if (request.path.starts_with("/org")) fields.emplace_back("X-Repo-Commit", commit);
  if (bad.kind == Fault::Kind::kChunked) {
    fields.emplace_back("Transfer-Encoding", "chunked");
    std::string body;
    for (size_t at = 0; at < bytes->size(); at += 7) {
      const std::string part = bytes->substr(at, 7);
      body += std::to_string(part.size()) + ";x=y\r\n" + part + "\r\n";
    }
    keep = send_all(socket, header(200, fields) + body + "0\r\nTrailer: x\r\n\r\n");
    return;
  }
  uint64_t first = request.first;
  uint64_t end = std::min<uint64_t>(request.end, bytes->size());
  int status = 206;
  if (request.end == 0 || bad.kind == Fault::Kind::kNoRanges) {
    status = 200;
    first = 0;
    end = bytes->size();
  } else if (first >= bytes->size()) {
    return refuse(416, {{"Content-Range", "bytes */" + std::to_string(bytes->size())}});
  }
  if (bad.kind == Fault::Kind::kShort) end = std::min(end, first + bad.at);
  if (status == 206) {
    const uint64_t shift = bad.kind == Fault::Kind::kWrongRange ? 1 : 0;
    fields.emplace_back("Content-Range", "bytes " + std::to_string(first + shift) + "-" +
                                             std::to_string(end - 1 + shift) + "/" +
                                             std::to_string(bytes->size() + shift));
  }
  fields.emplace_back("Content-Length", std::to_string(end - first));
  keep = send_all(socket, header(status, fields));
  if (keep) send_body(socket, request, *bytes, first, end, bad, keep);
}

void Endpoint::send_body(int socket, const Request& request, const std::string& bytes,
                         uint64_t first, uint64_t end, const Fault& bad, bool& keep) {
  constexpr uint64_t kPart = 65536;
  const uint64_t begin = first;
  while (keep && first < end) {
    uint64_t stop = std::min(end, first + kPart);
    const bool cut = bad.kind == Fault::Kind::kDrop || bad.kind == Fault::Kind::kStall;
    if (cut) stop = std::min(stop, begin + bad.at);
    std::string part = bytes.substr(first, stop - first);
    if (bad.kind == Fault::Kind::kCorrupt && begin + bad.at >= first && begin + bad.at < stop) {
      part[begin + bad.at - first] = static_cast<char>(part[begin + bad.at - first] ^ 1);
    }
    {
      // Before they go: whoever waits for the count sees no byte that is not counted.
      const std::lock_guard lock(mutex_);
      auto& counts = counts_[request.file];
      counts.resize(std::max(counts.size(), bytes.size()));
      for (uint64_t i = first; i < stop; ++i) ++counts[i];
    }
    keep = send_all(socket, part);
    first = stop;
    if (!cut || first < begin + bad.at) continue;
    // A stall lasts until the client gives up.
    std::array<char, 16> nothing{};
    if (bad.kind == Fault::Kind::kStall) (void)::recv(socket, nothing.data(), nothing.size(), 0);
    keep = false;
  }
  if (bad.kind == Fault::Kind::kTooLong) {
    send_all(socket, std::string(100, 'x'));
    keep = false;
  }
}

void Endpoint::change(const std::string& file, std::string bytes) {
  const std::lock_guard lock(mutex_);
  files_[file] = std::make_shared<const std::string>(std::move(bytes));
}

std::vector<Request> Endpoint::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

uint64_t Endpoint::sent() const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& [file, counts] : counts_) {
    for (const uint8_t count : counts) total += count;
  }
  return total;
}

uint64_t Endpoint::sent(const std::string& file) const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  if (const auto counts = counts_.find(file); counts != counts_.end()) {
    for (const uint8_t count : counts->second) total += count;
  }
  return total;
}

uint64_t Endpoint::repeated() const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& [file, counts] : counts_) {
    for (const uint8_t count : counts) total += count > 1 ? count - 1U : 0U;
  }
  return total;
}

void Endpoint::forget_counts() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
  requests_.clear();
}

}  // namespace tandem::fetch_test
