// Links, codes, secrets, identities, settings: without a hub.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "hub/http_client.h"
#include "hub/identity.h"
#include "hub/link.h"
#include "hub/mdns.h"
#include "hub/secret.h"
#include "hub/server/http.h"
#include "hub/server/limits.h"
#include "hub/settings.h"
#include "hub/support.h"

namespace tandem::hub_test {
namespace {

using namespace hub;

std::string bytes_of_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

TEST(SettingsToml, EveryBadFileIsAnErrorWithItsLine) {
  struct Case {
    std::string text;
    std::string line;
  };
  const Case cases[] = {
      {"\nv\xEF\xB3\xBF", "line 2: expected ASCII"},
      {"[/", "line 1"},
      {"\n\n[/", "line 3"},
      {"memory = 1\nmemory = 2\n", "line 2"},
      {"a.b = 1\n[a]\nb = 2\n", "line"},
      {"memory = 99999999999999999999999\n", "settings: "},
      {"hours = [{from = \"1:00\"\n", "line"},
      {"time_zone = \"\\u12\"", "line 1"},
      {"memory = 1e400\n", "settings: "},
      {"x = " + std::string(2000, '['), "512"},
      {std::string(70000, ' '), "65536"},
      {"memory = 1979-05-27T07:32:00Z\n", "'memory' has to be a whole number"},
      {"kinds = [\"probe\", 1]\n", "settings: "},
      {std::string("memory = 1\n\0", 12), "line 2: expected ASCII"},
  };
  for (const Case& one : cases) {
    const auto settings = parse_settings_toml(one.text);
    ASSERT_FALSE(settings.ok()) << one.text.substr(0, 40);
    EXPECT_NE(settings.error().message.find(one.line), std::string::npos)
        << settings.error().message;
    EXPECT_EQ(settings.error().message.find('\n'), std::string::npos);
  }
  std::string many;
  for (int i = 0; i < 64; ++i)
    many += "[[hours]]\ndays = [\"mon\"]\nfrom = \"1:00\"\nto = \"2:00\"\n";
  EXPECT_EQ(must(parse_settings_toml(many)).hours.size(), 64U);
}

TEST(Secret, HkdfIsThatOfRfc5869) {
  // Test case 3: no salt, no info, and only then is `label` what the RFC's vector has.
  const std::string key(22, '\x0b');
  EXPECT_EQ(
      derive(key, "", 42),
      bytes_of_hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395fa"
                   "a4b61a96c8"));
}

TEST(Secret, HmacIsThatOfRfc4231) {
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            bytes_of_hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
}

TEST(Secret, Base64urlGoesBothWaysAndHasOneForm) {
  for (size_t length = 0; length < 70; ++length) {
    const std::string bytes = random_bytes(length);
    EXPECT_EQ(from_base64url(base64url(bytes)), bytes);
  }
  EXPECT_EQ(base64url("\xfb\xff"), "-_8");
  for (const char* wrong : {"A", "-_9", "AB=", "A B", "AAAAA"}) {
    EXPECT_FALSE(from_base64url(wrong).has_value()) << wrong;
  }
}

TEST(Secret, WhatTheHubGetsSaysNothingOfWhatDevicesProve) {
  const std::string key = random_bytes(16);
  EXPECT_NE(admission_seed(key), peer_secret(key));
  EXPECT_EQ(admission_seed(key), admission_seed(key));
}

TEST(Link, GoesBothWays) {
  RoomLink link;
  link.hub = {"192.168.1.5", 7443, std::string(64, 'a')};
  link.code = make_code();
  link.key = random_bytes(16);
  const RoomLink again = must(parse_link(link.text() + "\n"));
  EXPECT_EQ(again.text(), link.text());
  EXPECT_EQ(again.key, link.key);
  link.hub = {"fe80::1", 443, ""};
  link.key.clear();
  EXPECT_EQ(must(parse_link(link.text())).text(), link.text());
  EXPECT_EQ(must(parse_link("https://hub.example/room/abcdef")).code, "ABCDEF");
  EXPECT_EQ(must(parse_hub("localhost")).port, kDefaultHubPort);
}

TEST(Link, WrongOnesAreRefusedWithoutTheirKey) {
  for (const std::string wrong :
       {"", "https://", "http://h/room/ABCDEF", "https://h/room/ABCDE", "https://h/room/ABCDE0",
        "https://h/room/ABCDEFG", "https://h:0/room/ABCDEF", "https://h:65536/room/ABCDEF",
        "https://h/ABCDEF", "https://h/room/ABCDEF#k=short", "https://h/room/ABCDEF#x=1",
        "https://h/room/ABCDEF#f=12", "https://h\r\nX: y/room/ABCDEF", "https://[::1/room/ABCDEF",
        "https://u@h/room/ABCDEF"}) {
    EXPECT_FALSE(parse_link(wrong).ok()) << wrong;
  }
  const auto result = parse_link("https://h/room/ABCDEF#k=AAAAAAAAAAAAAAAAAAAAAAsecret");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message.find("secret"), std::string::npos);
}

