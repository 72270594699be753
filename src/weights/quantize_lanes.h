// The tile quantizer, written once over vectors of TANDEM_LANES rows. A source file of an
// instruction set defines TANDEM_LANES, TANDEM_TARGET (the attribute of its functions) and the
// functions lower(), higher(), larger() and nearest(), and includes this within a namespace of its
// own.
//
// A vector holds one column of several rows, so every row is computed in the order in which
// quantize_row4() and quantize_row6() compute it: their four partial sums of a group are four
// vectors here. Only what is the same for every trial (a group's sum of weights) is computed once.

#define TANDEM_INLINE TANDEM_TARGET __attribute__((always_inline)) inline

using Bytes = uint8_t __attribute__((vector_size(TANDEM_LANES)));

inline constexpr uint32_t kRows = kernels::kTileRows;
inline constexpr uint32_t kGroup = arithmetic::kGroup;

TANDEM_INLINE Float load(const float* x) {
  Float lanes;
  std::memcpy(&lanes, x, sizeof lanes);
  return lanes;
}
TANDEM_INLINE void store(float* x, Float lanes) {
  std::memcpy(x, &lanes, sizeof lanes);
}
TANDEM_INLINE void store(uint8_t* x, Integer lanes) {
  std::memcpy(x, &lanes, sizeof lanes);
}
TANDEM_INLINE void store_bytes(uint8_t* x, Integer lanes) {
  const Bytes bytes = __builtin_convertvector(lanes, Bytes);
  std::memcpy(x, &bytes, sizeof bytes);
}
TANDEM_INLINE Float clamp(Float x, float low, float high) {
  return lower(Float{} + high, higher(Float{} + low, x));
}
TANDEM_INLINE Float total(const Float* sums) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A group's rows of scratch: 32 columns, kRows apart.
TANDEM_INLINE Float weight(const float* w, uint32_t i) {
  return load(w + size_t{i} * kRows);
}

struct Fit {
  Float scale, minimum;
};

template <bool kHasMinimum>
struct Grid {
  Float scale, inverse, minimum;
  float low, high;

  TANDEM_INLINE Grid(Float s, Float m, float least, float most)
      : scale(s), inverse(s > Float{} ? 1.0F / s : Float{}), minimum(m), low(least), high(most) {}

  TANDEM_INLINE Float quant(Float w) const {
    // Without a minimum the scalar code adds and subtracts zero, which changes nothing but a sign
    // of zero that the rounding drops.
    Float q = (kHasMinimum ? w + minimum : w) * inverse;
    q = clamp(q, low, high);
    return nearest(q);
  }
  TANDEM_INLINE Float squared_error(Float w, Float q) const {
    const Float d = (kHasMinimum ? q * scale - minimum : q * scale) - w;
    return d * d;
  }
  TANDEM_INLINE Float error(const float* w) const {
    Float sums[4];
    // One partial sum after the other: all four at once don't fit the registers.
    for (uint32_t j = 0; j < 4; ++j) {
      Float sum{};
      for (uint32_t i = j; i < kGroup; i += 4) {
        const Float x = weight(w, i);
        sum += squared_error(x, quant(x));
      }
      sums[j] = sum;
    }
    return total(sums);
  }
};

// assign() and refit() of quantize.cpp in one pass: returns the error, replaces the fit.
TANDEM_INLINE Float assign_and_refit(const float* w, Float sum_w, Fit& fit) {
  const Grid<true> grid(fit.scale, fit.minimum, 0.0F, 15.0F);
  Float error[4];
  Float sums_q[4];
  Float sums_qq[4];
  Float sums_qw[4];
  for (uint32_t j = 0; j < 4; ++j) {
    Float sum_error{};
    Float q_sum{};
    Float qq_sum{};
    Float qw_sum{};
    for (uint32_t i = j; i < kGroup; i += 4) {
      const Float x = weight(w, i);
      const Float q = grid.quant(x);
      sum_error += grid.squared_error(x, q);
      q_sum += q;
      qq_sum += q * q;
      qw_sum += q * x;
    }
    error[j] = sum_error;
    sums_q[j] = q_sum;
    sums_qq[j] = qq_sum;
    sums_qw[j] = qw_sum;
  }
  const Float sum_q = total(sums_q);
  const Float sum_qq = total(sums_qq);
  const Float sum_qw = total(sums_qw);
  constexpr auto kCount = static_cast<float>(kGroup);
  const Float zero{};
  const Float determinant = kCount * sum_qq - sum_q * sum_q;
  const Float scale = (kCount * sum_qw - sum_q * sum_w) / determinant;
  const Float minimum = (sum_q * sum_qw - sum_qq * sum_w) / determinant;
  // Lanes that divided by zero are not chosen.
  const Float quotient = sum_qw / sum_qq;
  Float plain = quotient > zero ? quotient : zero;
  plain = sum_qq > zero ? plain : zero;
  const auto both = (determinant > zero) & (scale > zero) & (minimum >= zero);
  fit.scale = both ? scale : plain;
  fit.minimum = both ? minimum : zero;
  return total(error);
}

