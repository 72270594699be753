// The kernels natively and as a module, one after the other in one run:
//   node bench/wasm.mjs node|chromium [threads] [k8|k4|k6|attention] [native instruction set]
// Needs `ninja -C build kernels_bench` and `ninja -C build-wasm kernels_bench`.
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { inChromium } from "../tests/wasm/chromium.mjs";
import { bench } from "./wasm_worker.mjs";

const [host = "node", threads = "1", part = "k8", isa = "avx512"] = process.argv.slice(2);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const number = ["k8", "k4", "k6", "attention"].indexOf(part);
const print = (text) => fs.writeSync(1, text);

print(`== native, ${isa}, ${threads} threads\n`);
spawnSync(path.join(root, "build/bench/kernels_bench"), [isa, threads, part], { stdio: "inherit" });
print(`== WebAssembly in ${host}, ${threads} threads\n`);
if (host === "chromium") {
  await inChromium({
    folders: { source: root, build: path.join(root, "build-wasm") },
    worker: "/source/bench/wasm_worker.mjs",
    task: { threads: Number(threads), part: number },
    write: print,
  });
} else {
  await bench(fs.readFileSync(path.join(root, "build-wasm/bench/kernels_bench.wasm")), Number(threads), number, print);
}