TEST(Link, CodesUseTheWholeAlphabetAndNoOther) {
  std::set<char> seen;
  for (int i = 0; i < 500; ++i) {
    const std::string code = make_code();
    ASSERT_TRUE(parse_code(code).ok()) << code;
    seen.insert(code.begin(), code.end());
  }
  EXPECT_EQ(seen.size(), 30U);
}

TEST(Identity, IsKeptInFilesOfItsOwnerAlone) {
  const Folder folder;
  const auto home = folder.path() / "new";
  const Identity first = must(Identity::open(home));
  const Identity second = must(Identity::open(home));
  EXPECT_EQ(first.device_id(), second.device_id());
  EXPECT_EQ(first.fingerprint(), second.fingerprint());
  struct stat status {};
  ASSERT_EQ(::stat((home / "identity.pem").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(home.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  const std::string signature = second.sign("message");
  EXPECT_TRUE(verify_signature(first.public_key(), "message", signature));
  EXPECT_FALSE(verify_signature(first.public_key(), "massage", signature));
  ::chmod((home / "identity.pem").c_str(), 0644);
  const auto refused = Identity::open(home);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("others can read it"), std::string::npos);
}

TEST(Settings, JsonAndTomlSayTheSame) {
  const OwnerSettings from_toml = must(parse_settings_toml(
      "memory = 8589934592\npaused = true\nkinds = [\"probe\"]\ntime_zone = \"Europe/Berlin\"\n"
      "battery = 20\ntemperature = 90\n[[hours]]\ndays = [\"mon\", \"fri\"]\nfrom = \"22:00\"\n"
      "to = \"06:00\"\n"));
  const OwnerSettings again = must(parse_settings(settings_json(from_toml)));
  EXPECT_EQ(settings_json(again), settings_json(from_toml));
  EXPECT_EQ(again.memory, 8589934592U);
  EXPECT_FALSE(again.stage);
  ASSERT_EQ(again.hours.size(), 1U);
  EXPECT_EQ(again.hours[0].days, 1U | 16U);
  const auto wrong = parse_settings_toml("memory = 1\nmemory 2\n");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("line 2"), std::string::npos) << wrong.error().message;
  for (const char* text :
       {"[]", "{\"memory\":-1}", "{\"memori\":1}", "{\"time_zone\":\"Mars/X\"}",
        "{\"battery\":101}", "{\"hours\":[{\"from\":\"25:00\",\"to\":\"1:00\"}]}",
        "{\"hours\":[{\"from\":\"1:00\"}]}", "{\"kinds\":[\"chat\"]}", "nonsense"}) {
    EXPECT_FALSE(parse_settings(text).ok()) << text;
  }
}

TEST(Settings, HoursRunPastMidnightInTheirOwnZone) {
  OwnerSettings settings;
  settings.time_zone = "Europe/Berlin";
  settings.hours = {must(parse_hours("mon-fri 22:00-06:00"))};
  const auto works = [&](int64_t utc_s) {
    return why_no_work(settings, "stage", {}, utc_s * 1000).empty();
  };
  // 1782763200 is Monday 2026-06-29 20:00 UTC: 22:00 in Berlin in summer.
  EXPECT_TRUE(works(1782763200));
  EXPECT_FALSE(works(1782763200 - 1));
  EXPECT_TRUE(works(1782763200 + 8 * 3600 - 1));
  EXPECT_FALSE(works(1782763200 + 8 * 3600));
  EXPECT_TRUE(works(1782763200 + int64_t{4} * 86400 + 7 * 3600)) << "Saturday 5:00, Friday's hours";
  EXPECT_FALSE(works(1782763200 + int64_t{5} * 86400 + 3600)) << "Saturday 23:00";
  // In winter 22:00 is 21:00 UTC: Monday 2026-12-07.
  EXPECT_TRUE(works(1780866000 + int64_t{183} * 86400));
  EXPECT_FALSE(works(1780866000 + int64_t{183} * 86400 - 1));
  settings.paused = true;
  EXPECT_EQ(why_no_work(settings, "stage", {}, 0), "paused by its owner");
}

TEST(Settings, BatteryAndTemperatureAreLimits) {
  OwnerSettings settings;
  settings.battery = 30;
  settings.temperature = 80;
  EXPECT_EQ(why_no_work(settings, "stage", {std::nullopt, 80.0}, 0), "");
  EXPECT_NE(why_no_work(settings, "stage", {29.0, std::nullopt}, 0), "");
  EXPECT_NE(why_no_work(settings, "stage", {std::nullopt, 80.5}, 0), "");
}

TEST(Http, TargetsAndRangesAreReadStrictly) {
  Request request;
  must(parse_target("/v1/models/a%20b/c?wait=5&x=%26", request));
  EXPECT_EQ(request.path, (std::vector<std::string>{"v1", "models", "a b", "c"}));
  EXPECT_EQ(query_number(request, "wait", 0, 3), 3);
  EXPECT_EQ(request.query["x"], "&");
  for (const char* wrong : {"", "v1", "/%", "/%0", "/%00", "/%zz"}) {
    EXPECT_FALSE(parse_target(wrong, request).ok()) << wrong;
  }
  const auto range = [](const char* text) { return parse_range(text, 100); };
  EXPECT_EQ(must(range("bytes=10-19")), std::pair(uint64_t{10}, uint64_t{10}));
  EXPECT_EQ(must(range("bytes=90-")), std::pair(uint64_t{90}, uint64_t{10}));
  EXPECT_EQ(must(range("bytes=-5")), std::pair(uint64_t{95}, uint64_t{5}));
  EXPECT_EQ(must(range("bytes=99-500")), std::pair(uint64_t{99}, uint64_t{1}));
  EXPECT_EQ(must(range("bytes=1-2,4-5")), std::nullopt);
  EXPECT_FALSE(range("bytes=100-").ok());
  EXPECT_FALSE(range("bytes=-0").ok());
}

TEST(Http, RequestsAreReadInAnyPieces) {
  const std::string text =
      "POST /v1/heartbeat?a=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\n"
      "Content-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n\r\n";
  const size_t first = text.find("GET / ");
  for (size_t piece = 1; piece < text.size(); ++piece) {
    RequestReader reader;
    std::string held;
    size_t at = 0;
    auto state = RequestReader::State::kMore;
    while (state != RequestReader::State::kDone) {
      if (state == RequestReader::State::kMore && at < text.size()) {
        held += text.substr(at, piece);
        at += piece;
      }
      size_t used = 0;
      state = reader.feed(held, used);
      held.erase(0, used);
      ASSERT_NE(state, RequestReader::State::kBad) << piece;
    }
    EXPECT_EQ(held + text.substr(std::min(at, text.size())), text.substr(first)) << piece;
    const Request request = reader.take();
    EXPECT_EQ(request.body, "body");
    EXPECT_EQ(request.authorization, "Bearer x");
  }
}

TEST(Http, TooLongHeadersAndBodiesAreRefused) {
  RequestReader reader;
  size_t used = 0;
  std::string text = "GET / HTTP/1.1\r\nX: " + std::string(kMaxHeaderBytes, 'x');
  EXPECT_EQ(reader.feed(text, used), RequestReader::State::kBad);
  EXPECT_EQ(reader.status(), 431);
  RequestReader second;
  text = "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
  EXPECT_EQ(second.feed(text, used), RequestReader::State::kBad);
  EXPECT_EQ(second.status(), 413);
}

TEST(Http, AnswersWithTwoLengthsOrNoneAreRefused) {
  EXPECT_TRUE(parse_answer_header("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n").ok());
  for (const char* wrong :
       {"", "\r\n", "HTTP/1.1 200", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Range: x\r\ncontent-range: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nmore"}) {
    EXPECT_FALSE(parse_answer_header(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(body_length(must(parse_answer_header("HTTP/1.1 200 OK\r\n\r\n"))).ok());
}

TEST(Limiter, BlocksAKeyAndInTheEndAll) {
  Limiter limiter(0.001, 3, 0.001, 5);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.take("a"), 0);
  EXPECT_GT(limiter.take("a"), 1000);
  EXPECT_EQ(limiter.take("b"), 0);
  EXPECT_EQ(limiter.take("b"), 0);
  EXPECT_GT(limiter.take("c"), 1000) << "five in all";
}

TEST(Mdns, AQuestionIsAnsweredWithTheHub) {
  MdnsHub hub{"Desk-1", std::string("\xc0\xa8\x01\x05", 4), 7443, std::string(64, 'a')};
  const MdnsMessage question = must(parse_mdns(make_mdns_question()));
  EXPECT_TRUE(asks_for(question, hub));
  const MdnsMessage answer = must(parse_mdns(make_mdns_answer(hub, 7)));
  EXPECT_EQ(answer.id, 7);
  EXPECT_FALSE(asks_for(answer, hub));
  EXPECT_EQ(must(read_mdns_answer(answer)).text(),
            "https://192.168.1.5:7443/#f=" + std::string(64, 'a'));
  EXPECT_FALSE(read_mdns_answer(question).ok());
}

TEST(Mdns, NamesMayPointBackButNeverInACircle) {
  std::string header(12, '\0');
  header[5] = 1;
  const std::string tail("\0\x0c\0\x01", 4);
  // The name's own beginning, a name after it, and one past the end.
  for (const std::string name : {"\xc0\x0c",
                                 "\x01"
                                 "a\xc0\x0c",
                                 "\xc0\x40", "\xff\xff"}) {
    EXPECT_FALSE(parse_mdns(header + name + tail).ok());
  }
  header[5] = 2;
  const std::string first = std::string("\x04test\x05local\0", 12) + tail;
  const MdnsMessage message = must(parse_mdns(header + first + "\x01x\xc0\x0c" + tail));
  EXPECT_EQ(message.questions[1].name, "x.test.local");
}

}  // namespace
}  // namespace tandem::hub_test
