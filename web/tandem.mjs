// Tandem's WebAssembly module for JavaScript: src/web/exports.cpp in the language's own terms. Runs in
// Node, and in a browser's Worker: threads need shared memory, hence a page with the headers
// Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp, and may
// wait, which a page's own thread may not.
//
//   const tandem = await Tandem.start({ wasm, threads: 2 });
//   const engine = tandem.engine({ config, files: [{ size, read }], threads: 2 });
//   engine.loadLayers(0, engine.layers);
//   engine.loadEnds();
//   const sequence = engine.sequence();
//   engine.embed([1, 2, 3], 0);
//   engine.run(sequence, 0);
//   const logits = engine.logits(0, 3); // float32, 3 * engine.vocab
//
// A call that fails throws an Error with the module's message. Views of the module's memory (hidden
// states, logits) hold until the next call.
import { startHelper, systemImports } from "./host.mjs";

const encoder = new TextEncoder();
// A byte order mark is text like any other.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const pageBytes = 65536;
const initialPages = 64; // what the module was linked for

export class Tandem {
  #helpers = [];

  /**
   * @param {object} options
   * @param {BufferSource | WebAssembly.Module} options.wasm tandem.wasm
   * @param {number} [options.threads] threads in all: the caller's and `threads - 1` workers
   * @param {number} [options.maximumBytes] that the module's memory may grow to; at most 4 GiB
   * @param {(text: string) => void} [options.write] takes what the module prints
   */
  static async start({ wasm, threads = 1, maximumBytes = 2 ** 32, write }) {
    const tandem = new Tandem();
    const module = wasm instanceof WebAssembly.Module ? wasm : await WebAssembly.compile(wasm);
    const maximum = Math.floor(maximumBytes / pageBytes);
    tandem.memory = new WebAssembly.Memory({ initial: initialPages, maximum, shared: true });
    tandem.files = [];
    tandem.progress = () => true;
    const instance = await WebAssembly.instantiate(module, {
      env: { memory: tandem.memory },
      tandem: {
        read: (file, offset, place, length) => tandem.#read(file >>> 0, offset, place >>> 0, length >>> 0),
        transform: (form, place, length) => tandem.#transform(form, place >>> 0, length >>> 0),
        progress: (done, total) => (tandem.progress(done, total) === false ? 1 : 0),
      },
      wasi_snapshot_preview1: systemImports(module, tandem.memory, write),
    });
    tandem.exports = instance.exports;
    tandem.exports._initialize();
    for (let i = 1; i < threads; i++) {
      const block = tandem.exports.tandem_helper_memory() >>> 0;
      if (block === 0) throw new Error("no memory for a helper's stack");
      tandem.#helpers.push(await startHelper({ module, memory: tandem.memory, block }));
    }
    return tandem;
  }

