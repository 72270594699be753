// Runs kernels_bench as a module, in Node or in a browser's worker.
import { Tandem } from "../web/tandem.mjs";

export async function bench(wasm, threads, part, write) {
  const tandem = await Tandem.start({ wasm, threads, write });
  tandem.exports.run_bench(threads, part);
  tandem.stop();
}

if (typeof WorkerGlobalScope !== "undefined") {
  self.onmessage = async ({ data: { threads, part } }) => {
    const wasm = await (await fetch("/build/bench/kernels_bench.wasm")).arrayBuffer();
    await bench(wasm, threads, part, (text) => self.postMessage({ text }));
    self.postMessage({ done: 0 });
  };
}
