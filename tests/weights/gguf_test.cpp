#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/weights/files.h"
#include "tests/weights/gguf_writer.h"
#include "weights/checkpoint.h"
#include "weights/dtype.h"
#include "weights/gguf_text.h"
#include "weights/manifest.h"

namespace tandem::weights {
namespace {

std::span<const std::byte> span_of(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

Result<GgufHeader> parse(const std::string& file) {
  return parse_gguf(span_of(file), file.size());
}

TEST(Gguf, ReadsEveryTypeOfValueInBothVersions) {
  GgufWriter writer;
  writer.pair("u8", 0, std::string(1, '\x80'));
  writer.pair("i8", 1, std::string(1, '\x80'));
  writer.pair("u16", 2, GgufWriter::number(uint16_t{65535}));
  writer.pair("i16", 3, GgufWriter::number(int16_t{-2}));
  writer.u32("u32", 4'000'000'000U);
  writer.pair("i32", 5, GgufWriter::number(int32_t{-5}));
  writer.f32("f32", 0.5F);
  writer.flag("yes", true);
  writer.string("text", "a b");
  writer.pair("u64", 10, GgufWriter::number(~uint64_t{0}));
  writer.pair("i64", 11, GgufWriter::number(int64_t{-7}));
  writer.pair("f64", 12, GgufWriter::number(0.1));
  writer.strings("list", {"x", "", "yz"});
  writer.numbers<int32_t>("ints", 5, {1, -1});
  // An array of arrays is walked over.
  writer.pair("deep", 9,
              GgufWriter::number(uint32_t{9}) + GgufWriter::number(uint64_t{1}) +
                  GgufWriter::number(uint32_t{0}) + GgufWriter::number(uint64_t{2}) + "ab");
  writer.tensor("b", 0, {3, 2}, floats(6, 1));
  writer.tensor("a", 8, {32}, std::string(34, 'q'));
  for (const uint32_t version : {2U, 3U}) {
    const std::string file = writer.file(version);
    const auto header = parse(file);
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(*header->find("u8"), GgufValue(uint64_t{128}));
    EXPECT_EQ(*header->find("i8"), GgufValue(int64_t{-128}));
    EXPECT_EQ(*header->find("i16"), GgufValue(int64_t{-2}));
    EXPECT_EQ(*header->integer("u32", 0, UINT32_MAX), 4'000'000'000U);
    EXPECT_EQ(*header->number("f32"), 0.5);
    EXPECT_EQ(*header->number("f64"), 0.1);
    EXPECT_EQ(*header->flag("yes"), true);
    EXPECT_EQ(*header->text("text"), "a b");
    EXPECT_EQ(*header->text("none", "other"), "other");
    EXPECT_EQ(*header->find("list"), GgufValue(std::vector<std::string>{"x", "", "yz"}));
    EXPECT_EQ(*header->find("ints"), GgufValue(std::vector<int64_t>{1, -1}));
    EXPECT_NE(header->find("deep"), nullptr);
    EXPECT_EQ(header->find("none"), nullptr);
    EXPECT_EQ(header->integer("i32", 0, 9).error().message,
              "key i32: expected an integer from 0 to 9, found -5");
    EXPECT_EQ(header->integer("text", 0, 9).error().message,
              "key text: expected an integer, found another type");
    ASSERT_EQ(header->tensors.size(), 2U);
    EXPECT_EQ(header->tensors[0].name, "a");
    EXPECT_EQ(header->tensors[0].dtype, DType::kQ8_0);
    EXPECT_EQ(header->tensors[0].bytes, 34U);
    EXPECT_EQ(header->tensors[1].shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(header->tensors[1].offset % 32, 0U);
    float first = 0;
    std::memcpy(&first, file.data() + header->tensors[1].offset, 4);
    EXPECT_EQ(first, 1.0F);
  }
}

TEST(Gguf, HeedsTheAlignment) {
  GgufWriter writer;
  writer.alignment = 4096;
  writer.u32("general.alignment", 4096);
  writer.tensor("a", 0, {1}, "1234");
  writer.tensor("b", 0, {1}, "5678");
  const auto header = parse(writer.file());
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->find_tensor("a")->offset, 4096U);
  EXPECT_EQ(header->find_tensor("b")->offset, 8192U);
}

struct Hostile {
  const char* what;
  std::string file;
  const char* error;
};

std::vector<Hostile> hostile_files() {
  const auto with = [](auto change) {
    GgufWriter writer;
    writer.string("general.architecture", "llama");
    change(writer);
    return writer.file();
  };
  const auto pair = [&](uint32_t type, const std::string& value) {
    return with([&](GgufWriter& w) { w.pair("k", type, value); });
  };
  const auto array = [&](uint32_t type, uint64_t count, const std::string& rest) {
    return pair(9, GgufWriter::number(type) + GgufWriter::number(count) + rest);
  };
  const auto tensor = [&](uint32_t type, const std::vector<uint64_t>& extents, uint64_t offset,
                          size_t data = 64) {
    return with([&](GgufWriter& w) { w.raw_tensor("t", type, extents, offset); }) +
           std::string(data, 'x');
  };
  std::string nested;
  for (int i = 0; i < 1000; ++i) {
    nested += GgufWriter::number(uint32_t{9}) + GgufWriter::number(uint64_t{1});
  }
  const std::string good = with([](GgufWriter& w) { w.tensor("t", 0, {2}, "12345678"); });
  return {
      {"an empty file", "", "begins with GGUF"},
      {"another magic", "GGML" + good.substr(4), "begins with GGUF"},
      {"only the magic", "GGUF", "header: expected more bytes"},
      {"version 1", with([](auto&) {}).replace(4, 4, GgufWriter::number(uint32_t{1})),
       "version 2 or 3, found 1"},
      {"a big-endian version", with([](auto&) {}).replace(4, 4, GgufWriter::number(0x03000000U)),
       "big-endian"},
      {"2^64 - 1 tensors", GgufWriter().file_of(3, ~uint64_t{0}, 0),
       "a count of 18446744073709551615"},
      {"2^64 - 1 keys", GgufWriter().file_of(3, 0, ~uint64_t{0}),
       "keys that fit the file, found a count of 18446744073709551615"},
      {"more keys than bytes", GgufWriter().file_of(3, 0, 60000), "found a count of 60000"},
      {"more tensors than bytes", GgufWriter().file_of(3, 90000, 0), "found a count of 90000"},
      {"a key of 2^63 bytes",
       "GGUF" + GgufWriter::number(uint32_t{3}) + GgufWriter::number(uint64_t{0}) +
           GgufWriter::number(uint64_t{1}) + GgufWriter::number(1ULL << 63) + std::string(64, 'k'),
       "key 0: expected a string"},
      {"a key that stands twice", with([](GgufWriter& w) {
         w.u32("k", 1);
         w.u32("k", 2);
       }),
       "key k stands twice"},
      {"an unknown type", pair(13, std::string(64, 'x')), "key k: expected a type from 0 to 12"},
      {"a boolean of 2", pair(7, "\2"), "boolean of 0 or 1, found 2"},
      {"a string past the end", pair(8, GgufWriter::number(uint64_t{1} << 20)),
       "found a length of 1048576"},
      {"a string of 2^64 - 1", pair(8, GgufWriter::number(~uint64_t{0})), "found a length of 1844"},
      {"an array of an unknown type", array(13, 1, "x"), "elements of a type from 0 to 12"},
      {"an array of 2^64 - 1", array(4, ~uint64_t{0}, "x"), "found a count of 1844674407370955161"},
      {"an array whose bytes overflow", array(10, uint64_t{1} << 61, "x"), "found a count of 2305"},
      {"an array past the end", array(4, 1000, "x"), "found a count of 1000"},
      {"strings past the end", array(8, 4, GgufWriter::number(~uint64_t{0}) + std::string(64, 'x')),
       "key k: expected a string"},
      {"arrays a thousand deep", pair(9, nested), "at most 4 deep"},
      {"no dimensions", tensor(0, {}, 0), "tensor t: expected 1 to 4 dimensions, found 0"},
      {"five dimensions", tensor(0, {1, 1, 1, 1, 1}, 0), "expected 1 to 4 dimensions, found 5"},
      {"an extent of 0", tensor(0, {4, 0}, 0), "without 0 and below 2^63 bytes, found [0, 4]"},
      {"2^64 elements", tensor(0, {1ULL << 32, 1ULL << 32}, 0), "below 2^63 bytes"},
      {"2^63 elements in fewer bytes", tensor(10, {1ULL << 32, 1ULL << 31}, 0), "below 2^63"},
      {"half a block", tensor(8, {48}, 0), "a shape of Q8_0 blocks"},
      {"a type of activations", tensor(9, {32}, 0), "tensor t: type Q8_1 is not read"},
      {"a type that is not known", tensor(77, {32}, 0), "type number 77 is not read"},
      {"an offset off the alignment", tensor(0, {2}, 8), "multiple of 32, found 8"},
      {"an offset past the end", tensor(0, {2}, 1 << 20), "found an offset of 1048576"},
      {"an offset of 2^64 - 32", tensor(0, {2}, ~uint64_t{31}), "found an offset of 1844"},
      {"bytes past the end", tensor(0, {1000}, 0), "expected 4000 bytes within the 64"},
      {"no data at all", good.substr(0, good.size() - 8),
       "tensor t: expected 8 bytes within the 0"},
      {"an alignment of 3", with([](GgufWriter& w) { w.u32("general.alignment", 3); }),
       "power of two, found 3"},
      {"an alignment of 0", with([](GgufWriter& w) { w.u32("general.alignment", 0); }),
       "expected an integer from 1"},
      {"an alignment that is text", with([](GgufWriter& w) { w.string("general.alignment", "x"); }),
       "expected an integer, found another type"},
      {"overlapping tensors", with([](GgufWriter& w) {
                                w.raw_tensor("a", 0, {16}, 0);
                                w.raw_tensor("b", 0, {8}, 32);
                              }) + std::string(64, 'x'),
       "its bytes overlap those of a"},
      {"a tensor twice", with([](GgufWriter& w) {
                           w.raw_tensor("a", 0, {8}, 0);
                           w.raw_tensor("a", 0, {8}, 32);
                         }) + std::string(64, 'x'),
       "tensor a stands twice"},
      {"a name with a slash",
       with([](GgufWriter& w) { w.raw_tensor("../a", 0, {8}, 0); }) + std::string(32, 'x'), "name"},
  };
}

TEST(Gguf, RefusesHostileFilesAndSaysWhy) {
  for (const Hostile& one : hostile_files()) {
    const auto header = parse(one.file);
    ASSERT_FALSE(header.ok()) << one.what;
    EXPECT_NE(header.error().message.find(one.error), std::string::npos)
        << one.what << ": " << header.error().message;
  }
}

TEST(Gguf, EveryCutOfAHeaderIsRefused) {
  GgufWriter writer = small_llama();
  writer.strings("list", {"a", "bc"});
  writer.tensor("t", 0, {2}, "12345678");
  const std::string file = writer.file();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse(file.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(parse(file).ok());
}

class GgufFiles : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& file) {
    write_file(folder_ / name, file);
    return folder_ / name;
  }
  std::string refusal(const std::string& file) {
    const auto checkpoint = Checkpoint::open(write("m.gguf", file));
    return checkpoint.ok() ? "was accepted" : checkpoint.error().message;
  }
  TemporaryFolder folder_;
};

TEST_F(GgufFiles, BecomeCheckpoints) {
  GgufWriter writer = small_llama();
  writer.f32("llama.rope.freq_base", 500000.0F);
  add_llama_tensors(writer, false);
  auto checkpoint = Checkpoint::open(write("m.gguf", writer.file()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto config = nlohmann::json::parse((*checkpoint)->config_json());
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["vocab_size"], 40);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["rms_norm_eps"].get<double>(), 1e-5);  // not the nearest binary32
  EXPECT_EQ(config["rope_theta"].get<double>(), 500000.0);
  EXPECT_EQ((*checkpoint)->tensors().size(), 20U);
  // Four heads of 16 rows: the file has row i of the first half beside row i of the second.
  const auto query = (*checkpoint)->read("model.layers.0.self_attn.q_proj.weight");
  ASSERT_TRUE(query.ok()) << query.error().message;
  std::vector<float> values(64 * 64);
  ASSERT_TRUE(widen(query->info.dtype, query->bytes, values).ok());
  const auto stored = (*checkpoint)->stored("model.layers.0.self_attn.q_proj.weight");
  const auto value = (*checkpoint)->stored("model.layers.0.self_attn.v_proj.weight");
  EXPECT_FALSE(stored->conversion.empty());
  EXPECT_TRUE(value->conversion.empty());
  const float first = 300000.0F;  // token_embd, output_norm, attn_norm come before
  for (uint32_t head = 0; head < 4; ++head) {
    for (uint32_t i = 0; i < 8; ++i) {
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = head * 16 + half * 8 + i;
        const uint32_t from = head * 16 + 2 * i + half;
        EXPECT_EQ(values[row * 64], first + static_cast<float>(from * 64)) << row;
      }
    }
  }
}

TEST_F(GgufFiles, MayBeTheOnlyModelOfAFolder) {
  GgufWriter writer = small_llama();
  add_llama_tensors(writer);
  write("m.gguf", writer.file());
  write("mmproj-m.gguf", "GGUF");
  auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->folder(), folder_ / "m.gguf");
  write("n.gguf", writer.file());
  const auto two = Checkpoint::open(folder_.path());
  ASSERT_FALSE(two.ok());
  EXPECT_NE(two.error().message.find("found 2 GGUF files"), std::string::npos);
}

TEST_F(GgufFiles, RefuseByNameWhatWouldChangeTheAnswer) {
  using Change = std::function<void(GgufWriter&)>;
  const auto changed = [](const Change& change, bool tensors = true) {
    GgufWriter writer = small_llama();
    change(writer);
    if (tensors) add_llama_tensors(writer);
    return writer.file();
  };
  struct Case {
    std::string file;
    const char* error;
  };
  GgufWriter unknown = small_llama("mamba");
  const Case cases[] = {
      {unknown.file(), "m.gguf: key general.architecture: mamba is not known; known are llama"},
      {GgufWriter().file(), "key general.architecture: expected a name"},
      {changed([](GgufWriter& w) { w.f32("llama.attention.max_alibi_bias", 8); }),
       "key llama.attention.max_alibi_bias is not known"},
      {changed([](GgufWriter& w) { w.flag("llama.attention.causal", false); }),
       "key llama.attention.causal is false"},
      {changed([](GgufWriter& w) { w.string("llama.rope.scaling.type", "spiral"); }),
       "key llama.rope.scaling.type: spiral is not known"},
      {changed([](GgufWriter& w) { w.u32("llama.attention.value_length", 32); }),
       "key llama.attention.value_length is 32"},
      {changed(
           [](GgufWriter& w) {
             w.numbers<uint32_t>("llama.rope.freq_base_swa", 4, {1, 2});
           },
           false),
       "tensor token_embd.weight: expected a matrix"},
      {changed([](GgufWriter& w) { w.tensor("blk.0.attn_sinks.weight", 0, {4}, floats(4, 0)); }),
       "tensor blk.0.attn_sinks.weight is no part of LlamaForCausalLM"},
      {changed([](GgufWriter& w) { w.tensor("blk.00.attn_q.weight", 0, {4}, floats(4, 0)); }),
       "tensor blk.00.attn_q.weight is no part of"},
      {changed([](GgufWriter& w) { w.u32("split.count", 3); }),
       "a split model is opened by its part"},
  };
  for (const Case& one : cases) {
    EXPECT_NE(refusal(one.file).find(one.error), std::string::npos) << refusal(one.file);
  }
  // A key that is there for completeness.
  EXPECT_EQ(refusal(changed([](GgufWriter& w) { w.f32("llama.attention.max_alibi_bias", 0); })),
            "was accepted");
}

TEST_F(GgufFiles, SplitModelsAreOneModel) {
  const auto part = [](uint32_t number, uint32_t count, bool head, bool rest) {
    GgufWriter writer = number == 0 ? small_llama() : GgufWriter();
    writer.pair("split.no", 2, GgufWriter::number(static_cast<uint16_t>(number)));
    writer.pair("split.count", 2, GgufWriter::number(static_cast<uint16_t>(count)));
    writer.u32("split.tensors.count", 21);
    if (head) writer.tensor("output.weight", 0, {64, 40}, floats(64 * 40, 0.5F));
    if (rest) add_llama_tensors(writer, false);
    return writer.file();
  };
  const auto path = write("m-00001-of-00003.gguf", part(0, 3, false, false));
  write("m-00002-of-00003.gguf", part(1, 3, true, false));
  const auto missing = Checkpoint::open(path);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("m-00003-of-00003.gguf"), std::string::npos)
      << missing.error().message;
  write("m-00003-of-00003.gguf", part(2, 3, false, true));
  auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->tensors().size(), 21U);
  EXPECT_EQ((*checkpoint)->files().size(), 3U);
  EXPECT_TRUE((*checkpoint)->read("lm_head.weight").ok());
  EXPECT_EQ(gguf_models(folder_.path()), std::vector{path});