  /** Ends the helpers. The module must not be used afterwards. */
  stop() {
    for (const helper of this.#helpers) helper.stop();
    this.#helpers = [];
  }

  /** Known cases of a set of kernels, "scalar" or "simd128": throws if a bit is wrong. */
  selfTest(isa) {
    this.withText(isa, (text, length) => this.check(this.exports.tandem_self_test(text, length)));
  }

  /** SHA-256 of the bytes that `feed` passes to its argument, 64 hexadecimal digits. */
  sha256(feed) {
    const hash = this.exports.tandem_hash_new();
    feed((view) => this.exports.tandem_hash_update(hash, view.byteOffset, view.byteLength));
    return this.withBytes(32, (place) => {
      this.exports.tandem_hash_finish(hash, place);
      return Array.from(this.bytes(place, 32), (byte) => byte.toString(16).padStart(2, "0")).join("");
    });
  }

  /**
   * @param {object} options
   * @param {string} options.config text of config.json
   * @param {{size: number, read: (offset: number, bytes: Uint8Array) => boolean | void}[]} options.files
   *   safetensors files; `read` fills the bytes from an offset, at once, and returns false if it can't
   * @param {number} [options.threads] at most as many as the module was started with
   * @param {16 | 8 | 4} [options.weights] bits
   * @param {string} [options.isa] "best", "simd128" or "scalar"
   * @param {(done: number, total: number) => boolean | void} [options.progress] of loading, in bytes;
   *   false stops it
   */
  engine(options) {
    return new Engine(this, options);
  }

  /**
   * @param {object} files texts of the model's files
   * @param {string} files.tokenizer tokenizer.json
   * @param {string} [files.config] tokenizer_config.json
   * @param {string} [files.chatTemplate] all chat templates: their added tokens are control tokens
   */
  tokenizer(files) {
    return new Tokenizer(this, files);
  }

  // Below: what the classes of this file share.

  check(status) {
    if (status === 0) return;
    const start = this.exports.tandem_error_text() >>> 0;
    const memory = new Uint8Array(this.memory.buffer);
    throw new Error(decoder.decode(memory.slice(start, memory.indexOf(0, start))));
  }
  /** A view of the module's memory as it is now. */
  bytes(place, length) {
    return new Uint8Array(this.memory.buffer, place, length);
  }
  withBytes(length, body) {
    const place = this.exports.tandem_alloc(length) >>> 0;
    if (place === 0) throw new Error(`no memory for ${length} bytes`);
    try {
      return body(place);
    } finally {
      this.exports.tandem_free(place);
    }
  }
  withText(text, body) {
    const bytes = encoder.encode(text);
    return this.withBytes(bytes.length, (place) => {
      this.bytes(place, bytes.length).set(bytes);
      return body(place, bytes.length);
    });
  }
  #transform(form, place, length) {
    const text = decoder.decode(this.bytes(place, length).slice());
    const changed = form < 4 ? text.normalize(["NFC", "NFD", "NFKC", "NFKD"][form])
      : form === 4 ? text.toUpperCase() : text.toLowerCase();
    const bytes = encoder.encode(changed);
    const answer = this.exports.tandem_alloc(4 + bytes.length) >>> 0;
    if (answer !== 0) {
      new DataView(this.memory.buffer).setUint32(answer, bytes.length, true);
      this.bytes(answer + 4, bytes.length).set(bytes);
    }
    return answer;
  }
  #read(file, offset, place, length) {
    const source = this.files[file];
    if (source === undefined) return 1;
    return source.read(offset, this.bytes(place, length)) === false ? 1 : 0;
  }
}

export class Engine {
  #tandem;
  #exports;
  #handle;

