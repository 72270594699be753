// Runs cases.mjs in headless Chromium:
//   node browser.mjs BUILD_FOLDER THREADS
// Exits with 77, which CTest shows as skipped, only where there is no Chromium.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { executable, inChromium } from "./chromium.mjs";

const [build, threads] = process.argv.slice(2);
if (fs.existsSync(executable)) {
  const failed = await inChromium({
    folders: {
      source: path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../.."),
      build: path.resolve(build),
    },
    worker: "/source/tests/wasm/worker.mjs",
    task: { threads: Number(threads) },
    write: (text) => console.log(text.trimEnd()),
  });
  process.exitCode = failed === 0 ? 0 : 1;
} else {
  console.log(`SKIPPED: no ${executable}`);
  process.exitCode = 77;
}
