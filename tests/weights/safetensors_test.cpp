#include "weights/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/weights/files.h"

namespace tandem::weights {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<std::vector<StoredTensor>> parse(const std::string& file) {
  return parse_safetensors(bytes_of(file), file.size());
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// One tensor's entry, without the braces of the header.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  std::string text = "\"";
  return text.append(name)
      .append(R"(":{"dtype":")")
      .append(dtype)
      .append(R"(","shape":)")
      .append(shape)
      .append(R"(,"data_offsets":)")
      .append(offsets)
      .append("}");
}

std::string header(const std::string& entries) {
  return "{" + entries + "}";
}

TEST(Safetensors, ListsTensorsByNameWithTypeShapeAndPlace) {
  const std::string text =
      header(R"("__metadata__":{"format":"pt"},)" + entry("b", "BF16", "[2,3]", "[4,16]") + "," +
             entry("a", "F32", "[]", "[0,4]") + "," + entry("c", "F16", "[1,1,1,1]", "[16,18]"));
  const std::string file = safetensors(text, std::string(18, 'x'));
  const auto tensors = parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_TRUE((*tensors)[0].shape.empty());
  EXPECT_EQ((*tensors)[0].bytes, 4u);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].type, StoredType::kBF16);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].offset, 8 + text.size() + 4);
  EXPECT_EQ((*tensors)[1].bytes, 12u);
  EXPECT_EQ((*tensors)[2].bytes, 2u);
}

TEST(Safetensors, TakesAHeaderPaddedWithSpacesAndAnEmptyOne) {
  EXPECT_TRUE(parse(safetensors(header(entry("a", "U8", "[1]", "[0,1]")) + "     ", "x")).ok());
  const auto empty = parse(safetensors("{}", ""));
  ASSERT_TRUE(empty.ok()) << empty.error().message;
  EXPECT_TRUE(empty->empty());
}

TEST(Safetensors, UnescapesNames) {
  const auto tensors =
      parse(safetensors(header(entry(R"(w\u00e9\"ight)", "U8", "[1]", "[0,1]")), "x"));
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_EQ((*tensors)[0].name, "w\xc3\xa9\"ight");
}

struct Hostile {
  const char* what;
  std::string file;
  const char* error;  ///< a part of the message
};

std::string with_length(uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}

