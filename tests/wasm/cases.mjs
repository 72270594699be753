// The tests of the module, the same in Node and in a browser: every logit of the reference models has
// the stored hash, with every set of kernels, however the tokens and the layers are cut; and what
// does not work says so.
import { Tandem } from "../../web/tandem.mjs";

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** The tensors of a safetensors file that hold 32-bit integers. */
function integers(file, name) {
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(decoder.decode(file.subarray(8, 8 + length)));
  const [begin, end] = header[name].data_offsets;
  return Array.from(new Int32Array(file.slice(8 + length + begin, 8 + length + end).buffer));
}

const inMemory = (bytes) => ({
  size: bytes.length,
  read: (offset, place) => {
    if (offset + place.length > bytes.length) return false;
    place.set(bytes.subarray(offset, offset + place.length));
  },
});

class Failure extends Error {}

function expect(actual, wanted, what) {
  if (actual !== wanted) throw new Failure(`${what}: expected ${wanted}, found ${actual}`);
}

function expectError(call, pattern, what) {
  try {
    call();
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError || !pattern.test(error.message)) {
      throw new Failure(`${what}: expected an error like ${pattern}, found ${error}`);
    }
    return;
  }
  throw new Failure(`${what}: expected an error, found none`);
}

/**
 * @param {object} given
 * @param {(name: string) => Promise<Uint8Array>} given.read a file of tests/data
 * @param {BufferSource} given.wasm
 * @param {number} given.threads
 * @param {(text: string) => void} given.log
 * @returns {Promise<number>} failed tests
 */