TANDEM_TARGET Fit fit_group(const float* w) {
  Float lowest{};
  Float highest = weight(w, 0);
  Float sums_w[4] = {};
  for (uint32_t i = 0; i < kGroup; i += 4) {
    for (uint32_t j = 0; j < 4; ++j) {
      const Float x = weight(w, i + j);
      lowest = x < lowest ? x : lowest;
      highest = highest < x ? x : highest;
      sums_w[j] += x;
    }
  }
  const Float sum_w = total(sums_w);
  const Float range = highest - lowest;
  Fit best{};
  Float least = Float{} + INFINITY;
  for (int step = -2; step <= 4; ++step) {
    Fit fit{range / (15.0F + 0.5F * static_cast<float>(step)), -lowest};
    for (int round = 0; round < 3; ++round) {
      const Fit tried = fit;
      const Float error = round == 2 ? Grid<true>(fit.scale, fit.minimum, 0.0F, 15.0F).error(w)
                                     : assign_and_refit(w, sum_w, fit);
      const auto better = error < least;
      least = better ? error : least;
      best.scale = better ? tried.scale : best.scale;
      best.minimum = better ? tried.minimum : best.minimum;
    }
  }
  const auto any = range > Float{};
  best.scale = any ? best.scale : Float{};
  best.minimum = any ? best.minimum : -lowest;
  return best;
}

// The grids that `given` holds, and fits where they can't be used.
TANDEM_TARGET Fit grid_or_fit(const float* w, const Fit& given, Integer exists) {
  Float lowest{};
  Float highest = weight(w, 0);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const Float x = weight(w, i);
    lowest = x < lowest ? x : lowest;
    highest = highest < x ? x : highest;
  }
  const Float zero{};
  const auto usable =
      (given.scale > zero) & (given.minimum >= zero) & (8.0F * given.scale <= highest - lowest);
  bool all = true;
  for (uint32_t lane = 0; lane < TANDEM_LANES; ++lane) {
    all = all && (usable[lane] != 0 || exists[lane] == 0);
  }
  Fit fit = given;
  if (!all) fit = fit_group(w);
  fit.scale = usable ? given.scale : fit.scale;
  fit.minimum = usable ? given.minimum : fit.minimum;
  return fit;
}

// A column's quants as integers; those of padding are zero.
template <bool kHasMinimum>
TANDEM_INLINE Integer integers(const Grid<kHasMinimum>& grid, const float* w, uint32_t i,
                               float offset) {
  return __builtin_convertvector(grid.quant(weight(w, i)) + offset, Integer);
}

// Writes a group's low four bits, and with kHigh (6 bits) the two above them. `low` and `high` are
// its step's, of which it is the chunks from `first` on.
template <bool kHigh, bool kHasMinimum>
TANDEM_INLINE void store_group(const Grid<kHasMinimum>& grid, const float* w, float offset,
                               uint32_t present, Integer exists, uint32_t first, uint8_t* low,
                               uint8_t* high) {
  constexpr auto kFormat = kHigh ? kernels::WeightFormat::k6 : kernels::WeightFormat::k4;
  for (uint32_t half = 0; half < 2; ++half) {
    Integer top{};
    for (uint32_t chunk = 2 * half; chunk < 2 * half + 2; ++chunk) {
      Integer word{};
      for (uint32_t j = 0; j < 8; ++j) {
        if (8 * chunk + j >= present) continue;
        const Integer q = integers(grid, w, 8 * chunk + j, offset) & exists;
        word |= (q & 15) << static_cast<int>(j < 4 ? 8 * j : 8 * (j - 4) + 4);
        if (kHigh) {
          const uint32_t quad = (chunk % 2) * 2 + j / 4;
          top |= (q >> 4) << static_cast<int>(8 * (j % 4) + 2 * quad);
        }
      }
      store(low + kernels::PackedStep::low_of(kFormat, first + chunk), word);
    }
    if (kHigh) store(high + kernels::PackedStep::high_of(first + 2 * half), top);
  }
}

