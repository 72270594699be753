// The module's tokenizers against the ids and texts that Hugging Face's give for public vocabularies:
//   node tokenizers.mjs TANDEM_WASM CASES
// CASES is what tests/text/oracle/run made (the native test text.oracle). Exits with 77, which CTest
// shows as skipped, where it has not.
import fs from "node:fs";
import path from "node:path";
import { Tandem } from "../../web/tandem.mjs";

const [wasm, cases] = process.argv.slice(2);
const read = (...names) => fs.readFileSync(path.join(cases, ...names), "utf8");

async function run() {
  const tandem = await Tandem.start({ wasm: fs.readFileSync(wasm) });
  const folders = fs.readdirSync(cases, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  let compared = 0;
  let failed = 0;
  for (const { name } of folders) {
    const tokenizer = tandem.tokenizer({
      tokenizer: read(name, "tokenizer.json"), config: read(name, "tokenizer_config.json") });
    for (const { text, ids, decoded } of JSON.parse(read(name, "strings.json")).cases) {
      const own = tokenizer.encode(text, { parseControl: true });
      const back = tokenizer.decode(ids, { showSpecial: true });
      compared++;
      if (String(own) === String(ids) && back === decoded) continue;
      failed++;
      if (failed < 10) console.log(`FAILED ${name} ${JSON.stringify(text)}: ${own} instead of ${ids}, ${JSON.stringify(back)} instead of ${JSON.stringify(decoded)}`);
    }
    tokenizer.free();
  }
  console.log(`${folders.length} vocabularies, ${compared} texts, ${failed} different`);
  return folders.length > 0 && failed === 0 ? 0 : 1;
}

if (cases !== undefined && fs.existsSync(cases)) {
  process.exitCode = await run();
} else {
  console.log(`SKIPPED: ${cases} is not there; run the native test text.oracle first`);
  process.exitCode = 77;
}
