// The store's tables.
#include "hub/server/core.h"

namespace tandem::hub {

Status make_tables(Database& database) {
  // Times are ms since 1970. Nothing here is a secret: of tokens, keys and passes there are hashes,
  // of a room's key a public key made of it.
  constexpr const char* kTables[] = {
      "CREATE TABLE IF NOT EXISTS devices (id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT "
      "NULL, public_key TEXT NOT NULL, certificate TEXT NOT NULL, organization TEXT NOT NULL, "
      "token_hash TEXT NOT NULL UNIQUE, settings TEXT NOT NULL, settings_version BIGINT NOT NULL, "
      "created BIGINT NOT NULL, seen BIGINT NOT NULL, report TEXT NOT NULL)",
      "CREATE INDEX IF NOT EXISTS devices_organization ON devices (organization)",
      "CREATE TABLE IF NOT EXISTS organizations (id TEXT PRIMARY KEY, name TEXT NOT NULL, created "
      "BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS members (id TEXT PRIMARY KEY, organization TEXT NOT NULL, name "
      "TEXT NOT NULL, role TEXT NOT NULL, created BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS api_keys (id TEXT PRIMARY KEY, member TEXT NOT NULL, name TEXT "
      "NOT NULL, key_hash TEXT NOT NULL UNIQUE, created BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS challenges (nonce TEXT PRIMARY KEY, until BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS rooms (code TEXT PRIMARY KEY, organization TEXT NOT NULL, "
      "creator TEXT NOT NULL, host TEXT NOT NULL, verifier TEXT NOT NULL, spec TEXT NOT NULL, "
      "created BIGINT NOT NULL, touched BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS room_members (room TEXT NOT NULL, device TEXT NOT NULL, role "
      "TEXT NOT NULL, state TEXT NOT NULL, pass_hash TEXT NOT NULL, sealed TEXT NOT NULL, "
      "placement TEXT NOT NULL, joined BIGINT NOT NULL, PRIMARY KEY (room, device))",
      "CREATE INDEX IF NOT EXISTS room_members_device ON room_members (device)",
      "CREATE TABLE IF NOT EXISTS turns (room TEXT PRIMARY KEY, device TEXT NOT NULL, token BIGINT "
      "NOT NULL, until BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS scopes (scope TEXT PRIMARY KEY, seq BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS events (scope TEXT NOT NULL, seq BIGINT NOT NULL, at BIGINT NOT "
      "NULL, kind TEXT NOT NULL, sender TEXT NOT NULL, recipient TEXT NOT NULL, data TEXT NOT "
      "NULL, PRIMARY KEY (scope, seq))",
      "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, room TEXT NOT NULL, device TEXT NOT "
      "NULL, submitter TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL, state TEXT NOT NULL, "
      "attempts BIGINT NOT NULL, token BIGINT NOT NULL, lease_until BIGINT NOT NULL, result TEXT "
      "NOT NULL, created BIGINT NOT NULL, finished BIGINT NOT NULL)",
      "CREATE INDEX IF NOT EXISTS jobs_device ON jobs (device, state, created)",
      "CREATE INDEX IF NOT EXISTS jobs_room ON jobs (room, finished)",
      "CREATE INDEX IF NOT EXISTS jobs_lease ON jobs (state, lease_until)",
      "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
      "CREATE TABLE IF NOT EXISTS files (id TEXT PRIMARY KEY, organization TEXT NOT NULL, size "
      "BIGINT NOT NULL, sha256 TEXT NOT NULL, created BIGINT NOT NULL, data {blob} NOT NULL)",
      "CREATE INDEX IF NOT EXISTS files_organization ON files (organization)",
      "INSERT INTO counters (name, value) VALUES ('fence', 0) ON CONFLICT (name) DO NOTHING",
  };
  return database.transaction([&](Connection& connection) -> Status {
    for (const char* table : kTables) TANDEM_TRY(connection.run(table, {}));
    return {};
  });
}

}  // namespace tandem::hub
