// SQL with numbered parameters over SQLite or PostgreSQL: what the store is written on.
//
// Statements are in the dialect that both have in common: $1, $2, … for parameters, BIGINT, TEXT,
// blobs, INSERT … ON CONFLICT, RETURNING. `{blob}` stands for the type of byte strings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tandem::hub {

struct Blob {
  std::string bytes;
};
/// NULL, a number, a text, bytes.
using Value = std::variant<std::monostate, int64_t, std::string, Blob>;
using Row = std::vector<Value>;
using Rows = std::vector<Row>;

/// Column `index` as a number or a text; 0 or nothing if it is NULL or of another type.
int64_t number_of(const Row& row, size_t index);
std::string text_of(const Row& row, size_t index);

/// One connection, for one thread at a time.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Runs one statement. Errors: kIo (the database's own message). After an error within a
  /// transaction only rollback is left.
  virtual Result<Rows> run(const std::string& sql, const std::vector<Value>& values) = 0;
  Result<Rows> run(const std::string& sql) { return run(sql, {}); }
  /// Rows that the last statement inserted, changed or removed.
  [[nodiscard]] virtual int64_t changes() const = 0;
  /// True if the last error was a conflict with another transaction: try the whole of it again.
  [[nodiscard]] virtual bool conflicted() const = 0;
  /// Tells all processes on this database, once the transaction is done.
  virtual Status notify(const std::string& subject) = 0;
};

/// A few connections. Thread-safe.
class Database {
 public:
  /// Called for each notify() of whichever process, by any thread.
  using Listener = std::function<void(const std::string& subject)>;

  virtual ~Database() = default;
  /// "SQLite" or "PostgreSQL".
  [[nodiscard]] virtual const char* name() const = 0;
  virtual void listen(Listener listener) = 0;
  using Work = std::function<Status(Connection&)>;
  /// Runs `work` in a transaction, which is rolled back if it fails, and begun again if another one
  /// was in the way: `work` may run several times. Transactions run one after the other, also
  /// those of other processes, so that what one reads stays true until it writes.
  Status transaction(const Work& work) { return run(begin_statements(), work); }
  /// The same for work that writes nothing: beside all others, on the state at one moment.
  Status reading(const Work& work) { return run(begin_reading(), work); }

 protected:
  /// Takes a connection out of the pool (waits for one) and puts it back.
  virtual Result<std::unique_ptr<Connection>> take() = 0;
  virtual void give(std::unique_ptr<Connection> connection, bool usable) = 0;
  [[nodiscard]] virtual std::vector<std::string> begin_statements() const = 0;
  [[nodiscard]] virtual std::vector<std::string> begin_reading() const = 0;
  /// After a commit: SQLite tells its own process's listener.
  virtual void committed(Connection& connection) = 0;

 private:
  Status run(const std::vector<std::string>& begin, const Work& work);
};

/// Opens or makes the file, in WAL mode. One process at a time. Errors: kIo.
Result<std::unique_ptr<Database>> open_sqlite(const std::string& path);
/// "postgresql://USER@HOST/NAME"; a password comes from PGPASSWORD or ~/.pgpass, or the URL.
/// Errors: kIo (never with the URL's password), kUnsupported (built without it).
Result<std::unique_ptr<Database>> open_postgres(const std::string& url);

}  // namespace tandem::hub
