// Runs a module of unit tests in Node:
//   node units.mjs MODULE THREADS
import fs from "node:fs";
import { Tandem } from "../../web/tandem.mjs";

const [wasm, threads] = process.argv.slice(2);
let output = "";
const tandem = await Tandem.start({
  wasm: fs.readFileSync(wasm), threads: Number(threads), write: (text) => { output += text; } });
let result = 1;
try {
  result = tandem.exports.run_tests();
} finally {
  console.log(output);
  tandem.stop();
}
process.exitCode = result;