  const auto second = Checkpoint::open(folder_ / "m-00002-of-00003.gguf");
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("found part 2"), std::string::npos);
  write("m-00003-of-00003.gguf", part(1, 3, false, true));
  EXPECT_NE(Checkpoint::open(path).error().message.find("found split.no 1"), std::string::npos);
  write("m-00003-of-00003.gguf", part(2, 3, true, true));
  EXPECT_NE(Checkpoint::open(path).error().message.find("stands in two parts"), std::string::npos);
  write("m-00003-of-00003.gguf", part(2, 3, false, false));
  EXPECT_NE(Checkpoint::open(path).error().message.find("expected 21 tensors in all parts"),
            std::string::npos);
}

TEST_F(GgufFiles, AreFoundByContent) {
  GgufWriter writer = small_llama();
  add_llama_tensors(writer);
  auto checkpoint = Checkpoint::open(write("here/m.gguf", writer.file()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto manifest = make_manifest(**checkpoint, 2, {});
  ASSERT_TRUE(manifest.ok()) << manifest.error().message;
  const auto parsed = Manifest::parse(manifest->serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  for (const TensorInfo& info : (*checkpoint)->tensors()) {
    const auto tensor = (*checkpoint)->read(info.name);
    ASSERT_TRUE(tensor.ok());
    EXPECT_TRUE(verify(*parsed, *tensor).ok()) << info.name;
  }
  write("there/deeper/other.gguf", writer.file());
  write("there/deeper/another.gguf", "GGUF");
  for (const auto& place : {folder_ / "there", folder_ / "there" / "deeper" / "other.gguf"}) {
    const auto library = ModelLibrary::open(place);
    ASSERT_TRUE(library.ok()) << library.error().message;
    const auto found = library->find(*manifest, 2, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ((*found)->folder(), folder_ / "there" / "deeper" / "other.gguf");
  }
}

TEST(GgufText, ReadsTokenizerTemplatesAndEnds) {
  GgufWriter writer;
  writer.string("general.architecture", "llama");
  writer.string("tokenizer.ggml.model", "gpt2");
  writer.string("tokenizer.ggml.pre", "qwen2");
  writer.strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<s>"});
  writer.numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 3, 3});
  writer.strings("tokenizer.ggml.merges", {"a b"});
  writer.u32("tokenizer.ggml.bos_token_id", 4);
  writer.u32("tokenizer.ggml.eos_token_id", 4);
  writer.flag("tokenizer.ggml.add_bos_token", true);
  writer.string("tokenizer.chat_template", "one");
  writer.string("tokenizer.chat_template.tool_use", "two");
  writer.f32("general.sampling.temp", 0.5F);
  const auto header = parse(writer.file());
  ASSERT_TRUE(header.ok());
  const auto text = gguf_text(*header);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(text->vocabulary.splitter, "qwen2");
  EXPECT_EQ(text->vocabulary.kinds[3], text::TokenKind::kControl);
  EXPECT_EQ(text->chat.templates.at("default"), "one");
  EXPECT_EQ(text->chat.templates.at("tool_use"), "two");
  EXPECT_EQ(text->chat.bos_token, "<s>");
  EXPECT_EQ(text->generation.eos_ids, (std::vector<text::TokenId>{4, 3}));
  EXPECT_EQ(text->generation.temperature, 0.5);

  const auto refused = [](auto change) {
    GgufWriter w;
    w.string("tokenizer.ggml.model", "gpt2");
    change(w);
    const auto h = parse(w.file());
    EXPECT_TRUE(h.ok());
    const auto t = gguf_text(*h);
    return t.ok() ? "was accepted" : t.error().message;
  };
  EXPECT_NE(refused([](auto&) {}).find("tokenizer.ggml.tokens: expected an array"),
            std::string::npos);
  EXPECT_NE(refused([](auto& w) {
              w.strings("tokenizer.ggml.tokens", {"a"});
              w.u32("tokenizer.ggml.eos_token_id", 1);
            }).find("tokenizer.ggml.eos_token_id: expected an id below 1, found 1"),
            std::string::npos);
  EXPECT_NE(refused([](auto& w) {
              w.strings("tokenizer.ggml.tokens", {"a"});
              w.template numbers<int32_t>("tokenizer.ggml.token_type", 5, {9});
            }).find("expected types from 1 to 6, found 9"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::weights
