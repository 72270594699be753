// The end of a step whose result is quantized: planes of bytes, exponent and group sums, in the
// layout of gpu::Activations.

@group(0) @binding(5) var<storage, read_write> planes: array<u32>;  // [row][high, low][padded / 4]
@group(0) @binding(6) var<storage, read_write> exponents: array<i32>;
@group(0) @binding(7) var<storage, read_write> group_sums: array<u32>;

var<workgroup> largest_result: atomic<u32>;

fn finish_row(row: u32, thread: u32) {
  var most = 0u;
  for (var i = thread; i < parameters.columns; i += kThreads) {
    most = max(most, magnitude(element(row, i)));
  }
  atomicMax(&largest_result, most);
  workgroupBarrier();
  let bits = atomicLoad(&largest_result);
  let exponent = quantize_exponent(bits);
  if (thread == 0u) {
    exponents[row] = exponent;
    if (bits >= kInfinity) {
      atomicOr(&failed, 1u);
    }
  }
  let words = parameters.padded / 4u;
  let groups = parameters.padded / 32u;
  for (var g = thread; g < groups; g += kThreads) {
    var sum = vec2i(0i);
    for (var w = 0u; w < 8u; w++) {
      var bytes = vec2u(0u);
      for (var j = 0u; j < 4u; j++) {
        let i = g * 32u + w * 4u + j;
        if (i < parameters.columns) {
          let q = quantize_one(element(row, i), bits, exponent);
          let both = vec2i(high_byte(q), low_byte(q));
          sum += both;
          bytes |= (bitcast<vec2u>(both) & vec2u(0xffu)) << vec2u(8u * j);
        }
      }
      planes[row * 2u * words + g * 8u + w] = bytes.x;
      planes[(row * 2u + 1u) * words + g * 8u + w] = bytes.y;
    }
    group_sums[row * groups + g] =
        (bitcast<u32>(sum.x) & 0xffffu) | (bitcast<u32>(sum.y) << 16u);
  }
}
