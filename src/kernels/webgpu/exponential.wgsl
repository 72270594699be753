// arithmetic/exponential.h: exponentials, reciprocals and inverse square roots in integers.

// 2^(-x / 65536) in units of 2^-16, x in [0, 65535].
fn exp2_fraction(x: u32) -> u32 {
  let c2 = 56773u - ((x * 30743u + 0x20000u) >> 18u);
  let c1 = 62906u - ((x * c2 + 0x20000u) >> 18u);
  let c0 = 45426u - ((x * c1 + 0x20000u) >> 18u);
  return 65536u - ((x * c0 + 0x8000u) >> 16u);
}

// The logistic function as binary32.
fn logistic(x: u32) -> u32 {
  let scaled = real_multiply(magnitude(x), 0x47b8aa3bu);  // log2(e) * 65536
  var d = 4194304u;
  if (scaled < 0x4a800000u) {  // 2^22; what is not a number counts as large
    d = u32(real_to_integer(scaled, 0i));
  }
  let k = d >> 16u;
  let m = exp2_fraction(d & 0xffffu);
  var e = 0u;
  if (k <= 17u) {
    e = u32(i32_shift_round(i32(m), k));
  }
  let denominator = 65536u + e;
  let negative = (x >> 31u) != 0u;
  let numerator = select(65536u, m, negative);
  let s = (numerator * 32768u + denominator / 2u) / denominator;
  let exponent = -15i - select(0i, i32(k), negative);
  return real_multiply(real_from_i64(vec2u(s, 0u)), power_of_two(exponent));
}

// 1 / d for d >= 1 as mantissa and exponent (as bits).
fn reciprocal(d: vec2u) -> vec2u {
  var zeros = countLeadingZeros(d.y);
  if (d.y == 0u) {
    zeros = 32u + countLeadingZeros(d.x);
  }
  // The top 31 bits.
  let top = u64_shift_left(d, zeros).y >> 1u;
  // floor(2^54 / top), bit by bit: 2^54 is 2^30 and 24 more bits.
  var rest = 0x40000000u;
  var quotient = 0u;
  for (var i = 0u; i < 25u; i++) {
    if (i > 0u) {
      rest = rest << 1u;
    }
    quotient = quotient << 1u;
    if (rest >= top) {
      rest -= top;
      quotient |= 1u;
    }
  }
  return vec2u(quotient, bitcast<u32>(-54i - (33i - i32(zeros))));
}

// 1 / sqrt(v) for a positive normal v as mantissa and exponent (as bits).
fn inverse_square_root(v: u32) -> vec2u {
  var exponent = i32(v >> 23u) - 150i;
  var m = (v & 0x7fffffu) | 0x800000u;
  if ((exponent & 1i) != 0i) {
    m = m << 1u;
    exponent -= 1i;
  }
  // floor(2^62 / m), 40 bits, as the upper 30 and the lower 10: 2^62 is 2^22 and 40 more bits.
  var rest = 0x400000u;
  var upper = 0u;
  var lower = 0u;
  for (var i = 0u; i < 40u; i++) {
    rest = rest << 1u;
    var bit = 0u;
    if (rest >= m) {
      rest -= m;
      bit = 1u;
    }
    if (i < 30u) {
      upper = (upper << 1u) | bit;
    } else {
      lower = (lower << 1u) | bit;
    }
  }
  // The largest root whose square, likewise as 30 and 10 bits, is not above it.
  var root = 0u;
  for (var bit = 0x80000u; bit != 0u; bit = bit >> 1u) {
    let candidate = root | bit;
    let a = candidate >> 10u;
    let b = candidate & 0x3ffu;
    let bottom = b * b;
    let square_upper = ((a * a) << 10u) + 2u * a * b + (bottom >> 10u);
    let square_lower = bottom & 0x3ffu;
    if (square_upper < upper || (square_upper == upper && square_lower <= lower)) {
      root = candidate;
    }
  }
  return vec2u(root, bitcast<u32>(-31i - exponent / 2i));
}
