// binary32 by integers: numbers are their bits in a u32, and every operation rounds once to
// nearest even, subnormals included. A WGSL compiler may contract, reassociate and flush what it
// computes in f32; of integers it may change nothing. Infinities come out
// as they should; what is not a number stays that, its other bits may differ.

const kInfinity = 0x7f800000u;
const kNotANumber = 0x7fc00000u;

fn power_of_two(exponent: i32) -> u32 {
  return bitcast<u32>(exponent + 127i) << 23u;
}

fn magnitude(x: u32) -> u32 {
  return x & 0x7fffffffu;
}

// Nearest binary32 of a signed 64-bit integer; zero is +0.
fn real_from_i64(n: vec2u) -> u32 {
  let negative = i64_negative(n);
  var m = n;
  if (negative) {
    m = i64_negate(n);
  }
  if ((m.x | m.y) == 0u) {
    return 0u;
  }
  var zeros = countLeadingZeros(m.y);
  if (m.y == 0u) {
    zeros = 32u + countLeadingZeros(m.x);
  }
  m = u64_shift_left(m, zeros);
  // 24 bits stay; the next is the half, the others make it more than half.
  let mantissa = m.y >> 8u;
  let half = (m.y >> 7u) & 1u;
  let more = ((m.y & 0x7fu) | m.x) != 0u;
  let up = half & select(mantissa & 1u, 1u, more);
  // Adding the mantissa with its hidden bit, and a carry, moves the exponent as it should.
  return select(0u, 0x80000000u, negative) | (((189u - zeros) << 23u) + mantissa + up);
}

// A positive finite magnitude as m * 2^(e - 150) with m in [2^23, 2^24): vec2(m, e as bits).
fn real_unpack(bits: u32) -> vec2u {
  let e = bits >> 23u;
  let m = bits & 0x7fffffu;
  if (e == 0u) {
    let shift = countLeadingZeros(m) - 8u;
    return vec2u(m << shift, 1u - shift);
  }
  return vec2u(m | 0x800000u, e);
}

// Rounds (v / 4) * 2^(e - 150), v < 2^26 with the last bit standing for all that is below it, and
// v >= 2^25 if e > 1.
fn real_round(v: u32, e: i32) -> u32 {
  let mantissa = v >> 2u;
  let rest = v & 3u;
  let up = select(0u, 1u, rest == 3u || (rest == 2u && (mantissa & 1u) != 0u));
  if (e >= 255i) {
    return kInfinity;
  }
  return (bitcast<u32>(e - 1i) << 23u) + mantissa + up;
}

fn real_multiply(a: u32, b: u32) -> u32 {
  let sign = (a ^ b) & 0x80000000u;
  let ma = magnitude(a);
  let mb = magnitude(b);
  if (max(ma, mb) >= kInfinity) {
    return sign | select(kInfinity, kNotANumber, max(ma, mb) > kInfinity || min(ma, mb) == 0u);
  }
  if (min(ma, mb) == 0u) {
    return sign;
  }
  let x = real_unpack(ma);
  let y = real_unpack(mb);
  // 24 x 24 bits from halves of 12: high * 2^24 + low.
  let x1 = x.x >> 12u;
  let x0 = x.x & 0xfffu;
  let y1 = y.x >> 12u;
  let y0 = y.x & 0xfffu;
  let bottom = x0 * y0;
  let middle = x1 * y0 + x0 * y1 + (bottom >> 12u);
  var high = x1 * y1 + (middle >> 12u);
  var low = ((middle & 0xfffu) << 12u) | (bottom & 0xfffu);
  var e = bitcast<i32>(x.y) + bitcast<i32>(y.y) - 126i;
  if (high < 0x800000u) {
    high = (high << 1u) | (low >> 23u);
    low = (low << 1u) & 0xffffffu;
    e -= 1i;
  }
  var v = (high << 2u) | ((low >> 23u) << 1u) | select(0u, 1u, (low & 0x7fffffu) != 0u);
  if (e < 1i) {
    let s = u32(min(1i - e, 27i));
    v = (v >> s) | select(0u, 1u, (v & ((1u << s) - 1u)) != 0u);
    e = 1i;
  }
  return sign | real_round(v, e);
}

fn real_add(a: u32, b: u32) -> u32 {
  var big = a;
  var small = b;
  if (magnitude(b) > magnitude(a)) {
    big = b;
    small = a;
  }
  if (magnitude(big) >= kInfinity) {
    return select(big, kNotANumber, magnitude(small) == kInfinity && a != b);
  }
  if (magnitude(small) == 0u) {
    // -0 + -0 is -0, every other sum of zeros +0.
    return select(big, a & b, magnitude(big) == 0u);
  }
  let sign = big & 0x80000000u;
  let exponent_big = max(magnitude(big) >> 23u, 1u);
  let exponent_small = max(magnitude(small) >> 23u, 1u);
  let hidden_big = select(0u, 0x800000u, magnitude(big) >= 0x800000u);
  let hidden_small = select(0u, 0x800000u, magnitude(small) >= 0x800000u);
  let m = ((big & 0x7fffffu) | hidden_big) << 3u;
  var n = ((small & 0x7fffffu) | hidden_small) << 3u;
  let distance = min(exponent_big - exponent_small, 27u);
  n = (n >> distance) | select(0u, 1u, (n & ((1u << distance) - 1u)) != 0u);
  var e = i32(exponent_big);
  var sum = m + n;
  if (((a ^ b) >> 31u) != 0u) {
    sum = m - n;
  }
  if (sum == 0u) {
    return 0u;
  }
  // To 27 bits, or as far as the smallest exponent allows.
  let zeros = countLeadingZeros(sum);
  if (zeros == 4u) {
    sum = (sum >> 1u) | (sum & 1u);
    e += 1i;
  } else {
    let s = min(i32(zeros) - 5i, e - 1i);
    sum = sum << u32(s);
    e -= s;
  }
  return sign | real_round((sum >> 1u) | (sum & 1u), e);
}

// round(x * 2^-e) to nearest even; the result's magnitude must be below 2^31.
fn real_to_integer(x: u32, e: i32) -> i32 {
  let bits = magnitude(x);
  if (bits < 0x800000u) {
    return 0i;
  }
  let m = (bits & 0x7fffffu) | 0x800000u;
  let s = 150i + e - i32(bits >> 23u);
  var q = 0u;
  if (s <= 0i) {
    q = m << u32(-s);
  } else if (s <= 25i) {
    q = m >> u32(s);
    let rest = m & ((1u << u32(s)) - 1u);
    let half = 1u << (u32(s) - 1u);
    if (rest > half || (rest == half && (q & 1u) != 0u)) {
      q += 1u;
    }
  }
  return select(bitcast<i32>(q), -bitcast<i32>(q), (x >> 31u) != 0u);
}
