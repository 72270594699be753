// The kernels natively and as a module, one after the other in one run:
//   node bench/wasm.mjs node|chromium [threads] [k8|k4|k6|attention] [native instruction set]
// Needs `ninja -C build kernels_bench` and `ninja -C build-wasm kernels_bench`.
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { bench } from "./wasm_worker.mjs";

const [host = "node", threads = "1", part = "k8", isa = "avx512"] = process.argv.slice(2);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const number = ["k8", "k4", "k6", "attention"].indexOf(part);
const print = (text) => fs.writeSync(1, text);

async function inChromium() {
  const { chromium } = await import("../web/node_modules/playwright-core/index.mjs");
  const { serve } = await import("../tests/wasm/server.mjs");
  const server = await serve({ source: root, build: path.join(root, "build-wasm") });
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", headless: true,
    args: ["--no-sandbox", "--disable-background-networking", "--disable-sync", "--proxy-server=http://127.0.0.1:9"] });
  try {
    const page = await browser.newPage();
    await page.exposeFunction("print", print);
    await page.goto(`${server.url}/source/tests/wasm/page.html`);
    await page.evaluate((task) => new Promise((resolve) => {
      const worker = new Worker("/source/bench/wasm_worker.mjs", { type: "module" });
      const printed = [];
      worker.onmessage = ({ data }) =>
        (data.done ? Promise.all(printed).then(resolve) : printed.push(window.print(data.text)));
      worker.postMessage(task);
    }), { threads: Number(threads), part: number });
  } finally {
    await browser.close();
    server.close();
  }
}

print(`== native, ${isa}, ${threads} threads\n`);
spawnSync(path.join(root, "build/bench/kernels_bench"), [isa, threads, part], { stdio: "inherit" });
print(`== WebAssembly in ${host}, ${threads} threads\n`);
if (host === "chromium") {
  await inChromium();
} else {
  await bench(fs.readFileSync(path.join(root, "build-wasm/bench/kernels_bench.wasm")), Number(threads), number, print);
}
process.exit(0);
