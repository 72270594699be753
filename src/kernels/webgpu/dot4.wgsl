// 4-bit weights in groups of 32: scale * quant - 8 * minimum. A group is one 16-byte word whose
// byte i holds quant i in its low and quant 16 + i in its high half; a lane takes a whole group.
// Each plane: scale * (sum of quant * x) - 8 * minimum * (sum of x), below 2^22 a group and below
// 2^28 for a lane's 64 groups of a row of 65,536 columns.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;  // [row][group]
@group(0) @binding(7) var<storage, read> multipliers: array<u32>;  // [row][group / 2], 16 bits each:
                                                                   // scale | minimum << 8

// A group of each row, and its multipliers.
struct Group {
  words: array<vec4u, kRows>,
  pairs: array<u32, kRows>,
}

fn load_group(g: u32, base: array<u32, kRows>) -> Group {
  var group: Group;
  for (var r = 0u; r < kRows; r++) {
    group.words[r] = weights[base[r] + g];
    group.pairs[r] = multipliers[(base[r] + g) / 2u] >> (((base[r] + g) & 1u) * 16u);
  }
  return group;
}

// Adds group `g` of each row for every token.
fn add_group(g: u32, group: Group, sums: ptr<function, Sums>) {
  for (var t = 0u; t < kTokens; t++) {
    let x = load_activations(t, g);
    for (var r = 0u; r < kRows; r++) {
      let quants = group.words[r];
      let pair = group.pairs[r];
      let even = quants & vec4u(0x0f0f0f0fu);
      let odd = (quants >> vec4u(4u)) & vec4u(0x0f0f0f0fu);
      let scale = i32(pair & 0xffu);
      let minimum = i32((pair >> 5u) & 0x7f8u);  // eight times it
      let q = dot_group(even, odd, x);
      (*sums)[r * kTokens + t] += scale * q - minimum * x.sums;
    }
  }
}
