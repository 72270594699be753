// arithmetic::gated_silu: (gate * logistic(gate)) * up.

@group(0) @binding(1) var<storage, read> gate: array<u32>;  // [row][columns]
@group(0) @binding(2) var<storage, read> up: array<u32>;

fn element(row: u32, i: u32) -> u32 {
  let index = row * parameters.columns + i;
  let x = gate[index];
  return real_multiply(real_multiply(x, logistic(x)), up[index]);
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = id.y * count.x + id.x;
  if (row < parameters.rows) {
    finish_row(row, thread);
  }
}