std::vector<Hostile> hostile_files() {
  const std::string good = entry("a", "F32", "[1]", "[0,4]");
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets,
                      size_t data = 4) {
    return safetensors(header(entry("a", dtype, shape, offsets)), std::string(data, 'x'));
  };
  const auto json = [](std::string_view text, size_t data = 4) {
    return safetensors(text, std::string(data, 'x'));
  };
  const auto two = [](std::string_view first, std::string_view second, size_t data) {
    return safetensors(
        header(entry("a", "F32", "[1]", first) + "," + entry("b", "F32", "[1]", second)),
        std::string(data, 'x'));
  };
  return {
      {"an empty file", "", "at least 8 bytes, found 0"},
      {"seven bytes", std::string(7, '\0'), "at least 8 bytes, found 7"},
      {"a header of no bytes", with_length(0, "{}"), "found a length of 0"},
      {"a header of one byte", with_length(1, "{}"), "found a length of 1"},
      {"a header over 100 MB", with_length(100'000'001, "{}"), "found a length of 100000001"},
      {"a header of 2^64 - 1 bytes", with_length(~uint64_t{0}, "{}"),
       "length of 18446744073709551615"},
      {"a header longer than the file", with_length(3, "{}"), "found only 2 bytes after"},
      {"a header cut off", safetensors(header(good), "").substr(0, 30), "bytes after its length"},

      {"no JSON", json("{hello"), "header"},
      {"an array", json("[1]"), "expected '{'"},
      {"white space first", json(" " + header(good)), "expected '{'"},
      {"an unclosed object", json("{" + good), "header"},
      {"an unclosed string", json(R"({"a)"), "header"},
      {"a missing comma", json("{" + good + entry("b", "F32", "[1]", "[4,8]") + "}", 8), "header"},
      {"a trailing comma", json("{" + good + ",}"), "header"},
      {"two objects", json(header(good) + "{}"), "nothing after"},
      {"text after the object", json(header(good) + "x"), "header"},
      {"a brace too many", json(header(good) + "}"), "header"},
      {"a NUL after the object", json(header(good) + std::string(1, '\0')), "header"},
      {"invalid UTF-8", json(header(entry("a\xff", "F32", "[1]", "[0,4]"))), "UTF-8"},
      {"UTF-8 cut in a name", json("{\"a\xc3\":1}"), "UTF-8"},
      {"a lone surrogate", json(header(entry("\\ud800", "F32", "[1]", "[0,4]"))), "header"},
      {"a raw control character in a name", json("{\"a\nb\":{}}"), "header"},
      {"an unknown escape", json(header(entry("\\q", "F32", "[1]", "[0,4]"))), "header"},
      {"nesting in place of a tensor",
       json("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
       "tensor a: expected an object"},
      {"nesting in place of an extent",
       json(header(entry("a", "F32", std::string(5000, '[') + std::string(5000, ']'), "[0,4]"))),
       "shape: expected an integer"},
      {"nesting in the metadata",
       json("{\"__metadata__\":{\"x\":" + std::string(5000, '[') + std::string(5000, ']') + "}}"),
       "__metadata__: expected only strings"},
      {"nesting of objects", json([] {
         std::string text;
         for (int i = 0; i < 5000; ++i) text += R"({"a":)";
         return text + "1" + std::string(5000, '}');
       }()),
       "tensor a: expected dtype"},

      {"a tensor that is a number", json(R"({"a":1})"), "tensor a: expected an object, found 1"},
      {"a tensor that is null", json(R"({"a":null})"), "tensor a: expected an object, found null"},
      {"no dtype", json(R"({"a":{"shape":[1],"data_offsets":[0,4]}})"), "\"dtype\", found none"},
      {"no shape", json(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})"), "\"shape\", found none"},
      {"no offsets", json(R"({"a":{"dtype":"F32","shape":[1]}})"), "data_offsets: expected two"},
      {"an unknown member", json(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})"),
       "found \"x\""},
      {"dtype twice",
       json(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
       "\"dtype\" stands twice"},
      {"shape twice", json(R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})"),
       "\"shape\" stands twice"},
      {"offsets twice",
       json(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"data_offsets":[0,4]}})"),
       "\"data_offsets\" stands twice"},
      {"shape twice, once escaped",
       json(R"({"a":{"dtype":"F32","shape":[1],"\u0073hape":[1],"data_offsets":[0,4]}})"),
       "\"shape\" stands twice"},
      {"a dtype that is a number", json(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})"),
       "dtype: expected a string, found 7"},
      {"an unknown dtype", one("F33", "[1]", "[0,4]"), "found \"F33\""},
      {"a lower-case dtype", one("f32", "[1]", "[0,4]"), "found \"f32\""},

      {"a tensor twice", json(header(good + "," + good)), "tensor a stands twice"},
      {"a tensor twice, once escaped",
       json(header(good + "," + entry("\\u0061", "F32", "[1]", "[4,8]")), 8),
       "tensor a stands twice"},
      {"metadata twice", json(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "\"__metadata__\" stands twice"},
      {"a metadata key twice", json(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
       "\"k\" stands twice"},
      {"metadata that is an array", json(R"({"__metadata__":[]})", 0),
       "__metadata__: expected an object"},
      {"metadata with a number", json(R"({"__metadata__":{"k":1}})", 0),
       "expected only strings, found 1"},

      {"a name with NUL", json(header(entry("a\\u0000b", "F32", "[1]", "[0,4]"))),
       "control characters, found \"a\\x00b\""},
      {"a name with a slash", json(header(entry("../a", "F32", "[1]", "[0,4]"))),
       "without path parts"},
      {"a name with a backslash", json(header(entry("a\\\\b", "F32", "[1]", "[0,4]"))),
       "without path parts"},
      {"a name of two dots", json(header(entry("..", "F32", "[1]", "[0,4]"))),
       "without path parts"},
      {"an empty name", json(header(entry("", "F32", "[1]", "[0,4]"))), "1 to 512 bytes, found 0"},
      {"a name of 513 bytes", json(header(entry(std::string(513, 'n'), "F32", "[1]", "[0,4]"))),
       "1 to 512 bytes, found 513"},
      {"a name with an escape sequence for terminals",
       json(header(entry("\\u001b[2J", "F32", "[1]", "[0,4]"))), "found \"\\x1b[2J\""},

      {"a shape that is a number", one("F32", "1", "[0,4]"), "shape: expected an array, found 1"},
      {"a shape that is a string", one("F32", "\"1\"", "[0,4]"), "shape: expected an array"},
      {"a negative extent", one("F32", "[-1]", "[0,4]"), "found -1"},
      {"a fractional extent", one("F32", "[1.0]", "[0,4]"), "found 1.0"},
      {"an extent with an exponent", one("F32", "[1e0]", "[0,4]"), "found 1e0"},
      {"an extent of 2^64", one("F32", "[18446744073709551616]", "[0,4]"),
       "found 18446744073709551616"},
      {"an extent with a leading zero", one("F32", "[01]", "[0,4]"), "found 01"},
      {"an extent that is a string", one("F32", "[\"1\"]", "[0,4]"), "found \"1\""},
      {"an extent that is true", one("F32", "[true]", "[0,4]"), "found true"},
      {"an extent of 0", one("F32", "[0]", "[0,0]", 0), "no extent of 0"},
      {"an extent of 0 that hides an overflow", one("F32", "[18446744073709551615,0]", "[0,0]", 0),
       "shape: expected"},
      {"a product of 2^64", one("F32", "[4294967296,4294967296]", "[0,0]", 0),
       "less than 2^63 bytes"},
      {"a product that wraps to 4", one("F32", "[4611686018427387905]", "[0,4]"),
       "less than 2^63 bytes"},
      {"nine dimensions", one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), "at most 8 numbers"},
      {"a shape without its end", json(R"({"a":{"dtype":"F32","shape":[1)"), "header"},

      {"offsets that are a number", one("F32", "[1]", "4"), "data_offsets: expected an array"},
      {"one offset", one("F32", "[1]", "[4]"), "data_offsets: expected two numbers"},
      {"three offsets", one("F32", "[1]", "[0,4,8]"), "at most 2 numbers"},
      {"a negative offset", one("F32", "[1]", "[-4,0]"), "found -4"},
      {"a fractional offset", one("F32", "[1]", "[0,4.5]"), "found 4.5"},
      {"offsets the wrong way round", one("F32", "[1]", "[4,0]"), "begin before end, found [4, 0]"},
      {"an end past the data", one("F32", "[2]", "[0,8]"),
       "within the 4 bytes of data, found [0, 8]"},
      {"both offsets past the data", one("F32", "[1]", "[8,12]"), "within the 4 bytes"},
      {"an end of 2^64 - 1", one("F32", "[1]", "[18446744073709551612,18446744073709551615]"),
       "within the 4 bytes"},
      {"fewer bytes than the shape needs", one("F32", "[2]", "[0,4]"),
       "expected 8 bytes for F32 [2]"},
      {"more bytes than the shape needs", one("BF16", "[1]", "[0,4]"),
       "expected 2 bytes for BF16 [1]"},
      {"tensors that overlap", two("[0,4]", "[2,6]", 6),
       "tensor b: overlaps another: expected its data at offset 4, found 2"},
      {"tensors at one place", two("[0,4]", "[0,4]", 4), "overlaps another"},
      {"a gap between tensors", two("[0,4]", "[6,10]", 10), "tensor b: leaves a gap"},
      {"a gap before the first", one("F32", "[1]", "[4,8]", 8), "tensor a: leaves a gap"},
      {"data cut off", two("[0,4]", "[4,8]", 7), "within the 7 bytes of data"},
      {"bytes after the last tensor", one("F32", "[1]", "[0,4]", 5), "trailing bytes"},
      {"bytes without any tensor", json("{}"), "trailing bytes"},
  };
}