export async function run({ read, wasm, threads, log }) {
  const module = await WebAssembly.compile(wasm);
  let passed = 0;
  let failed = 0;
  const test = async (name, body) => {
    try {
      await body();
      passed++;
    } catch (error) {
      failed++;
      log(`FAILED ${name}: ${error.stack ?? error}`);
    }
  };

  const hashes = decoder.decode(await read("oracle/logits_sha256.txt")).trim().split("\n")
    .map((line) => line.split(" ")).map(([name, bits, hash]) => ({ name, bits: Number(bits), hash }));
  const models = {};
  for (const name of new Set(hashes.map((entry) => entry.name))) {
    models[name] = {
      config: decoder.decode(await read(`oracle/${name}/config.json`)),
      weights: await read(`oracle/${name}/model.safetensors`),
      tokens: integers(await read(`oracle/${name}/golden.safetensors`), "tokens"),
    };
  }
  const tandem = await Tandem.start({ wasm: module, threads, write: log });
  const make = (name, options) => tandem.engine({
    config: models[name].config, files: [inMemory(models[name].weights)], threads, ...options });
  const whole = (name, options) => {
    const engine = make(name, options);
    engine.loadLayers(0, engine.layers);
    engine.loadEnds();
    return engine;
  };
  // The hash of all logits, `width` tokens a pass.
  const hashOf = (engine, tokens, width) => {
    const sequence = engine.sequence();
    const hash = tandem.sha256((update) => {
      for (let begin = 0; begin < tokens.length; begin += width) {
        const part = tokens.slice(begin, begin + width);
        engine.embed(part, begin);
        engine.run(sequence, begin);
        update(engine.logits(0, part.length));
      }
    });
    engine.freeSequence(sequence);
    return hash;
  };

  for (const isa of ["scalar", "simd128"]) {
    await test(`known cases, ${isa}`, () => tandem.selfTest(isa));
  }
  for (const { name, bits, hash } of hashes) {
    const { tokens } = models[name];
    await test(`${name}, ${bits} bits`, () => {
      const engine = whole(name, { weights: bits, isa: "simd128" });
      try {
        expect(engine.threads, threads, "threads");
        for (const width of [1, 2, 5, 16, tokens.length]) {
          expect(hashOf(engine, tokens, width), hash, `passes of ${width}`);
        }
      } finally {
        engine.free();
      }
    });
    // The models lie on grids of 8 bits: nothing is left for a second plane, of experts neither.
    if (bits === 8) {
      await test(`${name}, 16 bits`, () => {
        const engine = whole(name, { weights: 16, isa: "simd128" });
        try {
          expect(hashOf(engine, tokens, 5), hash, "passes of 5");
        } finally {
          engine.free();
        }
      });
    }
    await test(`${name}, ${bits} bits, scalar kernels`, () => {
      const engine = whole(name, { weights: bits, isa: "scalar" });
      try {
        expect(hashOf(engine, tokens, tokens.length), hash, "one pass");
      } finally {
        engine.free();
      }
    });
    await test(`${name}, ${bits} bits, two stages`, () => {
      const first = make(name, { weights: bits });
      const second = make(name, { weights: bits, threads: 1 });
      try {
        first.loadEnds();
        first.loadLayers(0, 1);
        second.loadLayers(1, second.layers);
        const own = [first.sequence(), second.sequence()];
        first.embed(tokens, 0);
        first.run(own[0], 0);
        // The hidden states leave one stage for the other and come back, as they do between devices.
        const carry = (from, to) => {
          const { values, exponents } = from.hidden();
          const copy = { values: values.slice(), exponents: exponents.slice() };
          to.resizeHidden(copy.exponents.length);
          const place = to.hidden();
          place.values.set(copy.values);
          place.exponents.set(copy.exponents);
        };
        carry(first, second);
        second.run(own[1], 0);
        carry(second, first);
        expect(tandem.sha256((update) => update(first.logits(0, tokens.length))), hash, "two stages");
      } finally {
        first.free();
        second.free();
      }
    });
  }

  const { tokens, weights, config } = models.llama;
  await test("a conversation that is taken back", () => {
    const engine = whole("llama");
    const sequence = engine.sequence();
    const last = () => tandem.sha256((update) => update(engine.logits(0, 1)));
    engine.embed(tokens.slice(0, 20), 0);
    engine.run(sequence, 0);
    engine.embed(tokens.slice(20, 21), 20);
    engine.run(sequence, 20);
    const wanted = last();
    engine.rollback(sequence, 13);
    engine.embed(tokens.slice(13, 20), 13);
    engine.run(sequence, 13);
    engine.embed(tokens.slice(20, 21), 20);
    engine.run(sequence, 20);
    expect(last(), wanted, "the same position again");
    expectError(() => engine.rollback(sequence, 22), /can't roll back/, "a rollback to the future");
    expectError(() => engine.run(sequence, 5), /position 5/, "a position that is not the next");
    expectError(() => engine.embed([999999], 0), /outside the vocabulary/, "a token that is none");
    expectError(() => engine.embed(new Array(4097).fill(1), 0), /4097 tokens/, "too long a pass");
    engine.freeSequence(sequence);
    expectError(() => engine.run(sequence, 0), /no sequence/, "a sequence that is gone");
    expectError(() => engine.freeSequence(sequence), /no sequence/, "freed twice");
    engine.free();
  });
  await test("what can't be loaded", () => {
    expectError(() => tandem.engine({ config: "{", files: [] }), /config\.json/, "no JSON");
    expectError(() => tandem.engine({ config, files: [], weights: 5 }), /5 bits/, "5 bits");
    expectError(() => tandem.engine({ config, files: [], isa: "avx2" }).loadLayers(0, 1),
                /avx2/, "a set of another processor");
    expectError(() => tandem.engine({ config, files: [], isa: "mmx" }), /mmx/, "an unknown set");
    expectError(() => tandem.engine({ config, files: [inMemory(weights.slice(0, 5))] }), /5 bytes/, "5 bytes");
    expectError(() => tandem.engine({ config, files: [inMemory(weights.slice(0, 2000))] }), /header/, "half a header");
    expectError(() => tandem.engine({ config, files: [inMemory(weights), inMemory(weights)] }),
                /another file/, "the same file twice");
    const none = tandem.engine({ config, files: [] });
    expectError(() => none.loadLayers(0, 1), /model\.layers\.0/, "no such tensor");
    expectError(() => none.sequence(), /not loaded/, "a sequence without layers");
    expectError(() => none.logits(0, 0), /not loaded/, "logits without a head");
    none.free();
    const broken = tandem.engine({ config, files: [{ size: weights.length, read: (offset, place) =>
      offset < 100 ? inMemory(weights).read(offset, place) : false }] });
    expectError(() => broken.loadLayers(0, 1), /can't read/, "a host that fails to read");
    broken.free();
    const stopped = tandem.engine({ config, files: [inMemory(weights)], progress: () => false });
    expectError(() => stopped.loadLayers(0, 1), /./, "loading that was stopped");
    stopped.free();
  });
  const story = "text/storyteller";
  const text = async (name) => decoder.decode(await read(`${story}/${name}`));
  const files = { tokenizer: await text("tokenizer.json"), config: await text("tokenizer_config.json") };
  const golden = JSON.parse(await text("golden_tokenizer.json")).cases;
  await test("the default model's tokenizer", () => {
    const tokenizer = tandem.tokenizer(files);
    expect(golden.length, 200, "golden texts");
    for (const { text: input, ids, decoded } of golden) {
      expect(String(tokenizer.encode(input, { parseControl: true })), String(ids), JSON.stringify(input));
      expect(tokenizer.decode(ids, { showSpecial: true }), decoded, `the text of ${ids}`);
    }
    tokenizer.free();
  });
  await test("normal forms", () => {
    // The same vocabulary, every text brought to a normal form before. U+105D2 and U+0307 are one
    // character from Unicode 16.0 on; in 15.0 the first is unassigned, and nothing joins it.
    const json = JSON.parse(files.tokenizer);
    const ids = (type, input) => {
      json.normalizer = type === null ? null : { type };
      const tokenizer = tandem.tokenizer({ tokenizer: JSON.stringify(json), config: files.config });
      const result = String(tokenizer.encode(input));
      tokenizer.free();
      return result;
    };
    const samples = ["e\u0301", "a\u0308\u0323", "\u212b\u0344", "\u1100\u1161\u11a8", "\ufb01 \u2460 \uff21", "\ufeffx"];
    for (const type of ["NFC", "NFD", "NFKC", "NFKD"]) {
      for (const sample of samples) expect(ids(type, sample), ids(null, sample.normalize(type)), `${type} of ${sample}`);
      expect(ids(type, "e\u0301\u{105d2}\u0307e\u0301"),
             ids(null, "e\u0301".normalize(type) + "\u{105d2}" + "\u0307e\u0301".normalize(type)), `${type}, a later character`);
    }
    expect(ids("Lowercase", "\u0130 ÀÉ \u1e9e"), ids(null, "i\u0307 àé ß"), "lower case");
  });
  await test("tokenizers that can't be used", () => {
    expectError(() => tandem.tokenizer({ tokenizer: "{" }), /tokenizer\.json/, "no JSON");
    const json = JSON.parse(files.tokenizer);
    json.pre_tokenizer = { type: "Split", pattern: { Regex: "a+b" }, behavior: "Isolated", invert: false };
    expectError(() => tandem.tokenizer({ tokenizer: JSON.stringify(json) }), /a\+b.*no scanner/, "an unknown pattern");
  });
  tandem.stop();

  await test("memory that does not suffice", async () => {
    const small = await Tandem.start({ wasm: module, maximumBytes: 2 ** 22 + 2 ** 20, write: log });
    const large = JSON.parse(config);
    large.max_position_embeddings = 262144;
    const engine = small.engine({ config: JSON.stringify(large), files: [inMemory(weights)] });
    engine.loadLayers(0, engine.layers);
    engine.loadEnds();
    const sequence = engine.sequence();
    expectError(() => {
      for (let begin = 0; begin < 262144; begin += 512) {
        engine.embed(new Array(512).fill(1), begin);
        engine.run(sequence, begin);
      }
    }, /no memory/, "a cache that grows and grows");
    small.stop();
  });

  log(`${passed} passed, ${failed} failed (${threads} thread${threads > 1 ? "s" : ""})`);
  return failed;
}
