// 8-bit weights: [row][padded columns] signed bytes. A lane takes 16 columns of every kLanes * 16.
// A plane's sum over a whole row of 65,536 columns is below 2^31.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;

// Adds word `word` of each row for every token.
fn add_word(word: u32, weights_of: array<vec4u, kRows>, sums: ptr<function, Sums>) {
  for (var t = 0u; t < kTokens; t++) {
    let token = min(parameters.first_token + t, parameters.tokens - 1u);
    let at = token * 2u * parameters.words + word;
    let high = planes[at];
    let low = planes[at + parameters.words];
    for (var r = 0u; r < kRows; r++) {
      let x = weights_of[r];
      (*sums)[r * kTokens + t] += vec2i(dot16(x, high), dot16(x, low));
    }
  }
}

fn load_word(word: u32, base: array<u32, kRows>) -> array<vec4u, kRows> {
  var result: array<vec4u, kRows>;
  for (var r = 0u; r < kRows; r++) {
    result[r] = weights[base[r] + word];
  }
  return result;
}

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let words = parameters.words;
  var base: array<u32, kRows>;
  for (var r = 0u; r < kRows; r++) {
    base[r] = min(row + r, parameters.rows - 1u) * words;
  }
  var first = lane;
  // Whole batches, whose words need not be looked at one by one.
  for (; first + (kBatch - 1u) * kLanes < words; first += kLanes * kBatch) {
    var batch: array<array<vec4u, kRows>, kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      batch[b] = load_word(first + b * kLanes, base);
    }
    for (var b = 0u; b < kBatch; b++) {
      add_word(first + b * kLanes, batch[b], sums);
    }
  }
  for (; first < words; first += kLanes) {
    add_word(first, load_word(first, base), sums);
  }
}
