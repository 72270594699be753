// Database over SQLite: one file, one process, a few connections in WAL mode.
#include <sqlite3.h>

#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "hub/server/database.h"

namespace tandem::hub {
namespace {

constexpr size_t kConnections = 4;
constexpr int kBusyMs = 10000;

struct StatementEnd {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, StatementEnd>;

class SqliteConnection final : public Connection {
 public:
  explicit SqliteConnection(sqlite3* db) : db_(db) {}
  ~SqliteConnection() override {
    statements_.clear();
    sqlite3_close(db_);
  }
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  Result<Rows> run(const std::string& sql, const std::vector<Value>& values) override {
    sqlite3_stmt* statement = prepared(sql);
    if (statement == nullptr) return failure();
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string name = "$" + std::to_string(i + 1);
      const int index = sqlite3_bind_parameter_index(statement, name.c_str());
      if (index != 0) bind(statement, index, values[i]);
    }
    Rows rows;
    int code = 0;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) rows.push_back(read(statement));
    changes_ = sqlite3_changes64(db_);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    if (code != SQLITE_DONE) return failure();
    conflicted_ = false;
    return rows;
  }
  [[nodiscard]] int64_t changes() const override { return changes_; }
  [[nodiscard]] bool conflicted() const override { return conflicted_; }
  Status notify(const std::string& subject) override {
    subjects_.push_back(subject);
    return {};
  }
  std::vector<std::string> take_subjects() { return std::move(subjects_); }

 private:
  static void bind(sqlite3_stmt* statement, int index, const Value& value) {
    if (const auto* number = std::get_if<int64_t>(&value)) {
      sqlite3_bind_int64(statement, index, *number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      sqlite3_bind_text64(statement, index, text->data(), text->size(), SQLITE_TRANSIENT,
                          SQLITE_UTF8);
    } else if (const auto* blob = std::get_if<Blob>(&value)) {
      // A null pointer would bind NULL.
      const char* bytes = blob->bytes.empty() ? "" : blob->bytes.data();
      sqlite3_bind_blob64(statement, index, bytes, blob->bytes.size(), SQLITE_TRANSIENT);
    } else {
      sqlite3_bind_null(statement, index);
    }
  }
  static Row read(sqlite3_stmt* statement) {
    Row row;
    const int columns = sqlite3_column_count(statement);
    for (int i = 0; i < columns; ++i) {
      const auto size = [&] { return static_cast<size_t>(sqlite3_column_bytes(statement, i)); };
      switch (sqlite3_column_type(statement, i)) {
        case SQLITE_INTEGER:
          row.emplace_back(static_cast<int64_t>(sqlite3_column_int64(statement, i)));
          break;
        case SQLITE_TEXT: {
          const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, i));
          row.emplace_back(std::string(text, size()));
          break;
        }
        case SQLITE_BLOB: {
          const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement, i));
          row.emplace_back(Blob{bytes == nullptr ? "" : std::string(bytes, size())});
          break;
        }
        default:
          row.emplace_back();
      }
    }
    return row;
  }
  sqlite3_stmt* prepared(const std::string& sql) {
    auto& slot = statements_[sql];
    if (slot == nullptr) {
      std::string text = sql;
      for (size_t at; (at = text.find("{blob}")) != std::string::npos;) {
        text.replace(at, 6, "BLOB");
      }
      sqlite3_stmt* statement = nullptr;
      sqlite3_prepare_v2(db_, text.c_str(), -1, &statement, nullptr);
      slot.reset(statement);
    }
    return slot.get();
  }
  Error failure() {
    const int code = sqlite3_errcode(db_);
    conflicted_ = (code & 255) == SQLITE_BUSY;
    return {ErrorKind::kIo, std::string("the store: ") + sqlite3_errmsg(db_)};
  }

  sqlite3* db_;
  std::unordered_map<std::string, Statement> statements_;
  std::vector<std::string> subjects_;
  int64_t changes_ = 0;
  bool conflicted_ = false;
};

class Sqlite final : public Database {
 public:
  explicit Sqlite(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] const char* name() const override { return "SQLite"; }
  void listen(Listener listener) override { listener_ = std::move(listener); }

  Status open() {
    for (size_t i = 0; i < kConnections; ++i) {
      sqlite3* db = nullptr;
      const int code = sqlite3_open_v2(
          path_.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
          nullptr);
      auto connection = std::make_unique<SqliteConnection>(db);
      if (code != SQLITE_OK) return Error{ErrorKind::kIo, path_ + ": " + sqlite3_errmsg(db)};
      sqlite3_busy_timeout(db, kBusyMs);
      for (const char* pragma : {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL",
                                 "PRAGMA foreign_keys = ON", "PRAGMA trusted_schema = OFF"}) {
        if (auto done = connection->Connection::run(pragma); !done.ok()) {
          return done.error().in(path_);
        }
      }
      free_.push_back(std::move(connection));
    }
    return {};
  }

 protected:
  Result<std::unique_ptr<Connection>> take() override {
    std::unique_lock lock(mutex_);
    given_back_.wait(lock, [&] { return !free_.empty(); });
    auto connection = std::move(free_.back());
    free_.pop_back();
    return connection;
  }
  // A ROLLBACK fails only where there is no transaction any more: the connection is good.
  void give(std::unique_ptr<Connection> connection, bool /*usable*/) override {
    (void)static_cast<SqliteConnection&>(*connection).take_subjects();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(connection));
    given_back_.notify_one();
  }
  // The write lock at the beginning: waiting for it is then the only way to lose time.
  [[nodiscard]] std::vector<std::string> begin_statements() const override {
    return {"BEGIN IMMEDIATE"};
  }
  [[nodiscard]] std::vector<std::string> begin_reading() const override { return {"BEGIN"}; }
  void committed(Connection& connection) override {
    for (const auto& subject : static_cast<SqliteConnection&>(connection).take_subjects()) {
      if (listener_) listener_(subject);
    }
  }

 private:
  std::string path_;
  Listener listener_;
  std::mutex mutex_;  ///< guards free_
  std::condition_variable given_back_;
  std::vector<std::unique_ptr<Connection>> free_;
};

}  // namespace

Result<std::unique_ptr<Database>> open_sqlite(const std::string& path) {
  auto database = std::make_unique<Sqlite>(path);
  TANDEM_TRY(database->open());
  return std::unique_ptr<Database>(std::move(database));
}

}  // namespace tandem::hub
