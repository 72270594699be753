// Softmax weights: distances from the maximum as powers of two, their exact sum, and weights aligned
// to the largest of their block. A workgroup takes a row.

@group(0) @binding(1) var<storage, read> scores: array<i32>;  // [row][position]
@group(0) @binding(2) var<storage, read> value_exponents: array<i32>;
@group(0) @binding(3) var<storage, read> sinks: array<i32>;  // [row], read only if kSinks is 1
@group(0) @binding(5) var<storage, read_write> weights: array<u32>;       // [row][position]
@group(0) @binding(6) var<storage, read_write> block_shifts: array<i32>;  // [row][block]
// [row]: denominator (low, high), least block shift, 0.
@group(0) @binding(7) var<storage, read_write> masses: array<vec4u>;

var<workgroup> largest: atomic<i32>;
var<workgroup> least: atomic<i32>;
var<workgroup> sums: array<vec2u, kThreads>;

const kMostShift = 94i;

fn softmax_mass(distance: u32) -> vec2u {
  let k = distance >> 16u;
  if (k >= 42u) {
    return vec2u(0u);
  }
  let m = exp2_fraction(distance & 0xffffu);
  return i64_shift_round(vec2u(m << 24u, m >> 8u), k);
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = id.y * count.x + id.x;
  if (row >= parameters.rows) {
    return;
  }
  let start = row * parameters.positions;
  if (thread == 0u) {
    atomicStore(&largest, select(-0x7fffffffi, sinks[select(0u, row, kSinks == 1u)], kSinks == 1u));
    atomicStore(&least, kMostShift);
  }
  workgroupBarrier();
  var most = -0x7fffffffi;
  for (var j = thread; j < parameters.positions; j += kThreads) {
    most = max(most, scores[start + j]);
  }
  atomicMax(&largest, most);
  workgroupBarrier();
  let top = atomicLoad(&largest);
  var sum = vec2u(0u);
  if (kSinks == 1u && thread == 0u) {
    sum = softmax_mass(u32(top - sinks[row]));
  }
  var smallest = 0x7fffffffi;
  for (var b = thread; b < parameters.blocks; b += kThreads) {
    let range = block_positions(b);
    var base = 0x7fffffffi;
    for (var j = range.x; j < range.y; j++) {
      let distance = u32(top - scores[start + j]);
      base = min(base, i32(distance >> 16u) - value_exponents[j]);
    }
    for (var j = range.x; j < range.y; j++) {
      let distance = u32(top - scores[start + j]);
      let k = distance >> 16u;
      let m = exp2_fraction(distance & 0xffffu);
      sum = i64_add(sum, softmax_mass(distance));
      let shift = i32(k) - value_exponents[j] - base;
      var weight = 0i;
      if (shift < 24i) {
        weight = i32_shift_round(i32(m << 7u), u32(shift));
      }
      weights[start + j] = u32(weight);
    }
    block_shifts[row * parameters.blocks + b] = base;
    smallest = min(smallest, base);
  }
  atomicMin(&least, smallest);
  sums[thread] = sum;
  for (var step = kThreads / 2u; step > 0u; step = step / 2u) {
    workgroupBarrier();
    if (thread < step) {
      sums[thread] = i64_add(sums[thread], sums[thread + step]);
    }
  }
  if (thread == 0u) {
    masses[row] = vec4u(sums[0], bitcast<u32>(atomicLoad(&least)), 0u);
  }
}
