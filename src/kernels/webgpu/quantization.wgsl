// arithmetic/quantize.h on the bits of binary32.

const kMinBits = 0x17800000u;  // 2^-80

// arithmetic::quantize_exponent.
fn quantize_exponent(bits: u32) -> i32 {
  if (bits < kMinBits || bits >= kInfinity) {
    return -94i;
  }
  let exponent = i32(bits >> 23u) - 141i;
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  return exponent + select(0i, 1i, mantissa >= 16711424u);
}

// One number of a row whose largest magnitude is `bits`, quantized.
fn quantize_one(x: u32, bits: u32, exponent: i32) -> i32 {
  if (bits < kMinBits || bits >= kInfinity) {
    return 0i;
  }
  return real_to_integer(x, exponent);
}

// The signed low byte of a 16-bit number, and the high one that goes with it.
fn low_byte(q: i32) -> i32 {
  return (q << 24u) >> 24u;
}
fn high_byte(q: i32) -> i32 {
  return (q - low_byte(q)) >> 8u;
}