TEST(Safetensors, RefusesEachHostileFileWithOneClearError) {
  const TemporaryFolder folder;
  for (const Hostile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.what);
    const auto path = folder / "model.safetensors";
    write_file(path, hostile.file);
    const auto file = SafetensorsFile::open(path);
    if (file.ok()) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    const std::string& message = file.error().message;
    EXPECT_NE(message.find(hostile.error), std::string::npos) << message;
    EXPECT_EQ(message.find(path.string()), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 700u) << message;
  }
}

TEST(Safetensors, RefusesEveryShortenedFormOfAGoodFile) {
  const std::string good =
      safetensors(header(R"("__metadata__":{"format":"pt"},)" + entry("a", "F32", "[2]", "[0,8]") +
                         "," + entry("b", "BF16", "[1,2]", "[8,12]")),
                  std::string(12, 'x'));
  ASSERT_TRUE(parse(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
  }
}

TEST(Safetensors, RefusesTooManyTensors) {
  std::string text = "{";
  for (uint64_t i = 0; i <= kMaxTensors; ++i) {
    if (i > 0) text += ",";
    text += entry(std::to_string(i), "U8", "[1]",
                  "[" + std::to_string(i) + "," + std::to_string(i + 1) + "]");
  }
  const auto tensors = parse(safetensors(text + "}", std::string(kMaxTensors + 1, 'x')));
  ASSERT_FALSE(tensors.ok());
  EXPECT_EQ(tensors.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(tensors.error().message.find("at most 100000 tensors"), std::string::npos);
}

TEST(Safetensors, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "directory");
  const auto directory = SafetensorsFile::open(folder / "directory");
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.error().message.find("found a folder"), std::string::npos);

  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const auto fifo = SafetensorsFile::open(folder / "fifo");
  ASSERT_FALSE(fifo.ok());
  EXPECT_NE(fifo.error().message.find("device or pipe"), std::string::npos);

  const auto missing = SafetensorsFile::open(folder / "missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
}

TEST(Safetensors, ListsTensorsThatCanNotBeWeightsAndRefusesToReadThem) {
  const TemporaryFolder folder;
  write_file(folder / "f", safetensors(header(entry("ids", "I64", "[1]", "[0,8]") + "," +
                                              entry("fp8", "F8_E4M3", "[1]", "[8,9]") + "," +
                                              entry("deep", "F32", "[1,1,1,1,1,1,1,1]", "[9,13]") +
                                              "," + entry("w", "F32", "[1]", "[13,17]")),
                                       std::string(17, 'x')));
  const auto file = SafetensorsFile::open(folder / "f");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->tensors().size(), 4u);
  ASSERT_TRUE((*file)->read("w").ok());
  EXPECT_EQ(text_of((*file)->read("w")->bytes), "xxxx");
  for (const auto& [name, error] :
       {std::pair{"ids", "tensor ids: expected F32, F16 or BF16 weights, found I64"},
        std::pair{"fp8", "found F8_E4M3"}, std::pair{"deep", "at most 4 dimensions, found 8"}}) {
    const auto data = (*file)->read(name);
    ASSERT_FALSE(data.ok());
    EXPECT_EQ(data.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(data.error().message.find(error), std::string::npos) << data.error().message;
  }
  EXPECT_EQ((*file)->read("none").error().kind, ErrorKind::kNotFound);
}

TEST(Safetensors, NoticesAFileThatShrinksOrIsWrittenTo) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  const std::string content = safetensors(header(entry("a", "F32", "[1]", "[0,4]")), "wxyz");
  write_file(path, content);
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(text_of((*file)->read("a")->bytes), "wxyz");
  std::filesystem::resize_file(path, content.size() - 1);
  const auto data = (*file)->read("a");
  ASSERT_FALSE(data.ok());
  EXPECT_NE(data.error().message.find("changed while open"), std::string::npos);
  EXPECT_NE(data.error().message.find("tensor a"), std::string::npos);
}

