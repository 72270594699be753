// arithmetic::quantize of each row.

@group(0) @binding(1) var<storage, read> input: array<u32>;  // [row][columns]

fn element(row: u32, i: u32) -> u32 {
  return input[row * parameters.columns + i];
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = id.y * count.x + id.x;
  if (row < parameters.rows) {
    finish_row(row, thread);
  }
}
