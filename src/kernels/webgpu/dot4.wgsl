// 4-bit weights in groups of 32: scale * quant - 8 * minimum. A group is one 16-byte word whose
// byte i holds quant i in its low and quant 16 + i in its high half; a lane takes a whole group.
// Each plane: scale * (sum of quant * x) - 8 * minimum * (sum of x), below 2^22 a group and below
// 2^28 for a lane's 64 groups of a row of 65,536 columns.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;  // [row][group]
@group(0) @binding(7) var<storage, read> multipliers: array<u32>;  // [row][group / 2], 16 bits each:
                                                                   // scale | minimum << 8
@group(0) @binding(8) var<storage, read> group_sums: array<u32>;  // [token][group], 16 bits each:
                                                                  // of the high and low plane

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let groups = parameters.words / 2u;
  for (var first = lane; first < groups; first += kLanes * kBatch) {
    var w: array<vec4u, kRows * kBatch>;
    var m: array<u32, kRows * kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      let g = min(first + b * kLanes, groups - 1u);
      for (var r = 0u; r < kRows; r++) {
        let index = min(row + r, parameters.rows - 1u) * groups + g;
        w[b * kRows + r] = weights[index];
        m[b * kRows + r] = multipliers[index / 2u] >> ((index & 1u) * 16u);
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
            let even = w[b * kRows + r] & vec4u(0x0f0f0f0fu);
            let odd = (w[b * kRows + r] >> vec4u(4u)) & vec4u(0x0f0f0f0fu);
            let scale = i32(m[b * kRows + r] & 0xffu);
            let minimum = i32((m[b * kRows + r] >> 8u) & 0xffu) * 8i;
            let q = vec2i(dot16(even, h0) + dot16(odd, h1), dot16(even, l0) + dot16(odd, l1));
            (*sums)[r * kTokens + t] += scale * q - minimum * x;
          }
        }
      }
    }
  }
}
