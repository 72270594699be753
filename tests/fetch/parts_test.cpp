// URLs, names, fields of headers, framings of bodies, lists of chunks, the journal.
#include <gtest/gtest.h>

#include "fetch/http.h"
#include "fetch/source.h"
#include "fetch/url.h"
#include "weights/journal.h"

namespace tandem::fetch {
namespace {

using std::chrono::milliseconds;

TEST(Url, IsReadAndWritten) {
  const auto url = parse_url("https://Example.org:8443/a/b?x=1#part");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->encrypted);
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/a/b?x=1");
  EXPECT_EQ(url->origin(), "https://example.org:8443");
  EXPECT_EQ(url->shown(), "https://example.org:8443/a/b");
  EXPECT_EQ(parse_url("http://[::1]:80")->origin(), "http://[::1]");
  for (const char* wrong :
       {"", "ftp://a/", "https://", "https://a b/", "https://user:pass@host/", "https://host:0/",
        "https://host:70000/", "https://host:/", "https://[::1", "//host/", "https://a\r\nb/"}) {
    EXPECT_FALSE(parse_url(wrong).ok()) << wrong;
  }
}

TEST(Url, RedirectsAreRelativeToWhatAnswered) {
  const Url base = *parse_url("https://host/a/b?q");
  EXPECT_EQ(resolve(base, "/c?d")->target, "/c?d");
  EXPECT_EQ(resolve(base, "c")->target, "/a/c");
  EXPECT_EQ(resolve(base, "//other/c")->host, "other");
  EXPECT_EQ(resolve(base, "https://other/c")->origin(), "https://other");
  EXPECT_EQ(resolve(base, "/c?to=http://x/")->origin(), "https://host");
  EXPECT_FALSE(resolve(base, "http://other/c").ok()) << "leaves encryption";
  EXPECT_TRUE(resolve(*parse_url("http://host/"), "http://other/c").ok());
}

TEST(Names, OfModels) {
  const auto name = parse_model_name("Org-1/Name_2.5@refs/pr/1");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->organization, "Org-1");
  EXPECT_EQ(name->name, "Name_2.5");
  EXPECT_EQ(name->revision, "refs/pr/1");
  EXPECT_EQ(parse_model_name("name")->revision, "main");
  for (const char* wrong : {"", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", "a/b@", "a/b@..",
                            "a/b@x/../y", "a b/c", "a/b@x@y", "a/b\n"}) {
    EXPECT_FALSE(parse_model_name(wrong).ok()) << wrong;
  }
  std::string endpoint;
  const auto url = parse_model_url("https://host/mirror/org/name/resolve/v1/x.gguf", endpoint);
  ASSERT_TRUE(url.ok()) << url.error().message;
  EXPECT_EQ(endpoint, "https://host/mirror");
  EXPECT_EQ(url->text(), "org/name");
  EXPECT_EQ(url->revision, "v1");
  EXPECT_EQ(url->file, "x.gguf");
  EXPECT_EQ(parse_model_url("https://host/org/name/", endpoint)->text(), "org/name");
  EXPECT_FALSE(parse_model_url("https://host/org", endpoint).ok());
  EXPECT_FALSE(parse_model_url("https://host/org/name/resolve/main/a/b", endpoint).ok());
}

TEST(Fields, ContentRange) {
  const auto range = parse_content_range("bytes 5-9/100");
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->end, 10U);
  EXPECT_EQ(range->size, 100U);
  EXPECT_FALSE(parse_content_range("bytes 5-9/*")->size.has_value());
  EXPECT_EQ(parse_content_range("bytes */0")->size, 0U);
  for (const char* wrong :
       {"", "bytes", "bytes 9-5/100", "bytes 5-100/100", "bytes 5-/100", "bytes -5/100",
        "items 5-9/100", "bytes 5-9", "bytes */*", "bytes 5-99999999999999999999/*",
        "bytes 5-9223372036854775807/*", "bytes +5-9/100"}) {
    EXPECT_FALSE(parse_content_range(wrong).ok()) << wrong;
  }
}

