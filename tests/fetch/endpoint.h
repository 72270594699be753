// A server of models as Hugging Face is one, and one as a hub is one, that misbehaves when told to:
// plain HTTP on two ports of this machine, since large files lie in a storage of its own.
//
//   GET /ORG/NAME/resolve/REV/FILE   small files: bytes; *.safetensors: 302 to the storage, with
//                                    X-Linked-Size, X-Linked-ETag, X-Repo-Commit
//   GET /v1/models/NAME/FILE         bytes; ?chunks=1: hashes of chunks
//   GET /blob/FILE?signature=N       of the storage
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::fetch_test {

struct Request {
  bool storage = false;
  std::string path;
  std::string query;
  std::map<std::string, std::string> fields;  ///< names in lower case
  std::string file;                           ///< of the model, or empty
  uint64_t first = 0;                         ///< the range asked for
  uint64_t end = 0;                           ///< 0: none
};

/// What to do instead of answering well.
struct Fault {
  enum class Kind : uint8_t {
    kNone,
    kStatus,      ///< `status` with `fields`
    kDrop,        ///< close after `at` bytes of the body
    kStall,       ///< say nothing more after `at` bytes of the body
    kCorrupt,     ///< one wrong byte, `at` from the range's start
    kWrongRange,  ///< another Content-Range than was asked for
    kTooLong,     ///< more bytes than the length says
    kNoRanges,    ///< 200 and the whole file
    kShort,       ///< 206 with `at` bytes only
    kOtherTag,    ///< the tags of another file
    kChunked,     ///< a whole file in chunks of its own
  };
  Kind kind = Kind::kNone;
  uint64_t at = 0;
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;
};

class Endpoint {
 public:
  /// `files` of the model "org/name", by name.
  explicit Endpoint(std::map<std::string, std::string> files);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// "http://127.0.0.1:PORT".
  [[nodiscard]] std::string url() const { return address(0); }
  [[nodiscard]] std::string storage_url() const { return address(1); }
  /// Asked before each answer; may block. Set before the first request.
  std::function<Fault(const Request&)> fault;
  /// A token that every request to the model needs; empty: none does.
  std::string token;
  std::string commit = std::string(40, 'c');
  bool chunk_hashes = true;

  /// Puts another content in the place of a file's.
  void change(const std::string& file, std::string bytes);
  [[nodiscard]] std::vector<Request> requests() const;
  /// Bytes of bodies sent, of all files or one.
  [[nodiscard]] uint64_t sent() const;
  [[nodiscard]] uint64_t sent(const std::string& file) const;
  /// Bytes that were sent again after their first time, of all files.
  [[nodiscard]] uint64_t repeated() const;
  void forget_counts();

 private:
  struct Connection;
  [[nodiscard]] std::string address(int port) const;
  void accept_all();
  void serve(int socket, bool storage);
  void answer(int socket, const Request& request, bool& keep);
  void send_body(int socket, const Request& request, const std::string& bytes, uint64_t first,
                 uint64_t end, const Fault& fault, bool& keep);

  std::array<int, 2> listeners_{};
  std::array<uint16_t, 2> ports_{};
  mutable std::mutex mutex_;  ///< guards what follows
  std::map<std::string, std::shared_ptr<const std::string>> files_;
  std::map<std::string, std::vector<uint8_t>> counts_;
  std::vector<Request> requests_;
  std::list<int> sockets_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::thread accepting_;
};

/// SHA-256 of text as a server would put it into a tag.
std::string sha256_text(const std::string& bytes);

}  // namespace tandem::fetch_test
