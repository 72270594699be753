#include "hub/server/database.h"

namespace tandem::hub {

int64_t number_of(const Row& row, size_t index) {
  const auto* number = index < row.size() ? std::get_if<int64_t>(&row[index]) : nullptr;
  return number == nullptr ? 0 : *number;
}

std::string text_of(const Row& row, size_t index) {
  const auto* text = index < row.size() ? std::get_if<std::string>(&row[index]) : nullptr;
  return text == nullptr ? "" : *text;
}

Status Database::run(const std::vector<std::string>& begin, const Work& work) {
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    TANDEM_ASSIGN(auto connection, take());
    Status status;
    for (const std::string& statement : begin) {
      if (const auto begun = connection->run(statement); !begun.ok()) {
        status = begun.error();
        break;
      }
    }
    if (status.ok()) status = work(*connection);
    if (status.ok()) {
      if (const auto done = connection->run("COMMIT"); !done.ok()) status = done.error();
    }
    if (status.ok()) {
      committed(*connection);
      give(std::move(connection), true);
      return {};
    }
    const bool conflicted = connection->conflicted();
    const bool usable = connection->run("ROLLBACK").ok();
    give(std::move(connection), usable);
    if (!conflicted || attempt == kAttempts) return status;
  }
}

}  // namespace tandem::hub
