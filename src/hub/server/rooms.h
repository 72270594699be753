// What the handlers of rooms, of joining and of jobs share.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "hub/server/core.h"

namespace tandem::hub {

struct RoomRow {
  std::string code;
  std::string creator;
  std::string host;
  std::string verifier;
};

Result<std::optional<RoomRow>> find_room(Connection& connection, const std::string& code);
/// "in", "waiting", "allowed", "denied", or nothing if the device never asked.
Result<std::string> member_state(Connection& connection, const std::string& code,
                                 const std::string& device);
/// All that members see of a room, null if there is none; `lobby`: also who waits.
Result<Json> room_json(Connection& connection, Core& core, const std::string& code, bool lobby);
/// Runs `work` for the room that the path names, if the caller is in it, and is its host or creator
/// if that is needed; else the response is a refusal.
Result<Response> in_room(Connection& connection, const Call& call, bool host_only,
                         const std::function<Result<Response>(const RoomRow&)>& work);
/// Makes a member the host; nobody if `device` is empty.
Status make_host(Connection& connection, const std::string& code, const std::string& device);
/// Removes a room; members that wait for its events find that there is none.
Status remove_room(Connection& connection, const std::string& code);

}  // namespace tandem::hub