TEST(Fields, RetryAfter) {
  const std::chrono::system_clock::time_point now{std::chrono::seconds(784111777)};
  EXPECT_EQ(parse_retry_after("120", now), milliseconds(120000));
  EXPECT_EQ(parse_retry_after("99999999", now), milliseconds(86400000));
  // The RFC's own example is that very second.
  EXPECT_EQ(parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), milliseconds(0));
  EXPECT_EQ(parse_retry_after("Sun, 06 Nov 1994 08:50:07 GMT", now), milliseconds(30000));
  for (const char* wrong : {"", "-1", "1.5", "soon", "Sun, 06 Nov 1994 08:49:37",
                            "Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Nov 1994 25:49:37 GMT"}) {
    EXPECT_FALSE(parse_retry_after(wrong, now).has_value()) << wrong;
  }
}

TEST(Fields, RetryAfterADateBeyondTheClock) {
  const auto now = std::chrono::system_clock::now();
  for (const char* date : {"Fri, 31 Dec 9999 23:59:59 GMT", "Tue, 31 Dec 2999 23:59:59 GMT"}) {
    const auto wait = parse_retry_after(date, now);
    EXPECT_TRUE(!wait || *wait == std::chrono::hours(24)) << date;
  }
}

TEST(Fields, Tags) {
  EXPECT_EQ(plain_etag("\"abc\""), "abc");
  EXPECT_EQ(plain_etag("W/\"abc\""), "abc");
  EXPECT_EQ(plain_etag("abc"), "abc");
  EXPECT_EQ(plain_etag("\"a b\""), "");
}

/// The body of an answer with these fields, handed over `step` bytes at a time.
std::string body_of(const std::string& fields, std::string_view bytes, size_t step, Status& status,
                    bool ended) {
  const auto header = hub::parse_answer_header("HTTP/1.1 200 OK\r\n" + fields + "\r\n");
  EXPECT_TRUE(header.ok());
  auto body = BodyReader::open(*header);
  std::string found;
  if (!body.ok()) {
    status = body.error();
    return found;
  }
  while (!bytes.empty() && status.ok() && !body->done()) {
    std::string_view part = bytes.substr(0, step);
    bytes.remove_prefix(part.size());
    while (!part.empty() && status.ok() && !body->done()) {
      status = body->take(part, [&](std::string_view one) {
        found += one;
        return Status();
      });
    }
  }
  if (ended && status.ok()) status = body->connection_ended();
  return found;
}

TEST(Body, FramingsGiveTheSameBytes) {
  const std::string chunked = "5;a=b\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nX: y\r\n\r\n";
  for (size_t step = 1; step <= chunked.size(); ++step) {
    Status status;
    EXPECT_EQ(body_of("Transfer-Encoding: chunked\r\n", chunked, step, status, true),
              "hello world");
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  Status status;
  EXPECT_EQ(body_of("Content-Length: 5\r\n", "hello", 2, status, true), "hello");
  EXPECT_EQ(body_of("", "hello", 2, status, true), "hello");
  EXPECT_TRUE(status.ok());
  body_of("Content-Length: 6\r\n", "hello", 2, status, true);
  EXPECT_FALSE(status.ok());
}

TEST(Body, WrongFramingsAreRefused) {
  for (const auto& [fields, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"Transfer-Encoding: gzip\r\n", ""},
           {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", ""},
           {"Content-Length: -1\r\n", ""},
           {"Transfer-Encoding: chunked\r\n", "x\r\n"},
           {"Transfer-Encoding: chunked\r\n", "1\r\nab\r\n"},
           {"Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n"},
           {"Transfer-Encoding: chunked\r\n", std::string(5000, 'a')},
           {"Transfer-Encoding: chunked\r\n", "5\r\nhel"}}) {
    Status status;
    body_of(fields, bytes, 1000, status, true);
    EXPECT_FALSE(status.ok()) << fields << bytes.substr(0, 20);
  }
}

TEST(Chunks, ListIsReadForItsSizeOnly) {
  const std::string one(64, 'a');
  const std::string list = R"({"chunk_bytes": 4194304, "sha256": [")" + one + R"("]})";
  EXPECT_TRUE(parse_chunks(list, 1).ok());
  EXPECT_TRUE(parse_chunks(list, 0).ok());
  EXPECT_TRUE(parse_chunks(list, kChunkBytes).ok());
  EXPECT_FALSE(parse_chunks(list, kChunkBytes + 1).ok());
  for (const std::string& wrong :
       {std::string("[]"), std::string("{}"), std::string(R"({"chunk_bytes": 1, "sha256": []})"),
        std::string(R"({"chunk_bytes": 4194304, "sha256": ["ab"]})"),
        std::string(R"({"chunk_bytes": 4194304, "sha256": [[1]]})"), std::string(100000, '[')}) {
    EXPECT_FALSE(parse_chunks(wrong, 1).ok()) << wrong.substr(0, 50);
  }
}

TEST(Sources, PolicyIsReadStrictly) {
  EXPECT_EQ(parse_sources("hub,cache")->size(), 2U);
  EXPECT_FALSE(parse_sources("").ok());
  EXPECT_FALSE(parse_sources("hub,").ok());
  EXPECT_FALSE(parse_sources("hub,elsewhere").ok());
}

}  // namespace
}  // namespace tandem::fetch

