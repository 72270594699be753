// Heads of queries, keys or values: quantized, and rotated by integer cosines and sines
// (arithmetic/rope.h) if kRotary is 1. A workgroup takes a head of a token.

struct Parameters {
  rows: u32,      // tokens * heads
  heads: u32,     // of a token
  head_dim: u32,  // at most 512
  words: u32,     // 4 channels each, of a head's plane: head_dim up to a multiple of 16
}

@group(0) @binding(0) var<uniform> parameters: Parameters;
@group(0) @binding(1) var<storage, read> input: array<u32>;       // [token][head][head_dim]
@group(0) @binding(2) var<storage, read> rotations: array<vec2i>;  // [token][head_dim / 2]
@group(0) @binding(5) var<storage, read_write> planes: array<u32>;  // [token][head][high, low][words]
@group(0) @binding(6) var<storage, read_write> exponents: array<i32>;  // [token][head]
@group(0) @binding(8) var<storage, read_write> failed: atomic<u32>;

var<workgroup> values: array<i32, 512>;
var<workgroup> rotated: array<i32, 512>;
var<workgroup> largest: atomic<u32>;
var<workgroup> largest_rotated: atomic<i32>;

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let head = id.y * count.x + id.x;
  if (head >= parameters.rows) {
    return;
  }
  let n = parameters.head_dim;
  var most = 0u;
  for (var i = thread; i < n; i += kThreads) {
    most = max(most, magnitude(input[head * n + i]));
  }
  atomicMax(&largest, most);
  workgroupBarrier();
  let bits = atomicLoad(&largest);
  var exponent = quantize_exponent(bits);
  for (var i = thread; i < n; i += kThreads) {
    values[i] = quantize_one(input[head * n + i], bits, exponent);
  }
  workgroupBarrier();
  if (kRotary == 1u) {
    let half = n / 2u;
    var reach = 0i;
    for (var i = thread; i < half; i += kThreads) {
      let r = rotations[head / parameters.heads * half + i];
      let a = values[i];
      let b = values[i + half];
      rotated[i] = a * r.x - b * r.y;
      rotated[i + half] = b * r.x + a * r.y;
      reach = max(reach, max(abs(rotated[i]), abs(rotated[i + half])));
    }
    atomicMax(&largest_rotated, reach);
    workgroupBarrier();
    // arithmetic::quantize_integers.
    let limit = atomicLoad(&largest_rotated);
    var shift = 0u;
    while (i32_shift_round(limit, shift) > 32639i) {
      shift++;
    }
    for (var i = thread; i < n; i += kThreads) {
      values[i] = i32_shift_round(rotated[i], shift);
    }
    exponent += i32(shift) - 15i;
  }
  workgroupBarrier();
  if (thread == 0u) {
    exponents[head] = exponent;
    if (bits >= kInfinity) {
      atomicOr(&failed, 1u);
    }
  }
  for (var w = thread; w < parameters.words; w += kThreads) {
    var bytes = vec2u(0u);
    for (var j = 0u; j < 4u; j++) {
      if (w * 4u + j < n) {
        let q = values[w * 4u + j];
        bytes |= (bitcast<vec2u>(vec2i(high_byte(q), low_byte(q))) & vec2u(0xffu)) << vec2u(8u * j);
      }
    }
    planes[head * 2u * parameters.words + w] = bytes.x;
    planes[(head * 2u + 1u) * parameters.words + w] = bytes.y;
  }
}
