// Runs cases.mjs in a browser's worker, where the module may wait for its helpers.
import { run } from "./cases.mjs";

self.onmessage = async ({ data: { threads } }) => {
  const fetched = async (url) => {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${url}: ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  };
  try {
    const failed = await run({
      read: (name) => fetched(`/source/tests/data/${name}`),
      wasm: await fetched("/build/tandem.wasm"),
      threads,
      log: (text) => self.postMessage({ text }),
    });
    self.postMessage({ done: failed });
  } catch (error) {
    self.postMessage({ error: String(error.stack ?? error) });
  }
};