// The rows of one vector: `first` is its first row.
class Lanes {
 public:
  TANDEM_INLINE Lanes(const TileShape& shape, TileScratch& scratch, uint32_t first, uint8_t* tile,
                      float* row_scales)
      : shape_(shape),
        weights_(scratch.weights.data() + first),
        fits_(scratch.fits.data() + first),
        tile_(tile + size_t{first} * 4),
        scales_(tile + first),
        steps_(kernels::padded_columns(shape.columns) / kernels::kColumnPad),
        row_scales_(row_scales + first),
        groups_((shape.columns + kGroup - 1) / kGroup) {
    int32_t exists[TANDEM_LANES];
    for (uint32_t lane = 0; lane < TANDEM_LANES; ++lane) {
      exists[lane] = first + lane < shape.rows ? -1 : 0;
    }
    std::memcpy(&exists_, exists, sizeof exists_);
  }

  TANDEM_TARGET bool run() {
    Integer bits{};
    for (uint32_t k = 0; k < shape_.columns; ++k) {
      Integer x;
      std::memcpy(&x, weights_ + size_t{k} * kRows, sizeof x);
      bits = larger(bits, x & 0x7fffffff);
    }
    // As integers the magnitudes of NaN and infinity are above every number's.
    constexpr int32_t kMost = std::bit_cast<int32_t>(arithmetic::kMaxRowScale * 127.0F);
    for (uint32_t lane = 0; lane < TANDEM_LANES; ++lane) {
      if (bits[lane] > kMost) return false;
    }
    Float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    switch (shape_.format) {
      case kernels::WeightFormat::k8:
        run8(largest);
        break;
      case kernels::WeightFormat::k4:
        run4();
        break;
      case kernels::WeightFormat::k6:
        run6(largest);
        break;
    }
    return true;
  }

 private:
  TANDEM_INLINE kernels::PackedStep step_of(uint32_t g) const {
    return kernels::PackedStep::at(shape_.format, steps_, g / 2);
  }
  TANDEM_INLINE const float* group(uint32_t g) const {
    return weights_ + size_t{g} * kGroup * kRows;
  }
  TANDEM_INLINE uint32_t present(uint32_t g) const {
    return std::min(kGroup, shape_.columns - g * kGroup);
  }
  TANDEM_INLINE Float clamp_scale(Float scale) const {
    const Float least = Float{} + arithmetic::kMinRowScale;
    return scale < least ? least : scale;
  }
  TANDEM_INLINE void store_scales(Float scale) {
    const Float zero{};
    store(row_scales_, exists_ != 0 ? scale : zero);
  }

  TANDEM_TARGET void run8(Float largest) {
    const Float scale = clamp_scale(largest / 127.0F);
    for (uint32_t k = 0; k < kernels::padded_columns(shape_.columns); k += 4) {
      Integer word{};
      for (uint32_t j = 0; j < 4; ++j) {
        const Float q = nearest(clamp(weight(weights_, k + j) / scale, -127.0F, 127.0F));
        word |= (__builtin_convertvector(q, Integer) & 255) << static_cast<int>(8 * j);
      }
      store(tile_ + size_t{k} * 16, word ^ static_cast<int32_t>(0x80808080U));
    }
    store_scales(scale);
  }

  TANDEM_TARGET void run4() {
    constexpr auto kUnit = static_cast<float>(arithmetic::kMinimumUnit);
    Float row_scale = Float{} + arithmetic::kMinRowScale;
    for (uint32_t g = 0; g < groups_; ++g) {
      float* place = fits_ + size_t{g} * 2 * kRows;
      const Fit fit = shape_.grids
                          ? grid_or_fit(group(g), {load(place), load(place + kRows)}, exists_)
                          : fit_group(group(g));
      store(place, fit.scale);
      store(place + kRows, fit.minimum);
      row_scale = higher(row_scale, fit.scale / 63.0F);
      row_scale = higher(row_scale, fit.minimum / (63.0F * kUnit));
    }
    for (uint32_t g = 0; g < 2 * ((groups_ + 1) / 2); g += 2) {
      const Integer first = group4(g, row_scale);
      const Integer second = g + 1 < groups_ ? group4(g + 1, row_scale) : Integer{};
      uint8_t* step = scales_ + step_of(g).scales;
      // A byte of a group: scale and the minimum's low bits; its upper bits come behind.
      store_bytes(step, first & 255);
      store_bytes(step + kRows, second & 255);
      store_bytes(step + 2 * kRows, (first >> 8) | (second >> 8) << 4);
    }
    store_scales(row_scale);
  }

