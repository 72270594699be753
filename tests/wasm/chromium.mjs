// A page in headless Chromium whose script reports by HTTP: no driver is needed for that.
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { serve } from "./server.mjs";

export const executable = "/usr/bin/chromium";

/**
 * Opens page.html with a worker and waits for its last word.
 * @param {object} options
 * @param {Record<string, string>} options.folders that the page may fetch from
 * @param {string} options.worker URL of the script that the page starts as a worker
 * @param {object} options.task message that the worker gets
 * @param {(text: string) => void} options.write takes the worker's { text } messages
 * @param {number} [options.limitSeconds]
 * @returns {Promise<unknown>} the value of the worker's { done } message
 */
export async function inChromium({ folders, worker, task, write, limitSeconds = 280 }) {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "tandem-chromium-"));
  let report;
  const done = new Promise((resolve, reject) => { report = { resolve, reject }; });
  const server = await serve(folders, (message) => {
    if (message.text !== undefined) write(message.text);
    if (message.error !== undefined) report.reject(new Error(message.error));
    if ("done" in message) report.resolve(message.done);
  });
  const query = new URLSearchParams({ worker, task: JSON.stringify(task) });
  // The proxy leads nowhere: a browser under test talks to this machine alone. Its own group of
  // processes, since /usr/bin/chromium is a script that starts it.
  const browser = spawn(executable, [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--proxy-server=http://127.0.0.1:9", `--user-data-dir=${profile}`,
    `${server.url}/source/tests/wasm/page.html?${query}`,
  ], { stdio: ["ignore", "ignore", "pipe"], detached: true });
  let messages = "";
  browser.stderr.on("data", (bytes) => { messages = (messages + bytes).slice(-2000); });
  browser.on("error", (error) => report.reject(error));
  browser.on("exit", (code) => report.reject(new Error(`Chromium ended with ${code}: ${messages}`)));
  const timer = setTimeout(() => report.reject(new Error(`no end after ${limitSeconds} s: ${messages}`)),
                           limitSeconds * 1000);
  try {
    return await done;
  } finally {
    clearTimeout(timer);
    const ended = new Promise((resolve) => browser.on("exit", resolve));
    if (browser.exitCode === null && browser.pid !== undefined) {
      process.kill(-browser.pid, "SIGKILL");
      await ended;
    }
    server.close();
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }
}
