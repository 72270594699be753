// The end of a step whose result stays binary32.

@group(0) @binding(5) var<storage, read_write> out: array<u32>;  // [row][columns]

fn finish_row(row: u32, thread: u32) {
  for (var i = thread; i < parameters.columns; i += kThreads) {
    out[row * parameters.columns + i] = element(row, i);
  }
}
