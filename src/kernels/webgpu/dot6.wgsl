// 6-bit weights in groups of 32: scale * (quant - 32). The low four bits lie as those of dot4.wgsl;
// of the high two, byte i of a group's two words holds those of quants 16 w + i, + 4, + 8 and + 12.
// Each plane is below 2^24 a group and below 2^30 for a lane's 64 groups.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;  // [row][group]
// The high bits, [row][group][2], then the scales, [row][group / 4] bytes: one buffer, since no more
// than eight are sure to be there.
@group(0) @binding(7) var<storage, read> extra: array<u32>;
@group(0) @binding(8) var<storage, read> group_sums: array<u32>;  // as in dot4.wgsl

// The high bits of 16 quants, in place.
fn spread(word: u32) -> vec4u {
  return (vec4u(word << 4u, word << 2u, word, word >> 2u)) & vec4u(0x30303030u);
}

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let groups = parameters.words / 2u;
  let scales = parameters.rows * groups * 2u;
  for (var first = lane; first < groups; first += kLanes * kBatch) {
    var w: array<vec4u, kRows * kBatch>;
    var high_bits: array<vec2u, kRows * kBatch>;
    var scale: array<i32, kRows * kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      let g = min(first + b * kLanes, groups - 1u);
      for (var r = 0u; r < kRows; r++) {
        let index = min(row + r, parameters.rows - 1u) * groups + g;
        w[b * kRows + r] = weights[index];
        high_bits[b * kRows + r] = vec2u(extra[index * 2u], extra[index * 2u + 1u]);
        scale[b * kRows + r] = i32((extra[scales + index / 4u] >> ((index & 3u) * 8u)) & 0xffu);
      }
    }
    for (var b = 0u; b < kBatch; b++) {
      let g = first + b * kLanes;
      if (g < groups) {
        for (var t = 0u; t < kTokens; t++) {
          let token = min(parameters.first_token + t, parameters.tokens - 1u);
          let high = token * 2u * parameters.words + g * 2u;
          let low = high + parameters.words;
          let h0 = planes[high];
          let h1 = planes[high + 1u];
          let l0 = planes[low];
          let l1 = planes[low + 1u];
          let s = bitcast<i32>(group_sums[token * groups + g]);
          let x = vec2i((s << 16u) >> 16u, s >> 16u);
          for (var r = 0u; r < kRows; r++) {
            let i = b * kRows + r;
            let even = (w[i] & vec4u(0x0f0f0f0fu)) | spread(high_bits[i].x);
            let odd = ((w[i] >> vec4u(4u)) & vec4u(0x0f0f0f0fu)) | spread(high_bits[i].y);
            let q = vec2i(dot16(even, h0) + dot16(odd, h1), dot16(even, l0) + dot16(odd, l1));
            (*sums)[r * kTokens + t] += scale[i] * (q - 32i * x);
          }
        }
      }
    }
  }
}
