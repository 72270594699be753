// One source against a server that misbehaves.
#include "fetch/source.h"

#include <gtest/gtest.h>

#include "fetch/endpoint.h"

namespace tandem::fetch {
namespace {

using fetch_test::Endpoint;
using fetch_test::Fault;
using fetch_test::Request;
using Kind = Fault::Kind;
using std::chrono::milliseconds;

constexpr const char* kFile = "model.safetensors";

std::string noise(size_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

class SourceTest : public testing::Test {
 protected:
  SourceTest() : bytes_(noise(300'000, 1)), endpoint_({{kFile, bytes_}, {"config.json", "{}"}}) {}

  std::unique_ptr<Source> source(const std::string& token = "",
                                 SourceKind kind = SourceKind::kHuggingFace) {
    SourceOptions options;
    options.kind = kind;
    options.base = endpoint_.url();
    options.credentials.token = token;
    options.model = {"org", "name", "main", ""};
    options.first_pause = milliseconds(1);
    options.http.silence = milliseconds(300);
    options.waiting = [this](const std::string& line) { waited_.push_back(line); };
    auto opened = Source::open(std::move(options));
    EXPECT_TRUE(opened.ok());
    return std::move(*opened);
  }
  /// Has the first `count` requests for bytes of the large file go wrong.
  void misbehave(const Fault& bad, int count = 1, bool storage = true) {
    auto left = std::make_shared<std::atomic<int>>(count);
    endpoint_.fault = [=](const Request& request) {
      if (request.file != kFile || request.storage != storage) return Fault();
      return left->fetch_sub(1) > 0 ? bad : Fault();
    };
  }
  /// Reads [offset, offset + length), and expects it to be right.
  void expect_range(Source& source, uint64_t offset, uint64_t length) {
    RemoteFile about{bytes_.size(), "", {}, ""};
    std::vector<std::byte> out(length);
    const Status status = source.range(kFile, about, offset, out);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()),
              bytes_.substr(offset, length));
  }
  Error range_error(Source& source, uint64_t offset = 0, uint64_t length = 1000) {
    RemoteFile about{bytes_.size(), "", {}, ""};
    std::vector<std::byte> out(length);
    const Status status = source.range(kFile, about, offset, out);
    EXPECT_FALSE(status.ok());
    return status.ok() ? Error{} : status.error();
  }

  std::string bytes_;
  Endpoint endpoint_;
  std::vector<std::string> waited_;
};

TEST_F(SourceTest, FollowsTheRedirectOnceAndKeepsTheTokenToItself) {
  endpoint_.token = "hf_secret";
  const auto one = source("hf_secret");
  RemoteFile about;
  const auto first = one->begin(kFile, 8, about);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(about.size, bytes_.size());
  EXPECT_EQ(about.tag, fetch_test::sha256_text(bytes_));
  ASSERT_TRUE(about.sha256.has_value());
  EXPECT_EQ(hex(*about.sha256), fetch_test::sha256_text(bytes_));
  EXPECT_EQ(about.commit, endpoint_.commit);
  for (uint64_t at = 0; at < 5; ++at) expect_range(*one, at * 1000 + 8, 500);
  size_t asked = 0;
  for (const Request& request : endpoint_.requests()) {
    if (request.storage) {
      EXPECT_FALSE(request.fields.contains("authorization"));
    } else {
      ++asked;
    }
    EXPECT_EQ(request.path.find("secret"), std::string::npos);
  }
  EXPECT_EQ(asked, 1U);
  EXPECT_EQ(endpoint_.repeated(), 0U);
}

TEST_F(SourceTest, AnExpiredAddressIsAskedForAgain) {
  const auto one = source();
  expect_range(*one, 0, 100);
  misbehave({Kind::kStatus, 0, 403, {}});
  expect_range(*one, 100, 100);
}

TEST_F(SourceTest, GoesOnWhereAConnectionBroke) {
  for (const Kind kind : {Kind::kDrop, Kind::kStall, Kind::kShort}) {
    SCOPED_TRACE(static_cast<int>(kind));
    endpoint_.forget_counts();
    misbehave({kind, 40'000, 0, {}}, 3);
    const auto one = source();
    expect_range(*one, 1234, 200'000);
    EXPECT_EQ(endpoint_.repeated(), 0U);
    EXPECT_EQ(endpoint_.sent(kFile), 200'000U);
  }
}

TEST_F(SourceTest, WaitsAsLongAsItIsAsked) {
  for (const int status : {429, 503}) {
    waited_.clear();
    misbehave({Kind::kStatus, 0, status, {{"Retry-After", "1"}}});
    const auto one = source();
    const auto began = Clock::now();
    expect_range(*one, 0, 100);
    EXPECT_GE(Clock::now() - began, milliseconds(1000));
    ASSERT_EQ(waited_.size(), 1U);
    EXPECT_NE(waited_[0].find(std::to_string(status)), std::string::npos) << waited_[0];
  }
  misbehave({Kind::kStatus, 0, 429, {{"Retry-After", "9999"}}});
  const auto one = source();
  const Error error = range_error(*one);
  EXPECT_EQ(error.kind, ErrorKind::kPeer);
  EXPECT_NE(error.message.find("come back in 9999 s"), std::string::npos) << error.message;
}

TEST_F(SourceTest, GivesUpInTheEnd) {
  misbehave({Kind::kStatus, 0, 500, {}}, 1000);
  const auto one = source();
  const Error error = range_error(*one);
  EXPECT_EQ(error.kind, ErrorKind::kPeer);
  EXPECT_NE(error.message.find("500"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("6 tries"), std::string::npos) << error.message;
}

TEST_F(SourceTest, NonsenseIsFoundAndTriedAgain) {
  for (const Kind kind : {Kind::kWrongRange, Kind::kTooLong, Kind::kNoRanges}) {
    SCOPED_TRACE(static_cast<int>(kind));
    misbehave({kind, 0, 0, {}}, 1);
    const auto once = source();
    expect_range(*once, 50, 1000);
    if (kind == Kind::kTooLong) continue;  // what comes behind the length is never read
    misbehave({kind, 0, 0, {}}, 1000);
    const auto always = source();
    EXPECT_EQ(range_error(*always, 50).kind, ErrorKind::kInvalid);
  }
}

TEST_F(SourceTest, AFileThatChangesIsFound) {
  const auto one = source();
  RemoteFile about;
  ASSERT_TRUE(one->begin(kFile, 8, about).ok());
  endpoint_.change(kFile, noise(bytes_.size(), 2));
  std::vector<std::byte> out(1000);
  const Status over_storage = one->range(kFile, about, 0, out);
  ASSERT_FALSE(over_storage.ok());
  EXPECT_EQ(over_storage.error().kind, ErrorKind::kUnsupported);
  const auto other = source();
  const Status over_origin = other->range(kFile, about, 0, out);
  ASSERT_FALSE(over_origin.ok());
  EXPECT_EQ(over_origin.error().kind, ErrorKind::kUnsupported);
  // Shorter than what is asked for.
  endpoint_.change(kFile, noise(100, 3));
  EXPECT_EQ(range_error(*source(), 5000).kind, ErrorKind::kUnsupported);
}

TEST_F(SourceTest, RefusalsSayWhatToDo) {
  endpoint_.token = "hf_secret";
  const Error none = range_error(*source());
  EXPECT_EQ(none.kind, ErrorKind::kPeer);
  EXPECT_NE(none.message.find("gated"), std::string::npos) << none.message;
  EXPECT_NE(none.message.find("HF_TOKEN"), std::string::npos);
  EXPECT_NE(none.message.find("is restricted"), std::string::npos);
  const Error wrong = range_error(*source("hf_other"));
  EXPECT_NE(wrong.message.find("not enough"), std::string::npos) << wrong.message;
  EXPECT_EQ(wrong.message.find("hf_other"), std::string::npos);
  endpoint_.token.clear();
  RemoteFile about;
  const auto missing = source()->begin("nothing.json", 8, about);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
}

TEST_F(SourceTest, SmallFilesComeWholeInAnyFraming) {
  RemoteFile about;
  const auto ranged = source()->begin("config.json", 4096, about);
  ASSERT_TRUE(ranged.ok());
  EXPECT_EQ(ranged->size(), 2U);
  endpoint_.fault = [](const Request&) { return Fault{Kind::kNoRanges, 0, 0, {}}; };
  const auto whole = source()->begin("config.json", 4096, about);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(about.size, 2U);
  endpoint_.change("config.json", noise(3000, 7));
  int left = 1;
  endpoint_.fault = [&](const Request&) {
    return left-- > 0 ? Fault{Kind::kStatus, 0, 503, {}} : Fault{Kind::kChunked, 0, 0, {}};
  };
  const auto chunked = source()->begin("config.json", 4096, about);
  ASSERT_TRUE(chunked.ok()) << chunked.error().message;
  EXPECT_EQ(about.size, 3000U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(chunked->data()), chunked->size()),
            noise(3000, 7));
  EXPECT_FALSE(source()->begin("config.json", 100, about).ok());
}

TEST_F(SourceTest, RedirectsDoNotGoRoundForEver) {
  endpoint_.fault = [this](const Request& request) {
    if (request.file != kFile) return Fault();
    return Fault{Kind::kStatus, 0, 302, {{"Location", endpoint_.url() + request.path}}};
  };
  EXPECT_NE(range_error(*source()).message.find("redirects more than"), std::string::npos);
  endpoint_.fault = [](const Request&) {
    return Fault{Kind::kStatus, 0, 302, {{"Location", "file:///etc/passwd"}}};
  };
  EXPECT_NE(range_error(*source()).message.find("no URL"), std::string::npos);
}

TEST_F(SourceTest, AModelServerGivesBytesAndHashes) {
  const auto one = source("", SourceKind::kHub);
  expect_range(*one, 10, 1000);
  const auto chunks = one->chunks(kFile, bytes_.size(), milliseconds(100));
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  ASSERT_EQ(chunks->size(), 1U);
  EXPECT_EQ(hex(chunks->front()), fetch_test::sha256_text(bytes_));
  // A list for another size is not taken.
  EXPECT_FALSE(one->chunks(kFile, 10 * kChunkBytes, milliseconds(100)).ok());
  EXPECT_EQ(source()->chunks(kFile, 1, milliseconds(0)).error().kind, ErrorKind::kNotFound);
}

TEST_F(SourceTest, CancelEndsAWait) {
  misbehave({Kind::kStatus, 0, 429, {{"Retry-After", "200"}}});
  std::atomic<bool> cancel{false};
  SourceOptions options;
  options.base = endpoint_.url();
  options.model = {"org", "name", "main", ""};
  options.http.cancel = &cancel;
  options.waiting = [&](const std::string&) { cancel = true; };
  auto one = Source::open(std::move(options));
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(range_error(**one).kind, ErrorKind::kCancelled);
}

TEST_F(SourceTest, ATokenIsNotSentInTheClearNorRepeated) {
  SourceOptions options;
  options.base = "http://192.0.2.1:1";
  options.credentials.token = "hf_secret";
  options.model = {"org", "name", "main", ""};
  const auto clear = Source::open(options);
  ASSERT_FALSE(clear.ok());
  EXPECT_EQ(clear.error().message.find("hf_secret"), std::string::npos);
  options.credentials.token.clear();
  EXPECT_TRUE(Source::open(options).ok());
  // A server that says what it was sent.
  misbehave({Kind::kStatus, 0, 403, {{"X-Error-Message", "no access with Bearer hf_secret"}}}, 1,
            false);
  const Error refused = range_error(*source("hf_secret"));
  EXPECT_NE(refused.message.find("no access"), std::string::npos) << refused.message;
  EXPECT_EQ(refused.message.find("hf_secret"), std::string::npos) << refused.message;
}

TEST_F(SourceTest, ACommitThatIsNoneIsNotTaken) {
  for (const char* wrong : {"two words", "../../elsewhere", ".hidden"}) {
    endpoint_.commit = wrong;
    RemoteFile about;
    ASSERT_TRUE(source()->begin("config.json", 8, about).ok());
    EXPECT_EQ(about.commit, "");
  }
}

TEST_F(SourceTest, AFewBytesATimeDoNotHoldUpTheOthers) {
  misbehave({Kind::kDrop, 10, 0, {}}, 1'000'000);
  const Error slow = range_error(*source(), 0, 100'000);
  EXPECT_EQ(slow.kind, ErrorKind::kPeer);
  EXPECT_NE(slow.message.find("given up"), std::string::npos) << slow.message;
}

}  // namespace
}  // namespace tandem::fetch
