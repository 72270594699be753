// What the three kernels of attention share (arithmetic/attention.h). A row is a query head of a
// token; all rows of a call see the same positions of one key and value head. Heads are planes of
// bytes as heads.wgsl writes them.

struct Parameters {
  rows: u32,
  positions: u32,
  first: u32,     // absolute position of the first
  blocks: u32,    // of 16 positions at multiples of 16
  words: u32,     // 4 channels each, of a head's plane
  head_dim: u32,
  constant: u32,  // arithmetic::score_constant as binary32
}

@group(0) @binding(0) var<uniform> parameters: Parameters;

// Positions [x, y) of a block.
fn block_positions(block: u32) -> vec2u {
  let begin = (parameters.first / 16u + block) * 16u;
  return vec2u(max(begin, parameters.first) - parameters.first,
               min(begin + 16u - parameters.first, parameters.positions));
}
