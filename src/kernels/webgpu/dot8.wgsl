// 8-bit weights: [row][padded columns] signed bytes. A lane takes 16 columns of every kLanes * 16.
// A plane's sum over a whole row of 65,536 columns is below 2^31.

@group(0) @binding(6) var<storage, read> weights: array<vec4u>;

fn accumulate(row: u32, lane: u32, sums: ptr<function, Sums>) {
  let words = parameters.words;
  for (var first = lane; first < words; first += kLanes * kBatch) {
    var w: array<vec4u, kRows * kBatch>;
    for (var b = 0u; b < kBatch; b++) {
      let word = min(first + b * kLanes, words - 1u);
      for (var r = 0u; r < kRows; r++) {
        w[b * kRows + r] = weights[min(row + r, parameters.rows - 1u) * words + word];
      }
    }
    for (var b = 0u; b < kBatch; b++) {
      let word = first + b * kLanes;
      if (word < words) {
        for (var t = 0u; t < kTokens; t++) {
          let token = min(parameters.first_token + t, parameters.tokens - 1u);
          let high = planes[token * 2u * words + word];
          let low = planes[(token * 2u + 1u) * words + word];
          for (var r = 0u; r < kRows; r++) {
            let x = w[b * kRows + r];
            (*sums)[r * kTokens + t] += vec2i(dot16(x, high), dot16(x, low));
          }
        }
      }
    }
  }
}