namespace tandem::weights {
namespace {

std::string sample() {
  PulledFile file;
  file.name = "model.safetensors";
  file.size = 100;
  file.sha256 = sha256("whole");
  return journal_header() + model_line("org/name", "main", "abc") + file_line(file) +
         tag_line(0, "https://host", "tag") + have_line(0, 10, {20, sha256("a"), "https://host"}) +
         have_line(0, 30, {70, sha256("b"), "https://host"}) +
         have_line(0, 0, {10, sha256("c"), "other"}) + lost_line(0, 30);
}

TEST(Journal, IsReadBack) {
  uint64_t good = 0;
  const auto journal = Journal::parse(sample(), good);
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ(good, sample().size());
  EXPECT_EQ(journal->model, "org/name");
  EXPECT_EQ(journal->commit, "abc");
  const PulledFile* file = journal->find("model.safetensors");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->tags.at("https://host"), "tag");
  EXPECT_EQ(file->present(), 30U);
  EXPECT_TRUE(file->has(0, 30));
  EXPECT_TRUE(file->has(5, 20));
  EXPECT_FALSE(file->has(0, 31));
  EXPECT_FALSE(file->has(40, 1));
  EXPECT_FALSE(file->has(90, UINT64_MAX));
  EXPECT_FALSE(file->complete());
}

TEST(Journal, CutAnywhereItLosesTheLastLineAlone) {
  const std::string whole = sample();
  for (size_t size = 0; size < whole.size(); ++size) {
    uint64_t good = 0;
    const auto journal = Journal::parse(std::string_view(whole).substr(0, size), good);
    ASSERT_TRUE(journal.ok()) << size;
    EXPECT_LE(good, size);
    EXPECT_EQ(good == 0 ? '\n' : whole[good - 1], '\n');
    EXPECT_EQ(whole.substr(good, size - good).find('\n'), std::string::npos);
  }
}

TEST(Journal, NothingIsTakenBehindDamage) {
  std::string text = sample();
  text[text.find("have 0 10") + 5] = '1';
  uint64_t good = 0;
  const auto journal = Journal::parse(text, good);
  ASSERT_TRUE(journal.ok());
  EXPECT_TRUE(journal->find("model.safetensors")->pieces.empty());
  // Pieces that overlap or pass the end, with right checks.
  for (const std::string& line :
       {have_line(0, 25, {10, {}, "x"}), have_line(0, 95, {10, {}, "x"}),
        have_line(0, UINT64_MAX / 8, {10, {}, "x"}), have_line(9, 40, {10, {}, "x"}),
        have_line(0, 40, {0, {}, "x"}), lost_line(0, 11)}) {
    uint64_t end = 0;
    ASSERT_TRUE(Journal::parse(sample() + line, end).ok());
    EXPECT_EQ(end, sample().size()) << line;
  }
  EXPECT_FALSE(Journal::parse("something else entirely", good).ok());
  EXPECT_FALSE(Journal::parse("tandem journal 2\n", good).ok());
}

}  // namespace
}  // namespace tandem::weights
