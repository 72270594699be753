// Runs cases.mjs in Node:
//   node node.mjs TANDEM_WASM THREADS
import fs from "node:fs";
import { run } from "./cases.mjs";

const [wasm, threads] = process.argv.slice(2);
const folder = new URL("../data/", import.meta.url);
const failed = await run({
  read: async (name) => new Uint8Array(fs.readFileSync(new URL(name, folder))),
  wasm: fs.readFileSync(wasm),
  threads: Number(threads),
  log: (text) => console.log(text.trimEnd()),
});
process.exitCode = failed === 0 ? 0 : 1;
