// Database over PostgreSQL (libpq): several processes on one database; LISTEN and NOTIFY carry
// notify() from one to the others.
#include <libpq-fe.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "hub/server/database.h"

namespace tandem::hub {
namespace {

constexpr size_t kConnections = 6;
constexpr int kListenPollMs = 200;
constexpr unsigned kByteaType = 17;
constexpr const char* kChannel = "tandem_hub";

struct ResultFree {
  void operator()(PGresult* result) const { PQclear(result); }
};
using PgResult = std::unique_ptr<PGresult, ResultFree>;
struct ConnectionEnd {
  void operator()(PGconn* connection) const { PQfinish(connection); }
};
using PgConnection = std::unique_ptr<PGconn, ConnectionEnd>;

std::string one_line(const char* message) {
  std::string text = message == nullptr ? "" : message;
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

Result<PgConnection> connect(const std::string& url) {
  PgConnection connection(PQconnectdb(url.c_str()));
  if (connection == nullptr || PQstatus(connection.get()) != CONNECTION_OK) {
    return Error{ErrorKind::kIo, "PostgreSQL: " + one_line(PQerrorMessage(connection.get()))};
  }
  // "already exists, skipping" is nothing to tell anybody.
  PQsetNoticeProcessor(
      connection.get(), [](void*, const char*) {}, nullptr);
  return connection;
}

class PostgresConnection final : public Connection {
 public:
  explicit PostgresConnection(PgConnection connection) : connection_(std::move(connection)) {}

  Result<Rows> run(const std::string& sql, const std::vector<Value>& values) override {
    std::string text = sql;
    for (size_t at; (at = text.find("{blob}")) != std::string::npos;) text.replace(at, 6, "BYTEA");
    std::vector<std::string> numbers(values.size());
    std::vector<const char*> pointers(values.size(), nullptr);
    std::vector<int> lengths(values.size(), 0);
    std::vector<int> formats(values.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      if (const auto* number = std::get_if<int64_t>(&values[i])) {
        numbers[i] = std::to_string(*number);
        pointers[i] = numbers[i].c_str();
      } else if (const auto* words = std::get_if<std::string>(&values[i])) {
        pointers[i] = words->c_str();
      } else if (const auto* blob = std::get_if<Blob>(&values[i])) {
        pointers[i] = blob->bytes.data();
        lengths[i] = static_cast<int>(blob->bytes.size());
        formats[i] = 1;
      }
    }
    const PgResult result(PQexecParams(connection_.get(), text.c_str(),
                                       static_cast<int>(values.size()), nullptr, pointers.data(),
                                       lengths.data(), formats.data(), 0));
    const ExecStatusType status = PQresultStatus(result.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
      const char* code = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
      conflicted_ =
          code != nullptr && (std::strcmp(code, "40001") == 0 || std::strcmp(code, "40P01") == 0);
      return Error{ErrorKind::kIo, "the store: " + one_line(PQerrorMessage(connection_.get()))};
    }
    conflicted_ = false;
    changes_ = std::strtoll(PQcmdTuples(result.get()), nullptr, 10);
    Rows rows(static_cast<size_t>(PQntuples(result.get())));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int column = 0; column < PQnfields(result.get()); ++column) {
        rows[i].push_back(read(result.get(), static_cast<int>(i), column));
      }
    }
    return rows;
  }
  [[nodiscard]] int64_t changes() const override { return changes_; }
  [[nodiscard]] bool conflicted() const override { return conflicted_; }
  Status notify(const std::string& subject) override {
    TANDEM_TRY(run("SELECT pg_notify($1, $2)", {std::string(kChannel), subject}));
    return {};
  }
  [[nodiscard]] bool alive() const { return PQstatus(connection_.get()) == CONNECTION_OK; }

