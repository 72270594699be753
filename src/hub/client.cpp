#include "hub/client.h"

#include <algorithm>
#include <thread>

#include "hub/secret.h"

namespace tandem::hub {
namespace {

ErrorKind kind_of(int status) {
  switch (status) {
    case 401:
    case 403:
      return ErrorKind::kPeer;
    case 404:
      return ErrorKind::kNotFound;
    case 409:
      return ErrorKind::kCancelled;
    case 429:
      return ErrorKind::kMemory;
    default:
      return status >= 500 ? ErrorKind::kIo : ErrorKind::kInvalid;
  }
}

/// A text that came from outside, fit for one line of a terminal.
std::string printable(const std::string& text) {
  constexpr size_t kMost = 400;
  std::string result = text.substr(0, kMost);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return result;
}

std::string string_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string wait_query(int64_t after, int wait_s) {
  return "?after=" + std::to_string(after) + "&wait=" + std::to_string(wait_s);
}

}  // namespace

Result<HttpAnswer> Client::send(HttpRequest request) {
  status_ = 0;
  retry_after_ = 0;
  request.token = token_;
  auto answer = http_.send(request);
  if (!answer.ok()) return answer;
  status_ = answer->status;
  if (status_ < 400) return answer;
  // Digits only, or std::atoi's zero.
  retry_after_ = std::clamp(std::atoi(answer->field("retry-after").c_str()), 0, 3600);
  const Json body = Json::parse(answer->body, nullptr, false);
  std::string message;
  if (body.is_object() && body.contains("error") && body["error"].is_object()) {
    message = printable(string_of(body["error"], "message"));
  }
  if (message.empty()) message = "it answers with status " + std::to_string(status_);
  return Error{kind_of(status_), "the hub " + hub().authority() + ": " + message};
}

Result<Json> Client::call(const std::string& method, const std::string& target, const Json& body,
                          int wait_s) {
  HttpRequest request;
  request.method = method;
  request.target = target;
  if (!body.is_null()) {
    request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  request.timeout = patience_ + std::chrono::seconds(wait_s);
  TANDEM_ASSIGN(const HttpAnswer answer, send(std::move(request)));
  if (answer.body.empty()) return Json(nullptr);
  Json result = Json::parse(answer.body, nullptr, false);
  if (!result.is_object()) return invalid("the hub " + hub().authority() + " sent no JSON object");
  return result;
}

Status Client::order(const std::string& method, const std::string& target, const Json& body) {
  TANDEM_TRY(call(method, target, body));
  return {};
}

Result<std::string> Client::register_device(const Identity& identity, const std::string& name,
                                            const std::string& kind,
                                            const std::string& organization_key) {
  TANDEM_ASSIGN(const Json challenge, call("POST", "/v1/challenge", nullptr));
  const std::string nonce = string_of(challenge, "nonce");
  const std::string certificate = identity.fingerprint();
  token_ = organization_key;
  TANDEM_ASSIGN(const Json answer,
                call("POST", "/v1/devices",
                     {{"name", name},
                      {"kind", kind},
                      {"public_key", base64url(identity.public_key())},
                      {"certificate", certificate},
                      {"nonce", nonce},
                      {"signature",
                       base64url(identity.sign("tandem device " + nonce + " " + certificate))}}));
  token_ = string_of(answer, "token");
  return token_;
}

Result<Json> Client::heartbeat(const Json& report) {
  return call("POST", "/v1/heartbeat", report);
}

Result<Json> Client::devices() {
  return call("GET", "/v1/devices", nullptr);
}

Result<Json> Client::device(const std::string& device) {
  return call("GET", "/v1/devices/" + escape(device), nullptr);
}

Result<Json> Client::change_settings(const std::string& device, const Json& settings) {
  return call("PUT", "/v1/devices/" + escape(device) + "/settings", settings);
}

Status Client::remove_device(const std::string& device) {
  return order("DELETE", "/v1/devices/" + escape(device), nullptr);
}

Result<Json> Client::device_events(int64_t after, int wait_s) {
  TANDEM_ASSIGN(Json answer,
                call("GET", "/v1/devices/me/events" + wait_query(after, wait_s), nullptr, wait_s));
  if (answer.is_null()) answer = {{"events", Json::array()}, {"next", after}, {"missed", false}};
  return answer;
}

Result<Json> Client::create_room(const Json& spec, std::string& key) {
  key = random_bytes(16);
  const Identity verifier = Identity::from_seed(admission_seed(key));
  return call("POST", "/v1/rooms",
              {{"verifier", base64url(verifier.public_key())}, {"spec", spec}});
}

Result<Joined> Client::join(const RoomLink& link, const Identity& identity, const std::string& role,
                            const std::string& pass, int wait_s) {
  Json body{{"role", role}};
  if (!link.key.empty()) {
    TANDEM_ASSIGN(const Json challenge, call("POST", "/v1/challenge", nullptr));
    const std::string nonce = string_of(challenge, "nonce");
    const Identity prover = Identity::from_seed(admission_seed(link.key));
    body["nonce"] = nonce;
    body["proof"] = base64url(
        prover.sign("tandem join " + link.code + " " + identity.device_id() + " " + nonce));
  } else if (!pass.empty()) {
    body["pass"] = pass;
  }
  std::string target = "/v1/rooms/" + link.code + "/join";
  if (wait_s > 0) target += "?wait=" + std::to_string(wait_s);
  TANDEM_ASSIGN(Json answer, call("POST", target, body, wait_s));
  // The first time is answered at once: now the host knows. The second waits for what it says.
  if (status_ == 202 && wait_s > 0) {
    TANDEM_ASSIGN(answer, call("POST", target, body, wait_s));
  }
  Joined joined;
  if (answer.is_null() || string_of(answer, "state") != "in") return joined;
  joined.in = true;
  joined.pass = string_of(answer, "pass");
  joined.sealed = string_of(answer, "sealed");
  if (answer.contains("room")) joined.room = answer["room"];
  return joined;
}

Result<Json> Client::rooms() {
  return call("GET", "/v1/rooms", nullptr);
}

Result<Json> Client::room(const std::string& code) {
  return call("GET", "/v1/rooms/" + escape(code), nullptr);
}

Status Client::close_room(const std::string& code) {
  return order("DELETE", "/v1/rooms/" + escape(code), nullptr);
}

Status Client::leave_room(const std::string& code, const std::string& device) {
  return order("DELETE", "/v1/rooms/" + escape(code) + "/members/" + escape(device), nullptr);
}

Status Client::answer_lobby(const std::string& code, const std::string& device, bool allow,
                            const std::string& sealed) {
  Json body{{"allow", allow}};
  if (!sealed.empty()) body["sealed"] = sealed;
  return order("POST", "/v1/rooms/" + escape(code) + "/lobby/" + escape(device), body);
}

Status Client::place(const std::string& code, const std::string& device, const Json& placement) {
  return order("PUT", "/v1/rooms/" + escape(code) + "/members/" + escape(device), placement);
}

Result<std::string> Client::choose_host(const std::string& code) {
  TANDEM_ASSIGN(const Json answer, call("POST", "/v1/rooms/" + escape(code) + "/host", nullptr));
  return string_of(answer, "host");
}

Result<int64_t> Client::take_turn(const std::string& code, int64_t token) {
  Json body = Json::object();
  if (token != 0) body["token"] = token;
  TANDEM_ASSIGN(const Json answer, call("POST", "/v1/rooms/" + escape(code) + "/turn", body));
  if (!answer.is_object() || !answer.contains("token") || !answer["token"].is_number_integer()) {
    return invalid("the hub " + hub().authority() + " sent no token of the turn");
  }
  return answer["token"].get<int64_t>();
}

Status Client::end_turn(const std::string& code, int64_t token) {
  return order("DELETE", "/v1/rooms/" + escape(code) + "/turn/" + std::to_string(token), nullptr);
}

Result<Json> Client::room_events(const std::string& code, int64_t after, int wait_s) {
  TANDEM_ASSIGN(Json answer,
                call("GET", "/v1/rooms/" + escape(code) + "/events" + wait_query(after, wait_s),
                     nullptr, wait_s));
  if (answer.is_null()) answer = {{"events", Json::array()}, {"next", after}, {"missed", false}};
  return answer;
}

Status Client::publish(const std::string& code, const std::string& kind, const std::string& to,
                       const Json& data) {
  Json body{{"kind", kind}, {"data", data}};
  if (!to.empty()) body["to"] = to;
  return order("POST", "/v1/rooms/" + escape(code) + "/events", body);
}

Result<std::string> Client::add_job(const std::string& code, const std::string& device,
                                    const std::string& kind, const Json& data) {
  TANDEM_ASSIGN(const Json answer, call("POST", "/v1/rooms/" + escape(code) + "/jobs",
                                        {{"device", device}, {"kind", kind}, {"data", data}}));
  return string_of(answer, "job");
}

Result<Json> Client::lease_job() {
  return call("POST", "/v1/jobs/lease", Json::object());
}

Result<Json> Client::job(const std::string& id) {
  return call("GET", "/v1/jobs/" + escape(id), nullptr);
}

Status Client::renew_job(const std::string& id, int64_t token) {
  return order("POST", "/v1/jobs/" + escape(id) + "/renew", {{"token", token}});
}

Status Client::finish_job(const std::string& id, int64_t token, bool done, const Json& result) {
  return order("POST", "/v1/jobs/" + escape(id) + "/finish",
               {{"token", token}, {"state", done ? "done" : "failed"}, {"result", result}});
}

Status Client::cancel_job(const std::string& id) {
  return order("DELETE", "/v1/jobs/" + escape(id), nullptr);
}

Result<std::string> Client::put_file(std::string bytes) {
  HttpRequest request;
  request.method = "POST";
  request.target = "/v1/files";
  request.body = std::move(bytes);
  request.content_type = "application/octet-stream";
  TANDEM_ASSIGN(const HttpAnswer answer, send(std::move(request)));
  const Json body = Json::parse(answer.body, nullptr, false);
  return body.is_object() ? string_of(body, "file") : std::string();
}

Result<std::string> Client::get_file(const std::string& id) {
  HttpRequest request;
  request.target = "/v1/files/" + escape(id);
  TANDEM_ASSIGN(HttpAnswer answer, send(std::move(request)));
  return std::move(answer.body);
}

Result<Json> Client::models() {
  return call("GET", "/v1/models", nullptr);
}

Result<std::string> Client::model_range(const std::string& model, const std::string& file,
                                        uint64_t offset, uint64_t length, std::string& etag) {
  if (length == 0) return std::string();
  HttpRequest request;
  request.target = "/v1/models/" + escape(model) + "/" + escape(file);
  request.fields["Range"] =
      "bytes=" + std::to_string(offset) + "-" + std::to_string(offset + length - 1);
  request.limit = length;
  request.timeout = std::chrono::seconds(120);
  TANDEM_ASSIGN(HttpAnswer answer, send(std::move(request)));
  if (answer.status != 206 || answer.body.size() != length) {
    return invalid("the hub " + hub().authority() + ": " + file + ": expected " +
                   std::to_string(length) + " bytes, found " + std::to_string(answer.body.size()));
  }
  if (!etag.empty() && etag != answer.field("etag")) {
    return Error{ErrorKind::kCancelled, file + " has changed at the hub since it was begun"};
  }
  etag = answer.field("etag");
  return std::move(answer.body);
}

Result<std::vector<std::string>> Client::model_chunks(const std::string& model,
                                                      const std::string& file, int wait_s) {
  const auto deadline = Clock::now() + std::chrono::seconds(wait_s);
  const std::string target = "/v1/models/" + escape(model) + "/" + escape(file) + "?chunks=1";
  auto answer = call("GET", target, nullptr);
  while (!answer.ok() && status_ == 503 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    answer = call("GET", target, nullptr);
  }
  if (!answer.ok()) return answer.error();
  std::vector<std::string> chunks;
  if (answer->contains("sha256") && (*answer)["sha256"].is_array()) {
    for (const Json& one : (*answer)["sha256"]) {
      if (one.is_string()) chunks.push_back(one.get<std::string>());
    }
  }
  return chunks;
}

Result<Channel> Client::relay(const std::string& code, const std::string& peer,
                              const std::string& channel, std::string& early,
                              std::chrono::milliseconds timeout) {
  HttpClient own(http_.hub(), http_.trust());
  own.stop_on(stop_);
  HttpRequest request;
  request.target =
      "/v1/rooms/" + escape(code) + "/relay?peer=" + escape(peer) + "&channel=" + escape(channel);
  request.token = token_;
  request.fields = {{"Connection", "Upgrade"}, {"Upgrade", "tandem-relay"}};
  request.timeout = timeout;
  std::optional<Channel> stream;
  TANDEM_ASSIGN(HttpAnswer answer, own.upgrade(request, stream));
  status_ = answer.status;
  if (!stream.has_value()) {
    const Json body = Json::parse(answer.body, nullptr, false);
    const std::string message = body.is_object() && body.contains("error")
                                    ? printable(string_of(body["error"], "message"))
                                    : "no relay";
    return Error{kind_of(answer.status), "the hub " + hub().authority() + ": " + message};
  }
  early = std::move(answer.body);
  return std::move(*stream);
}

}  // namespace tandem::hub
