#include "room/grants.h"

#include <algorithm>

namespace tandem::room {

void Grants::add(Grant grant) {
  const std::lock_guard lock(mutex_);
  grants_[grant.job] = std::move(grant);
}

void Grants::remove(const std::string& job) {
  const std::lock_guard lock(mutex_);
  grants_.erase(job);
}

void Grants::renewed(const std::string& job) {
  const std::lock_guard lock(mutex_);
  const auto found = grants_.find(job);
  if (found != grants_.end()) found->second.renewed = Clock::now();
}

void Grants::serve(const std::vector<wire::Fingerprint>& hosts) {
  const std::lock_guard lock(mutex_);
  for (auto& [job, grant] : grants_) {
    if (std::find(hosts.begin(), hosts.end(), grant.host) != hosts.end()) {
      grant.served = Clock::now();
    }
  }
}

std::vector<Grant> Grants::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<Grant> list;
  for (const auto& [job, grant] : grants_) list.push_back(grant);
  return list;
}

void Grants::pause(const std::string& why) {
  const std::lock_guard lock(mutex_);
  why_ = why;
}

Status Grants::admit(const wire::Fingerprint& host) const {
  const std::lock_guard lock(mutex_);
  if (!why_.empty()) return Error{ErrorKind::kPeer, "this device takes no work: " + why_};
  for (const auto& [job, grant] : grants_) {
    if (grant.host == host) return {};
  }
  return Error{ErrorKind::kPeer,
               "this device holds no job of yours; a host has to submit one to the room's hub"};
}

}  // namespace tandem::room
