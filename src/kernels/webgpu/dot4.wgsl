// 4-bit weights in groups of 32: scale * quant - 8 * minimum. A group is one 16-byte word whose
// byte i holds quant i in its low and quant 16 + i in its high half; a lane takes a whole group.
// Each plane: scale * (sum of quant * x) - 8 * minimum * (sum of x), below 2^22 a group and below
// 2^28 for a lane's 64 groups of a row of 65,536 columns.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;  // [row][group]
@group(0) @binding(7) var<storage, read> multipliers: array<u32>;  // [row][group / 2], 16 bits each:
                                                                   // scale | minimum << 8
@group(0) @binding(8) var<storage, read> group_sums: array<u32>;  // [token][group], 16 bits each:
                                                                  // of the high and low plane

// A group of each row, and the word that its multipliers are in.
struct Group {
  words: array<vec4u, kRows>,
  pairs: array<u32, kRows>,
}

// Rows have an even number of groups and kLanes is even, so that which half of its word a lane's
// multipliers are in depends on the lane alone.
fn load_group(g: u32, base: array<u32, kRows>) -> Group {
  var group: Group;
  for (var r = 0u; r < kRows; r++) {
    group.words[r] = weights[2u * base[r] + g];
    group.pairs[r] = multipliers[base[r] + g / 2u];
  }
  return group;
}

// What takes a lane's scale, and eight times its minimum, out of such a word: bytes to multiply by,
// one instruction each instead of two.
struct Halves {
  scale: u32,
  minimum: u32,
}

// Adds group `g` of each row for every token.
fn add_group(g: u32, group: Group, halves: Halves, sums: ptr<function, Sums>) {
  for (var t = 0u; t < kTokens; t++) {
    let token = min(parameters.first_token + t, parameters.tokens - 1u);
    let high = token * 2u * parameters.words + g * 2u;
    let low = high + parameters.words;
    let h0 = planes[high];
    let h1 = planes[high + 1u];
    let l0 = planes[low];
    let l1 = planes[low + 1u];
    let s = bitcast<i32>(group_sums[token * (parameters.words / 2u) + g]);
    let x = vec2i((s << 16u) >> 16u, s >> 16u);
    for (var r = 0u; r < kRows; r++) {
      let quants = group.words[r];
      let even = quants & vec4u(0x0f0f0f0fu);
      let odd = (quants >> vec4u(4u)) & vec4u(0x0f0f0f0fu);
      let scale = bitcast<i32>(dot4U8Packed(group.pairs[r], halves.scale));
      let minimum = bitcast<i32>(dot4U8Packed(group.pairs[r], halves.minimum));
      let q = vec2i(dot16(even, h0) + dot16(odd, h1), dot16(even, l0) + dot16(odd, l1));
      (*sums)[r * kTokens + t] += scale * q - minimum * x;
    }
  }
}

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let groups = parameters.words / 2u;
  let shift = (lane & 1u) * 16u;
  let halves = Halves(1u << shift, 0x800u << shift);
  var base: array<u32, kRows>;
  for (var r = 0u; r < kRows; r++) {
    base[r] = min(row + r, parameters.rows - 1u) * (groups / 2u);
  }
  var first = lane;
  // Whole batches, whose groups need not be looked at one by one.
  for (; first + (kBatch - 1u) * kLanes < groups; first += kLanes * kBatch) {
    var batch: array<Group, kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      batch[b] = load_group(first + b * kLanes, base);
    }
    for (var b = 0u; b < kBatch; b++) {
      add_group(first + b * kLanes, batch[b], halves, sums);
    }
  }
  for (; first < groups; first += kLanes) {
    add_group(first, load_group(first, base), halves, sums);
  }
}
