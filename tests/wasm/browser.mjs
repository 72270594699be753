// Runs cases.mjs in headless Chromium:
//   node browser.mjs BUILD_FOLDER THREADS
// Exits with 77, which CTest shows as skipped, only where there is no Chromium.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "../../web/node_modules/playwright-core/index.mjs";
import { serve } from "./server.mjs";

const [build, threads] = process.argv.slice(2);
const executablePath = "/usr/bin/chromium";
if (!fs.existsSync(executablePath)) {
  console.log(`SKIPPED: no ${executablePath}`);
  process.exit(77);
}
const source = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const server = await serve({ source, build: path.resolve(build) });
// The proxy leads nowhere: a browser under test talks to this machine alone.
const browser = await chromium.launch({
  executablePath,
  headless: true,
  args: ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--proxy-server=http://127.0.0.1:9"],
});
let failed = 1;
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.log(`page: ${error}`));
  await page.exposeFunction("log", (text) => console.log(text.trimEnd()));
  await page.goto(`${server.url}/source/tests/wasm/page.html`);
  if (!(await page.evaluate(() => crossOriginIsolated))) throw new Error("the page is not isolated");
  failed = await page.evaluate((count) => new Promise((resolve, reject) => {
    const worker = new Worker("/source/tests/wasm/worker.mjs", { type: "module" });
    const logged = [];
    worker.onmessage = ({ data }) => {
      if (data.text !== undefined) logged.push(window.log(data.text));
      if (data.failed !== undefined) Promise.all(logged).then(() => resolve(data.failed));
    };
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage(count);
  }), Number(threads));
} finally {
  await browser.close();
  server.close();
}
process.exitCode = failed === 0 ? 0 : 1;
