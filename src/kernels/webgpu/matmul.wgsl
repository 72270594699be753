// out[t][r] = scaled(dot(row r, activations t)) (+ bias[r]) for kTokens tokens: arithmetic/dot.h.
// The host puts kRows, kTokens, kLanes, kThreads and kBatch before, and one of
// dot8.wgsl, groups.wgsl with dot4.wgsl, and groups.wgsl with dot6.wgsl after: they define the
// weights' bindings and accumulate().
//
// kLanes threads share kRows consecutive rows. Each asks for 16 bytes of every row kBatch times
// before it uses the first, sums its part of the columns as
// two exact planes, and joins them to 64 bits; a tree in workgroup memory adds the parts. All
// integers: no order of the additions can show.

struct Parameters {
  rows: u32,
  words: u32,  // 16-byte words of activations a token and plane: padded columns / 16
  tokens: u32,
  first_token: u32,
  has_bias: u32,
  stride: u32,  // of a token's results
}

@group(0) @binding(0) var<uniform> parameters: Parameters;
@group(0) @binding(1) var<storage, read> planes: array<vec4u>;  // [token][high, low][words]
@group(0) @binding(2) var<storage, read> exponents: array<i32>;
@group(0) @binding(3) var<storage, read> row_scales: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<u32>;

const kValues = kRows * kTokens;
const kGroups = kThreads / kLanes;

// High and low plane of each row and token: [row][token].
alias Sums = array<vec2i, kValues>;

var<workgroup> partial: array<array<vec2u, kThreads>, kValues>;

fn dot16(w: vec4u, x: vec4u) -> i32 {
  return dot4I8Packed(w.x, x.x) + dot4I8Packed(w.y, x.y) + dot4I8Packed(w.z, x.z) +
         dot4I8Packed(w.w, x.w);
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let lane = thread % kLanes;
  let row = ((id.y * count.x + id.x) * kGroups + thread / kLanes) * kRows;
  var sums: Sums;
  accumulate(row, lane, &sums);
  for (var v = 0u; v < kValues; v++) {
    partial[v][thread] = join_planes(sums[v].x, sums[v].y);
  }
  for (var step = kLanes / 2u; step > 0u; step = step / 2u) {
    workgroupBarrier();
    if (lane < step) {
      for (var v = 0u; v < kValues; v++) {
        partial[v][thread] = i64_add(partial[v][thread], partial[v][thread + step]);
      }
    }
  }
  workgroupBarrier();
  for (var v = lane; v < kValues; v += kLanes) {
    let r = row + v / kTokens;
    let t = parameters.first_token + v % kTokens;
    if (r < parameters.rows && t < parameters.tokens) {
      let sum = real_from_i64(partial[v][thread - lane]);
      var y = real_multiply(sum, real_multiply(row_scales[r], power_of_two(exponents[t])));
      if (parameters.has_bias != 0u) {
        y = real_add(y, bias[r]);
      }
      out[t * parameters.stride + r] = y;
    }
  }
}
