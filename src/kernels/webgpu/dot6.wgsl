// 6-bit weights in groups of 32: scale * (quant - 32). The low four bits lie as those of dot4.wgsl;
// of the high two, byte i of a group's two words holds those of quants 16 w + i, + 4, + 8 and + 12.
// Each plane is below 2^24 a group and below 2^30 for a lane's 64 groups.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;  // [row][group]
// The high bits, [row][group][2], then the scales, [row][group / 4] bytes: one buffer, since no more
// than eight are sure to be there.
@group(0) @binding(7) var<storage, read> extra: array<u32>;

// The high bits of 16 quants, in place.
fn spread(word: u32) -> vec4u {
  return (vec4u(word << 4u, word << 2u, word, word >> 2u)) & vec4u(0x30303030u);
}

// A group of each row.
struct Group {
  words: array<vec4u, kRows>,
  high_bits: array<vec2u, kRows>,
  scales: array<i32, kRows>,
}

fn load_group(g: u32, base: array<u32, kRows>) -> Group {
  let first_scale = parameters.rows * parameters.words;  // two words a group lie before
  var group: Group;
  for (var r = 0u; r < kRows; r++) {
    let index = base[r] + g;
    group.words[r] = weights[index];
    group.high_bits[r] = vec2u(extra[index * 2u], extra[index * 2u + 1u]);
    group.scales[r] = i32((extra[first_scale + index / 4u] >> ((index & 3u) * 8u)) & 0xffu);
  }
  return group;
}

// Adds group `g` of each row for every token.
fn add_group(g: u32, group: Group, sums: ptr<function, Sums>) {
  for (var t = 0u; t < kTokens; t++) {
    let x = load_activations(t, g);
    for (var r = 0u; r < kRows; r++) {
      let quants = group.words[r];
      let even = (quants & vec4u(0x0f0f0f0fu)) | spread(group.high_bits[r].x);
      let odd = ((quants >> vec4u(4u)) & vec4u(0x0f0f0f0fu)) | spread(group.high_bits[r].y);
      let q = dot_group(even, odd, x);
      (*sums)[r * kTokens + t] += group.scales[r] * (q - 32i * x.sums);
    }
  }
}