  constructor(tandem, { config, files, threads = 1, weights = 8, isa = "best", progress = () => true }) {
    this.#tandem = tandem;
    this.#exports = tandem.exports;
    this.#handle = tandem.withBytes(4, (place) => {
      tandem.withText(config, (text, textLength) => tandem.withText(isa, (name, nameLength) =>
        tandem.check(this.#exports.tandem_engine_new(text, textLength, threads, weights, name, nameLength, place))));
      return new DataView(tandem.memory.buffer).getUint32(place, true);
    });
    tandem.progress = progress;
    for (const file of files) {
      const number = tandem.files.push(file) - 1;
      this.#check(this.#exports.tandem_engine_add_file(this.#handle, number, file.size));
    }
  }

  free() {
    this.#exports.tandem_engine_free(this.#handle);
    this.#handle = 0;
  }

  get layers() { return this.#exports.tandem_engine_layers(this.#handle); }
  get hiddenSize() { return this.#exports.tandem_engine_hidden_size(this.#handle); }
  get vocab() { return this.#exports.tandem_engine_vocab(this.#handle); }
  get context() { return this.#exports.tandem_engine_context(this.#handle); }
  /** Threads that the engine got: fewer than asked for if helpers were missing. */
  get threads() { return this.#exports.tandem_engine_threads(this.#handle); }
  /** Bytes of weights that are loaded. */
  get bytes() { return this.#exports.tandem_engine_bytes(this.#handle); }

  /** Layers [first, last). Sequences made before end. */
  loadLayers(first, last) { this.#check(this.#exports.tandem_engine_load_layers(this.#handle, first, last)); }
  /** Embedding, final norm and output head. */
  loadEnds() { this.#check(this.#exports.tandem_engine_load_ends(this.#handle)); }

  /** The number of a new, empty conversation. */
  sequence() {
    return this.#tandem.withBytes(4, (place) => {
      this.#check(this.#exports.tandem_sequence_new(this.#handle, place));
      return new DataView(this.#tandem.memory.buffer).getUint32(place, true);
    });
  }
  freeSequence(sequence) { this.#check(this.#exports.tandem_sequence_free(this.#handle, sequence)); }
  /** Forgets every position from `length` on. */
  rollback(sequence, length) {
    this.#check(this.#exports.tandem_sequence_rollback(this.#handle, sequence, length));
  }

  /** Hidden states of tokens, the first of which is at `position`. */
  embed(tokens, position) {
    this.#tandem.withBytes(tokens.length * 4, (place) => {
      new Uint32Array(this.#tandem.memory.buffer, place, tokens.length).set(tokens);
      this.#check(this.#exports.tandem_embed(this.#handle, place, tokens.length, position));
    });
  }
  /** Makes room for the hidden states of tokens that come from elsewhere, to be set in hidden(). */
  resizeHidden(tokens) { this.#check(this.#exports.tandem_hidden_resize(this.#handle, tokens)); }
  /** The hidden states: binary16 [tokens, hiddenSize] and an exponent a token. */
  hidden() {
    const tokens = this.#exports.tandem_hidden_tokens(this.#handle);
    const buffer = this.#tandem.memory.buffer;
    return {
      values: new Uint16Array(buffer, this.#exports.tandem_hidden_values(this.#handle) >>> 0, tokens * this.hiddenSize),
      exponents: new Int16Array(buffer, this.#exports.tandem_hidden_exponents(this.#handle) >>> 0, tokens),
    };
  }
  /** Runs the layers over the hidden states, in place; `position` is the sequence's length. */
  run(sequence, position) { this.#check(this.#exports.tandem_run(this.#handle, sequence, position)); }
  /** Logits, float32 [count, vocab], of tokens [first, first + count) of the hidden states. */
  logits(first, count) {
    this.#check(this.#exports.tandem_logits(this.#handle, first, count));
    return new Float32Array(this.#tandem.memory.buffer, this.#exports.tandem_logits_data(this.#handle) >>> 0,
                            count * this.vocab);
  }

  #check(status) { this.#tandem.check(status); }
}

export class Tokenizer {
  #tandem;
  #exports;
  #handle;

  constructor(tandem, { tokenizer, config = "", chatTemplate = "" }) {
    // A character that came with Unicode 15.0: the module's own tables are of that version.
    if (!/^\p{Assigned}$/u.test("\u{1F6DC}")) throw new Error("this host's Unicode is older than 15.0");
    this.#tandem = tandem;
    this.#exports = tandem.exports;
    this.#handle = tandem.withBytes(4, (place) => {
      tandem.withText(tokenizer, (json, jsonLength) => tandem.withText(config, (text, textLength) =>
        tandem.withText(chatTemplate, (chat, chatLength) => tandem.check(this.#exports.tandem_tokenizer_new(
          json, jsonLength, text, textLength, chat, chatLength, place)))));
      return new DataView(tandem.memory.buffer).getUint32(place, true);
    });
  }

  free() {
    this.#exports.tandem_tokenizer_free(this.#handle);
    this.#handle = 0;
  }

  /**
   * Token ids of a text. Control tokens that are written out in it become such tokens only with
   * `parseControl`: never for a user's text.
   */
  encode(text, { addSpecial = false, parseControl = false } = {}) {
    this.#tandem.withText(text, (place, length) => this.#tandem.check(
      this.#exports.tandem_tokenizer_encode(this.#handle, place, length, (addSpecial ? 1 : 0) | (parseControl ? 2 : 0))));
    return Array.from(new Int32Array(this.#tandem.memory.buffer, this.#exports.tandem_tokenizer_ids(this.#handle) >>> 0,
                                     this.#exports.tandem_tokenizer_count(this.#handle)));
  }

  /** Text of token ids; special tokens are left out unless `showSpecial`. */
  decode(ids, { showSpecial = false } = {}) {
    return this.#tandem.withBytes(ids.length * 4, (place) => {
      new Int32Array(this.#tandem.memory.buffer, place, ids.length).set(ids);
      const length = this.#exports.tandem_tokenizer_decode(this.#handle, place, ids.length, showSpecial ? 1 : 0);
      return decoder.decode(this.#tandem.bytes(this.#exports.tandem_tokenizer_text(this.#handle) >>> 0, length).slice());
    });
  }
}
