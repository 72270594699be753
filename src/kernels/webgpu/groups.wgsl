// What 4- and 6-bit weights share: a lane takes whole groups of 32 columns. dot4.wgsl or dot6.wgsl
// after it defines Group, load_group() and add_group().

@group(0) @binding(8) var<storage, read> group_sums: array<u32>;  // [token][group], 16 bits each:
                                                                  // of the high and low plane

// A token's columns of a group: 0 to 15 and 16 to 31 of each plane, and their sums, high and low.
struct GroupActivations {
  h0: vec4u,
  h1: vec4u,
  l0: vec4u,
  l1: vec4u,
  sums: vec2i,
}

fn load_activations(t: u32, g: u32) -> GroupActivations {
  let token = min(parameters.first_token + t, parameters.tokens - 1u);
  let high = token * 2u * parameters.words + g * 2u;
  let low = high + parameters.words;
  let s = bitcast<i32>(group_sums[token * (parameters.words / 2u) + g]);
  return GroupActivations(planes[high], planes[high + 1u], planes[low], planes[low + 1u],
                          vec2i((s << 16u) >> 16u, s >> 16u));
}

// The high and the low plane's products with quants 0 to 15 and 16 to 31.
fn dot_group(even: vec4u, odd: vec4u, x: GroupActivations) -> vec2i {
  return vec2i(dot16(even, x.h0) + dot16(odd, x.h1), dot16(even, x.l0) + dot16(odd, x.l1));
}

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let groups = parameters.words / 2u;
  var base: array<u32, kRows>;
  for (var r = 0u; r < kRows; r++) {
    base[r] = min(row + r, parameters.rows - 1u) * groups;
  }
  var first = lane;
  // Whole batches, whose groups need not be looked at one by one.
  for (; first + (kBatch - 1u) * kLanes < groups; first += kLanes * kBatch) {
    var batch: array<Group, kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      batch[b] = load_group(first + b * kLanes, base);
    }
    for (var b = 0u; b < kBatch; b++) {
      add_group(first + b * kLanes, batch[b], sums);
    }
  }
  for (; first < groups; first += kLanes) {
    add_group(first, load_group(first, base), sums);
  }
}
