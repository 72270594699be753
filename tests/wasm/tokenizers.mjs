// The module's tokenizers against the ids and texts that Hugging Face's give for public vocabularies:
//   node tokenizers.mjs TANDEM_WASM CASES
// CASES is what tests/text/oracle/run made (the native test text.oracle). Exits with 77, which CTest
// shows as skipped, where it has not.
import fs from "node:fs";
import path from "node:path";
import { Tandem } from "../../web/tandem.mjs";

// Characters of Unicode 15.1 and 16.0: the references classify them as this machine's Node does, the
// module as Unicode 15.0 does, where they are unassigned.
const newer = new RegExp("[\\u{897}\\u{1b4e}\\u{1b4f}\\u{1b7f}\\u{1c89}\\u{1c8a}\\u{2427}-\\u{2429}\\u{2ffc}-\\u{2fff}" +
  "\\u{31e4}\\u{31e5}\\u{31ef}\\u{a7cb}-\\u{a7cd}\\u{a7da}-\\u{a7dc}\\u{105c0}-\\u{105f3}\\u{10d40}-\\u{10d8f}" +
  "\\u{10ec2}-\\u{10ec4}\\u{10efc}\\u{11380}-\\u{113ff}\\u{116d0}-\\u{116e3}\\u{11bc0}-\\u{11bf9}\\u{11f5a}" +
  "\\u{13460}-\\u{143fa}\\u{16100}-\\u{16139}\\u{16d40}-\\u{16d79}\\u{18cff}\\u{1cc00}-\\u{1ceb3}" +
  "\\u{1e5d0}-\\u{1e5ff}\\u{1f8b2}-\\u{1f8c1}\\u{2ebf0}-\\u{2ee5d}]", "u");

const [wasm, cases] = process.argv.slice(2);
const read = (...names) => fs.readFileSync(path.join(cases, ...names), "utf8");

async function run() {
  const tandem = await Tandem.start({ wasm: fs.readFileSync(wasm) });
  const folders = fs.readdirSync(cases, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  let compared = 0;
  let leftOut = 0;
  let failed = 0;
  for (const { name } of folders) {
    const tokenizer = tandem.tokenizer({
      tokenizer: read(name, "tokenizer.json"), config: read(name, "tokenizer_config.json") });
    for (const { text, ids, decoded } of JSON.parse(read(name, "strings.json")).cases) {
      if (newer.test(text)) {
        leftOut++;
        continue;
      }
      const own = tokenizer.encode(text, { parseControl: true });
      const back = tokenizer.decode(ids, { showSpecial: true });
      compared++;
      if (String(own) === String(ids) && back === decoded) continue;
      failed++;
      if (failed < 10) console.log(`FAILED ${name} ${JSON.stringify(text)}: ${own} instead of ${ids}, ${JSON.stringify(back)} instead of ${JSON.stringify(decoded)}`);
    }
    tokenizer.free();
  }
  console.log(`${folders.length} vocabularies, ${compared} texts, ${failed} different (${leftOut} with newer characters left out)`);
  return folders.length > 0 && failed === 0 ? 0 : 1;
}

if (cases !== undefined && fs.existsSync(cases)) {
  process.exitCode = await run();
} else {
  console.log(`SKIPPED: ${cases} is not there; run the native test text.oracle first`);
  process.exitCode = 77;
}
