// Weighted values: exact sums within blocks, blocks aligned to the largest and summed in 64 bits,
// then one product with the reciprocal of the denominator. A workgroup takes a row, a thread some
// channels.

@group(0) @binding(1) var<storage, read> weights: array<u32>;       // [row][position]
@group(0) @binding(2) var<storage, read> block_shifts: array<i32>;  // [row][block]
@group(0) @binding(3) var<storage, read> masses: array<vec4u>;      // [row]
@group(0) @binding(4) var<storage, read> values: array<u32>;        // [position][high, low][words]
@group(0) @binding(5) var<storage, read_write> out: array<u32>;     // [row][head_dim]

fn byte_of(word: u32, index: u32) -> i32 {
  return bitcast<i32>(word << (24u - 8u * index)) >> 24u;
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = id.y * count.x + id.x;
  if (row >= parameters.rows) {
    return;
  }
  let mass = masses[row];
  let least = bitcast<i32>(mass.z);
  let inverse = reciprocal(mass.xy);
  let factor = real_multiply(real_from_i64(vec2u(inverse.x, 0u)), power_of_two(-40i));
  let power = power_of_two(bitcast<i32>(inverse.y) + 51i - least);
  let words = parameters.words;
  for (var c = thread; c < parameters.head_dim; c += kThreads) {
    var total = vec2u(0u);
    for (var b = 0u; b < parameters.blocks; b++) {
      let range = block_positions(b);
      // Two planes of 12 bits: 16 * 4095 * 32639 < 2^31.
      var upper = 0i;
      var lower = 0i;
      for (var j = range.x; j < range.y; j++) {
        let weight = weights[row * parameters.positions + j];
        let value = 256i * byte_of(values[j * 2u * words + c / 4u], c % 4u) +
                    byte_of(values[(j * 2u + 1u) * words + c / 4u], c % 4u);
        upper += i32(weight >> 12u) * value;
        lower += i32(weight & 0xfffu) * value;
      }
      let down = block_shifts[row * parameters.blocks + b] - least;
      if (down < 63i) {
        let sum = i64_add(u64_shift_left(i64_from(upper), 12u), i64_from(lower));
        total = i64_add(total, i64_shift_round(u64_shift_left(sum, 6u), u32(down)));
      }
    }
    out[row * parameters.head_dim + c] =
        real_multiply(real_multiply(real_from_i64(total), factor), power);
  }
}
