// arithmetic::rms_norm: (x * factor) * weight, the factor from an exact sum of squares.

@group(0) @binding(1) var<storage, read> input: array<u32>;  // [row][columns]
@group(0) @binding(2) var<storage, read> weight: array<u32>;

var<workgroup> largest_input: atomic<u32>;
var<workgroup> squares: array<vec2u, kThreads>;
var<workgroup> factor: u32;

fn element(row: u32, i: u32) -> u32 {
  return real_multiply(real_multiply(input[row * parameters.columns + i], factor), weight[i]);
}

// arithmetic::norm_factor.
fn norm_factor(a: u32, exponent: i32) -> u32 {
  var v = parameters.epsilon;
  var unit = 0i;
  if (exponent >= -60i || magnitude(parameters.epsilon) == 0u) {
    var scaled = 0u;
    if (exponent <= 40i) {
      scaled = real_multiply(parameters.epsilon, power_of_two(min(-2i * exponent, 120i)));
    }
    v = real_add(a, scaled);
    unit = exponent;
  }
  if (magnitude(v) == 0u) {
    return 0u;
  }
  let root = inverse_square_root(v);
  return real_multiply(real_from_i64(vec2u(root.x, 0u)),
                       power_of_two(bitcast<i32>(root.y) - unit));
}

@compute @workgroup_size(kThreads)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) count: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = id.y * count.x + id.x;
  if (row >= parameters.rows) {
    return;
  }
  var most = 0u;
  for (var i = thread; i < parameters.columns; i += kThreads) {
    most = max(most, magnitude(input[row * parameters.columns + i]));
  }
  atomicMax(&largest_input, most);
  workgroupBarrier();
  let bits = atomicLoad(&largest_input);
  let exponent = quantize_exponent(bits);
  var sum = vec2u(0u);
  for (var i = thread; i < parameters.columns; i += kThreads) {
    let q = quantize_one(input[row * parameters.columns + i], bits, exponent);
    sum = i64_add(sum, vec2u(u32(q * q), 0u));
  }
  squares[thread] = sum;
  for (var step = kThreads / 2u; step > 0u; step = step / 2u) {
    workgroupBarrier();
    if (thread < step) {
      squares[thread] = i64_add(squares[thread], squares[thread + step]);
    }
  }
  if (thread == 0u) {
    let mean = real_multiply(real_from_i64(squares[0]), parameters.inverse);
    factor = norm_factor(mean, exponent);
    if (bits >= kInfinity || exponent > 92i) {
      atomicOr(&failed, 1u);
    }
  }
  workgroupBarrier();
  finish_row(row, thread);
}
