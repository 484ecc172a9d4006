// Sums over the columns of a row, in an order that depends on their number alone.
#pragma once

#include "../simd.h"

namespace penstock {

// A register of n columns, which are all of it where it is whole.
template <bool whole>
PENSTOCK_INLINE f32x16 load_columns(const float* x, int n) {
  return whole ? f32x16::load(x) : f32x16::load_n(x, n);
}

// f.operator()<whole>(column, n, sum) adds the columns of a register.
template <class F>
PENSTOCK_INLINE float sum_columns(int64_t cols, F f) {
  constexpr int lanes = f32x16::lanes;
  constexpr int chains = 4;  // independent sums, as many as an addition has cycles of latency
  f32x16 sums[chains] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  int64_t i = 0;
  for (; i + chains * lanes <= cols; i += chains * lanes)
    for (int c = 0; c < chains; ++c)
      sums[c] = f.template operator()<true>(i + c * lanes, lanes, sums[c]);
  for (; i + lanes <= cols; i += lanes) sums[0] = f.template operator()<true>(i, lanes, sums[0]);
  if (i < cols) sums[1] = f.template operator()<false>(i, int(cols - i), sums[1]);
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The sum of squares of a row.
inline float sum_of_squares(const float* x, int64_t cols) {
  return sum_columns(cols, [&]<bool whole>(int64_t i, int n, f32x16 sum) {
    const f32x16 v = load_columns<whole>(x + i, n);
    return fma(v, v, sum);
  });
}

}  // namespace penstock
