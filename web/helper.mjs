// A worker that lends its core to a module's thread pools (src/web/runtime/helpers.cpp): it enters
// the module and stays there until it is terminated.
import { helperTask, systemImports } from "./host.mjs";

const { task, answer } = await helperTask();
const { module, memory, block } = task;

// Files belong to the engine's thread; a helper has none.
const nothing = new Proxy({}, { get: () => () => { throw new Error("not on a helper"); } });
const { exports } = await WebAssembly.instantiate(module, {
  env: { memory },
  tandem: nothing,
  wasi_snapshot_preview1: systemImports(module, memory),
});
const top = block + exports.tandem_helper_stack_bytes();
exports.__stack_pointer.value = top;
exports.__wasm_init_tls(top);
const place = exports.tandem_helper_join();
if (place >>> 0 === 0xffffffff) {
  answer({ error: "the module has all the helpers that it can hold" });
} else {
  answer({});
  exports.tandem_helper_run(place);
}