  // One group to integers; gives scale | minimum << 6.
  TANDEM_TARGET Integer group4(uint32_t g, Float row_scale) {
    constexpr auto kUnit = static_cast<float>(arithmetic::kMinimumUnit);
    const float* w = group(g);
    const Float scale = nearest(load(fits_ + size_t{g} * 2 * kRows) / row_scale);
    const Float minimum = nearest(load(fits_ + (size_t{g} * 2 + 1) * kRows) / (row_scale * kUnit));
    Float best_s{};
    Float best_m{};
    Float least = Float{} + INFINITY;
    for (int ds = -1; ds <= 1; ++ds) {
      for (int dm = -1; dm <= 1; ++dm) {
        const Float s = clamp(scale + static_cast<float>(ds), 0.0F, 63.0F);
        const Float m = clamp(minimum + static_cast<float>(dm), 0.0F, 63.0F);
        const Float error = Grid<true>(s * row_scale, m * kUnit * row_scale, 0.0F, 15.0F).error(w);
        const auto better = error < least;
        least = better ? error : least;
        best_s = better ? s : best_s;
        best_m = better ? m : best_m;
      }
    }
    const Grid<true> grid(best_s * row_scale, best_m * kUnit * row_scale, 0.0F, 15.0F);
    store_group<false>(grid, w, 0.0F, present(g), exists_, g % 2 * 4, tile_ + step_of(g).low,
                       nullptr);
    const Integer s = __builtin_convertvector(best_s, Integer);
    const Integer m = __builtin_convertvector(best_m, Integer);
    return (s | m << 6) & exists_;
  }

  TANDEM_TARGET void run6(Float largest) {
    const Float row_scale = clamp_scale(largest / (31.0F * 127.0F));
    for (uint32_t g = 0; g < groups_; ++g) {
      const float* w = group(g);
      Float reach{};
      for (uint32_t i = 0; i < kGroup; ++i) {
        const Float x = weight(w, i);
        reach = higher(reach, higher(x, -x));
      }
      const Float whole = nearest(reach / (31.0F * row_scale));
      Float best{};
      Float least = Float{} + INFINITY;
      for (int ds = -2; ds <= 2; ++ds) {
        const Float s = clamp(whole + static_cast<float>(ds), 0.0F, 127.0F);
        const Float error = Grid<false>(s * row_scale, Float{}, -32.0F, 31.0F).error(w);
        const auto better = error < least;
        least = better ? error : least;
        best = better ? s : best;
      }
      const Grid<false> grid(best * row_scale, Float{}, -32.0F, 31.0F);
      const kernels::PackedStep step = step_of(g);
      store_group<true>(grid, w, 32.0F, present(g), exists_, g % 2 * 4, tile_ + step.low,
                        tile_ + step.high);
      store_bytes(scales_ + step.scales + size_t{g % 2} * kRows,
                  __builtin_convertvector(best, Integer) & exists_);
    }
    store_scales(row_scale);
  }

  const TileShape& shape_;
  const float* weights_;
  float* fits_;
  uint8_t* tile_;
  uint8_t* scales_;
  uint32_t steps_;
  float* row_scales_;
  uint32_t groups_;
  Integer exists_{};
};

TANDEM_TARGET bool quantize_tile(const TileShape& shape, TileScratch& scratch, uint8_t* tile,
                                 float* row_scales) {
  if (shape.format != kernels::WeightFormat::k8) {
    // What the groups don't write lies in the last block: a last half of 64 columns, and what
    // follows the multipliers.
    const uint32_t steps = kernels::padded_columns(shape.columns) / kernels::kColumnPad;
    const uint32_t in_block = shape.format == kernels::WeightFormat::k4 ? 4 : 2;
    const uint64_t bytes = kernels::PackedMatrix::tile_bytes(shape.format, shape.columns);
    const uint64_t last =
        kernels::PackedStep::at(shape.format, steps, (steps - 1) / in_block * in_block).scales;
    std::memset(tile + last, 0, bytes - last);
  }
  for (uint32_t first = 0; first < kRows; first += TANDEM_LANES) {
    Lanes lanes(shape, scratch, first, tile, row_scales);
    if (!lanes.run()) return false;
  }
  return true;
}

#undef TANDEM_INLINE
