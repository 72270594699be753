// Integers of 64 bits as two words, low word first: vec2u. All operations wrap.

fn i64_from(x: i32) -> vec2u {
  return vec2u(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}

fn i64_add(a: vec2u, b: vec2u) -> vec2u {
  let low = a.x + b.x;
  return vec2u(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn i64_negate(a: vec2u) -> vec2u {
  return vec2u(~a.x + 1u, ~a.y + select(0u, 1u, a.x == 0u));
}

fn i64_negative(a: vec2u) -> bool {
  return (a.y >> 31u) != 0u;
}

// s in [0, 63].
fn u64_shift_left(a: vec2u, s: u32) -> vec2u {
  if (s >= 32u) {
    return vec2u(0u, a.x << (s - 32u));
  }
  if (s == 0u) {
    return a;
  }
  return vec2u(a.x << s, (a.y << s) | (a.x >> (32u - s)));
}

// Arithmetic, s in [0, 63].
fn i64_shift_right(a: vec2u, s: u32) -> vec2u {
  let high = bitcast<i32>(a.y);
  if (s >= 32u) {
    return vec2u(bitcast<u32>(high >> (s - 32u)), bitcast<u32>(high >> 31u));
  }
  if (s == 0u) {
    return a;
  }
  return vec2u((a.x >> s) | (a.y << (32u - s)), bitcast<u32>(high >> s));
}

// arithmetic::shift_round: floor(x / 2^s + 1/2), s in [0, 63]. Half of it is shifted out first, so
// that the addition can't overflow.
fn i64_shift_round(a: vec2u, s: u32) -> vec2u {
  if (s == 0u) {
    return a;
  }
  return i64_shift_right(i64_add(i64_shift_right(a, s - 1u), vec2u(1u, 0u)), 1u);
}

fn i32_shift_round(x: i32, s: u32) -> i32 {
  if (s == 0u) {
    return x;
  }
  return ((x >> (s - 1u)) + 1i) >> 1u;
}

// 256 * high + low: the exact sum that two byte planes stand for.
fn join_planes(high: i32, low: i32) -> vec2u {
  return i64_add(vec2u(bitcast<u32>(high) << 8u, bitcast<u32>(high >> 24u)), i64_from(low));
}