 private:
  static Value read(PGresult* result, int row, int column) {
    if (PQgetisnull(result, row, column) != 0) return std::monostate{};
    const char* text = PQgetvalue(result, row, column);
    const Oid type = PQftype(result, column);
    constexpr Oid kInt8 = 20;
    constexpr Oid kInt2 = 21;
    constexpr Oid kInt4 = 23;
    constexpr Oid kNumeric = 1700;  // what sum() of BIGINT gives
    if (type == kInt8 || type == kInt2 || type == kInt4 || type == kNumeric) {
      return static_cast<int64_t>(std::strtoll(text, nullptr, 10));
    }
    if (type == kByteaType) {
      size_t length = 0;
      unsigned char* bytes = PQunescapeBytea(reinterpret_cast<const unsigned char*>(text), &length);
      Blob blob{std::string(reinterpret_cast<char*>(bytes), length)};
      PQfreemem(bytes);
      return blob;
    }
    return std::string(text, static_cast<size_t>(PQgetlength(result, row, column)));
  }

  PgConnection connection_;
  int64_t changes_ = 0;
  bool conflicted_ = false;
};

class Postgres final : public Database {
 public:
  explicit Postgres(std::string url) : url_(std::move(url)) {}
  ~Postgres() override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Postgres(const Postgres&) = delete;
  Postgres& operator=(const Postgres&) = delete;

  [[nodiscard]] const char* name() const override { return "PostgreSQL"; }
  Status open() {
    TANDEM_ASSIGN(auto first, connect(url_));
    free_.push_back(std::make_unique<PostgresConnection>(std::move(first)));
    return {};
  }
  void listen(Listener listener) override {
    listener_ = std::move(listener);
    thread_ = std::thread([this] { hear(); });
  }

 protected:
  Result<std::unique_ptr<Connection>> take() override {
    {
      std::unique_lock lock(mutex_);
      given_back_.wait(lock, [&] { return !free_.empty() || in_use_ < kConnections; });
      ++in_use_;
      if (!free_.empty()) {
        auto connection = std::move(free_.back());
        free_.pop_back();
        return connection;
      }
    }
    auto opened = connect(url_);
    if (!opened.ok()) {
      forget();
      return opened.error();
    }
    return std::unique_ptr<Connection>(std::make_unique<PostgresConnection>(std::move(*opened)));
  }
  void give(std::unique_ptr<Connection> connection, bool usable) override {
    usable = usable && static_cast<PostgresConnection&>(*connection).alive();
    if (!usable) {
      connection.reset();
      return forget();
    }
    const std::lock_guard lock(mutex_);
    --in_use_;
    free_.push_back(std::move(connection));
    given_back_.notify_one();
  }
  // One writer at a time over all processes, as with SQLite.
  [[nodiscard]] std::vector<std::string> begin_statements() const override {
    return {"BEGIN", "SELECT pg_advisory_xact_lock(7443001)"};
  }
  [[nodiscard]] std::vector<std::string> begin_reading() const override {
    return {"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"};
  }
  void committed(Connection& /*connection*/) override {}

 private:
  void forget() {
    const std::lock_guard lock(mutex_);
    --in_use_;
    given_back_.notify_one();
  }
  /// Reads notifications until the end, on a connection of its own that is made again when it is
  /// lost. An empty subject stands for "something may have been missed".
  void hear() {
    PgConnection connection;
    while (!stop_) {
      if (connection == nullptr) {
        auto opened = connect(url_);
        if (!opened.ok()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(kListenPollMs));
          continue;
        }
        connection = std::move(*opened);
        const PgResult done(PQexec(connection.get(), (std::string("LISTEN ") + kChannel).c_str()));
        listener_("");
      }
      pollfd entry{PQsocket(connection.get()), POLLIN, 0};
      if (::poll(&entry, 1, kListenPollMs) > 0 && PQconsumeInput(connection.get()) != 1) {
        connection.reset();
        continue;
      }
      while (PGnotify* notification = PQnotifies(connection.get())) {
        listener_(notification->extra);
        PQfreemem(notification);
      }
    }
  }

  std::string url_;
  Listener listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::mutex mutex_;  ///< guards free_ and in_use_
  std::condition_variable given_back_;
  std::vector<std::unique_ptr<Connection>> free_;
  size_t in_use_ = 0;
};

}  // namespace

Result<std::unique_ptr<Database>> open_postgres(const std::string& url) {
  auto database = std::make_unique<Postgres>(url);
  TANDEM_TRY(database->open());
  return std::unique_ptr<Database>(std::move(database));
}

}  // namespace tandem::hub
