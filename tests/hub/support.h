// A hub with real sockets, TLS and a real store, and devices that talk to it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "hub/client.h"
#include "hub/server/hub.h"

namespace tandem::hub_test {

/// An empty folder that goes with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Both stores in turn: tests of this fixture run on each.
enum class Store : uint8_t { kSqlite, kPostgres };

/// A PostgreSQL cluster of the tests' own, started at first use in a temporary folder and ended
/// with the program; as another user if this one is root. An empty URL if there is no PostgreSQL
/// here.
const std::string& postgres_url();
/// A fresh database in it.
std::string fresh_database();

/// Asserts that a Result holds a value and gives it.
template <typename T>
T must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  if (!result.ok()) std::abort();
  return std::move(*result);
}
inline void must(const Status& status) {
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
}

/// A device with a folder of its own, known to a hub.
struct Device {
  Folder folder;
  hub::Home home;
  hub::Client client;
  explicit Device(const hub::HubAddress& hub, const std::string& name,
                  const std::string& organization_key = "");
  [[nodiscard]] std::string id() const { return home.identity().device_id(); }
  /// Another connection with the same token.
  [[nodiscard]] hub::Client another() const;
};

class HubTest : public testing::TestWithParam<Store> {
 protected:
  void SetUp() override;
  /// Starts a hub (or another one on the same store).
  std::unique_ptr<hub::Hub> start(const std::function<void(hub::HubOptions&)>& change = {});

  Folder folder_;
  std::string store_;
};

/// A room, its link and its host.
struct Room {
  std::string code;
  hub::RoomLink link;
};
Room make_room(Device& host);

/// Waits until `done` or a minute is over.
bool wait_until(const std::function<bool()>& done);

}  // namespace tandem::hub_test