TEST(Safetensors, KeepsBytesAliveAfterTheFileIsClosed) {
  const TemporaryFolder folder;
  write_file(folder / "f", safetensors(header(entry("a", "F32", "[1]", "[0,4]")), "wxyz"));
  TensorData data;
  {
    auto file = SafetensorsFile::open(folder / "f");
    ASSERT_TRUE(file.ok());
    data = *(*file)->read("a");
    std::filesystem::remove(folder / "f");
  }
  EXPECT_EQ(text_of(data.bytes), "wxyz");
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const auto path = folder / "out.safetensors";
  auto writer = SafetensorsWriter::create(path,
                                          {{"z.weight", StoredType::kBF16, {2, 1}},
                                           {"ids", StoredType::kI32, {1}},
                                           {"s", StoredType::kF32, {}}},
                                          {{"format", "pt"}, {"note", "quotes \" and \\ and \n"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_TRUE((*writer)->write(bytes_of("abcde")).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE((*writer)->write(bytes_of("fghijkl")).ok());
  ASSERT_TRUE((*writer)->finish().ok());

  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(text_of((*file)->read("z.weight")->bytes), "abcd");
  EXPECT_EQ(text_of((*file)->read_raw(*(*file)->find("ids"))->bytes), "efgh");
  EXPECT_EQ(text_of((*file)->read("s")->bytes), "ijkl");
  EXPECT_EQ((*file)->find("z.weight")->offset % 8, 0u);
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessFinished) {
  const TemporaryFolder folder;
  {
    auto writer = SafetensorsWriter::create(folder / "f", {{"a", StoredType::kF32, {2}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->write(bytes_of("abcd")).ok());
    const Status early = (*writer)->finish();
    ASSERT_FALSE(early.ok());
    EXPECT_NE(early.error().message.find("expected 4 more bytes"), std::string::npos);
    EXPECT_FALSE((*writer)->write(bytes_of("too many")).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, RefusesWhatTheReaderWouldRefuse) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<StoredTensor>& tensors) {
    return !SafetensorsWriter::create(folder / "f", tensors).ok();
  };
  EXPECT_TRUE(refused({{"a", StoredType::kF32, {1}}, {"a", StoredType::kF32, {1}}}));
  EXPECT_TRUE(refused({{"a/b", StoredType::kF32, {1}}}));
  EXPECT_TRUE(refused({{"a", StoredType::kF32, {0}}}));
  EXPECT_TRUE(refused({{"a", StoredType::kF32, {uint64_t{1} << 32, uint64_t{1} << 32}}}));
  EXPECT_TRUE(refused({{"\xff", StoredType::kF32, {1}}}));
  EXPECT_FALSE(SafetensorsWriter::create(folder / "no" / "f", {{"a", StoredType::kF32, {1}}}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, ReadsTheReferenceModels) {
  for (const char* name : {"llama", "llama-tied", "mistral", "qwen2", "qwen3", "gpt2", "gemma3",
                           "phi3", "olmo2", "smollm3", "granite"}) {
    const auto golden =
        SafetensorsFile::open(source_path("tests/data/oracle") / name / "golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    const StoredTensor* tokens = (*golden)->find("tokens");
    ASSERT_NE(tokens, nullptr);
    EXPECT_EQ(tokens->type, StoredType::kI32);
    EXPECT_EQ(tokens->shape, (std::vector<uint64_t>{48}));
    EXPECT_TRUE((*golden)->read("logits").ok());
    EXPECT_FALSE((*golden)->read("tokens").ok());
  }
}

}  // namespace
}  // namespace tandem::weights
