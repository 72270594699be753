#include "cli/hub_access.h"

#include <unistd.h>

#include <array>

#include "cli/output.h"

namespace tandem::cli {
namespace {

constexpr uint64_t kMaxSecret = 4096;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

Result<std::string> secret_argument(const std::string& given) {
  if (given == "-") {
    TANDEM_ASSIGN(const std::string text, read_input(kMaxSecret));
    return trimmed(text);
  }
  if (given.starts_with('@')) {
    TANDEM_ASSIGN(const std::string text, hub::read_small_file(given.substr(1), kMaxSecret, false));
    return trimmed(text);
  }
  return given;
}

std::string machine_name() {
  std::array<char, 65> name{};
  const bool ok = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return ok ? name.data() : "computer";
}

Result<HubAccess> open_hub(const std::string& address, const std::string& key,
                           const std::filesystem::path& folder) {
  TANDEM_ASSIGN(hub::Home home,
                hub::Home::open(folder.empty() ? hub::Home::usual_folder() : folder));
  hub::HubAddress hub;
  if (!address.empty()) {
    TANDEM_ASSIGN(hub, hub::parse_hub(address));
  } else {
    TANDEM_ASSIGN(auto known, home.hubs());
    if (known.size() != 1) {
      return invalid(known.empty() ? "no hub is known here yet; name one with --hub URL"
                                   : "several hubs are known here; name one with --hub URL");
    }
    hub = std::move(known.front());
  }
  const std::string name = folder.empty() ? machine_name() : folder.filename().string();
  TANDEM_ASSIGN(hub::Client client, home.connect(hub, name));
  if (!key.empty()) {
    TANDEM_ASSIGN(std::string token, secret_argument(key));
    client.use_token(std::move(token));
  }
  return HubAccess{std::move(home), std::move(client)};
}

}  // namespace tandem::cli
