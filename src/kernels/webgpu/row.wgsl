// What the steps over rows of binary32 share. A workgroup of kThreads threads takes a row. A step's
// file defines element(row, i), one number of its result, which to_activations.wgsl or
// to_floats.wgsl, put between, ask for: the first twice, since a second computation is cheaper than
// memory in between.

struct Parameters {
  rows: u32,
  columns: u32,
  padded: u32,
  inverse: u32,  // of a norm: 1 / n and epsilon as binary32
  epsilon: u32,
}

@group(0) @binding(0) var<uniform> parameters: Parameters;
// 1 where an element of some row was infinite or not a number.
@group(0) @binding(8) var<storage, read_write> failed: atomic<u32>;
