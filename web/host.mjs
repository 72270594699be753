// What differs between Node and a browser: how a worker is started and how it hears of its task.
// And what a module of C++ expects of any host.

export const inNode = typeof process !== "undefined" && !!process.versions?.node;

/** The imports that C++'s library leaves: messages go to `write`, everything else is not there. */
export function systemImports(module, memory, write = console.error) {
  const view = () => new DataView(memory.buffer);
  const decoder = new TextDecoder();
  const ok = 0;
  const badFile = 8;
  const known = {
    fd_write(file, pieces, count, written) {
      let text = "";
      let bytes = 0;
      for (let i = 0; i < count; i++) {
        const start = view().getUint32(pieces + 8 * i, true);
        const length = view().getUint32(pieces + 8 * i + 4, true);
        // A copy: a decoder refuses shared memory.
        text += decoder.decode(new Uint8Array(memory.buffer, start, length).slice());
        bytes += length;
      }
      view().setUint32(written, bytes, true);
      if (text.length > 0) write(text, file);
      return ok;
    },
    environ_sizes_get(count, bytes) {
      view().setUint32(count, 0, true);
      view().setUint32(bytes, 0, true);
      return ok;
    },
    environ_get: () => ok,
    clock_time_get(_clock, _precision, time) {
      view().setBigUint64(time, BigInt(Math.round(performance.now() * 1e6)), true);
      return ok;
    },
    proc_exit(code) {
      throw new Error(`the module ended itself with code ${code}`);
    },
  };
  const wanted = WebAssembly.Module.imports(module).filter((entry) => entry.module === "wasi_snapshot_preview1");
  return Object.fromEntries(wanted.map(({ name }) => [name, known[name] ?? (() => badFile)]));
}

/**
 * Starts web/helper.mjs over a module's memory. Resolves once it waits for work.
 * @returns {Promise<{stop: () => void}>}
 */
export async function startHelper(task) {
  const url = new URL("./helper.mjs", import.meta.url);
  if (inNode) {
    const { Worker } = await import("node:worker_threads");
    const worker = new Worker(url, { workerData: task });
    worker.unref();
    return ready(worker, (name, call) => worker.on(name, call), (value) => value);
  }
  const worker = new Worker(url, { type: "module" });
  const started = ready(worker, (name, call) => worker.addEventListener(name, call),
                        (event) => event.data ?? event.message);
  worker.postMessage(task);
  return started;
}

function ready(worker, on, content) {
  return new Promise((resolve, reject) => {
    on("message", (event) => {
      const { error } = content(event);
      if (error !== undefined) {
        worker.terminate();
        reject(new Error(error));
      } else {
        resolve({ stop: () => worker.terminate() });
      }
    });
    on("error", (event) => reject(new Error(`a helper failed: ${content(event)}`)));
  });
}

/** Inside helper.mjs: the task that startHelper was given, and a way to answer. */
export async function helperTask() {
  if (inNode) {
    const { workerData, parentPort } = await import("node:worker_threads");
    return { task: workerData, answer: (message) => parentPort.postMessage(message) };
  }
  const task = await new Promise((resolve) => {
    self.onmessage = (event) => resolve(event.data);
  });
  return { task, answer: (message) => self.postMessage(message) };
}
