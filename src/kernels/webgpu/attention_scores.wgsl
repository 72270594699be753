// Scores: exact sums of 16 x 16-bit products by four products of byte planes,
// 65536 hh + 256 (hl + lh) + ll, times one constant, rounded to units of 2^-16.

@group(0) @binding(1) var<storage, read> queries: array<u32>;  // [row][high, low][words]
@group(0) @binding(2) var<storage, read> query_exponents: array<i32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;  // [position][high, low][words]
@group(0) @binding(4) var<storage, read> key_exponents: array<i32>;
@group(0) @binding(5) var<storage, read_write> scores: array<i32>;  // [row][position]

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let chunks = (parameters.positions + kThreads - 1u) / kThreads;
  let index = id.y * count.x + id.x;
  let row = index / chunks;
  let position = index % chunks * kThreads + thread;
  if (row >= parameters.rows || position >= parameters.positions) {
    return;
  }
  let words = parameters.words;
  var hh = 0i;
  var mixed = 0i;
  var ll = 0i;
  for (var w = 0u; w < words; w++) {
    let qh = queries[row * 2u * words + w];
    let ql = queries[(row * 2u + 1u) * words + w];
    let kh = keys[position * 2u * words + w];
    let kl = keys[(position * 2u + 1u) * words + w];
    hh += dot4I8Packed(qh, kh);
    mixed += dot4I8Packed(qh, kl) + dot4I8Packed(ql, kh);
    ll += dot4I8Packed(ql, kl);
  }
  let sum = i64_add(u64_shift_left(i64_from(hh), 16u), join_planes(mixed, ll));
  let exponent = clamp(query_exponents[row] + key_exponents[position], -100i, 100i);
  let scale = real_multiply(parameters.constant, power_of_two(exponent));
  let value = real_multiply(real_from_i64(sum), scale);
  // Within +-2^30.
  let bounded = (value & 0x80000000u) | min(magnitude(value), 0x4e800000u);
  scores[row * parameters.positions + position] = real_to_integer(bounded, 0i);
}
