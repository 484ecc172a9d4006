// Scales that fit the values of sub-blocks: as quant/encode/fitting.py, operation by operation, so
// that every bit is the same. A lane is a block, so sums over columns are sums of registers.
#pragma once

#include <limits>

#include "../simd.h"

namespace penstock {

constexpr int kEncodeLanes = f32x16::lanes;
using LaneRow = float[kEncodeLanes];  // of one column, of so many blocks

PENSTOCK_INLINE f32x16 lanes_of(float x) { return f32x16::broadcast(x); }
PENSTOCK_INLINE f32x16 or_zero(f32x16 x) {
  return select_less(abs(x), lanes_of(std::numeric_limits<float>::infinity()), x, f32x16::zero());
}
PENSTOCK_INLINE f32x16 safe_divide(f32x16 a, f32x16 b) { return or_zero(a / b); }
// Clipped before it is rounded: the same for whole bounds, and the portable rounding needs it.
PENSTOCK_INLINE f32x16 round_and_clip(f32x16 x, float low, float high) {
  return round_even(min(max(x, lanes_of(low)), lanes_of(high)));
}
// Clipped to what it holds, else a minimum that fits values near that would be an infinity.
PENSTOCK_INLINE f32x16 to_float16(f32x16 x) {
  constexpr float kMost = 65504.0f;
  f16 rounded[kEncodeLanes];
  min(max(x, lanes_of(-kMost)), lanes_of(kMost)).store(rounded);
  return f32x16::load(rounded) + f32x16::zero();
}

// Weighted sums over the columns of a sub-block, of codes c and values x.
struct FitSums {
  f32x16 c = f32x16::zero(), cc = f32x16::zero(), cx = f32x16::zero();

  PENSTOCK_INLINE void add(f32x16 code, f32x16 x, f32x16 weight) {
    const f32x16 weighted = weight * code;
    c += weighted;
    cc += weighted * code;
    cx += weighted * x;
  }
};

// What a sub-block's codes are multiplied by, and what is then subtracted.
struct FitLine {
  f32x16 step, minimum;
};

// The sums of a sub-block that no choice of codes changes.
struct FitConstants {
  f32x16 one = f32x16::zero(), x = f32x16::zero();  // of weights, and of weighted values
};

PENSTOCK_INLINE FitLine least_squares(const FitSums& s, const FitConstants& of) {
  const f32x16 determinant = of.one * s.cc - s.c * s.c;
  const f32x16 step = safe_divide(of.one * s.cx - of.x * s.c, determinant);
  const f32x16 minimum = safe_divide(s.c * s.cx - s.cc * of.x, determinant);
  const f32x16 zero = f32x16::zero();
  return {select_less(zero, minimum, step, safe_divide(s.cx, s.cc)),
          select_less(zero, minimum, minimum, zero)};
}

PENSTOCK_INLINE f32x16 squared_error(const FitLine& line, const FitSums& s,
                                     const FitConstants& of) {
  const f32x16 two = lanes_of(2.0f);
  const f32x16 error = line.step * (line.step * s.cc - two * (s.cx + line.minimum * s.c));
  return error + line.minimum * (line.minimum * of.one + two * of.x);
}

template <int kColumns>
FitConstants fit_constants(const LaneRow* x, const LaneRow* weights) {
  FitConstants of;
  for (int i = 0; i < kColumns; ++i) {
    const f32x16 w = f32x16::load(weights[i]);
    of.one += w;
    of.x += w * f32x16::load(x[i]);
  }
  return of;
}

constexpr int kFitSteps = 10;  // tenths of a step, up and down

template <int kColumns>
FitLine search_scale_and_min(const LaneRow* x, const LaneRow* weights, const FitConstants& of,
                             float top) {
  const f32x16 zero = f32x16::zero();
  f32x16 low = zero;
  for (int i = 0; i < kColumns; ++i) low = min(f32x16::load(x[i]), low);
  alignas(64) LaneRow above[kColumns];
  f32x16 span = zero;
  for (int i = 0; i < kColumns; ++i) {
    const f32x16 a = f32x16::load(x[i]) - low;
    a.store(above[i]);
    span = max(a, span);
  }
  FitLine best{span / lanes_of(top), zero - low};
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  const f32x16 per_span = safe_divide(lanes_of(1.0f), span);
  for (int tenths = -kFitSteps; tenths <= kFitSteps; ++tenths) {
    const float more = float(tenths) / float(kFitSteps);
    const f32x16 factor = or_zero(lanes_of(top + more) * per_span);
    FitSums sums;
    for (int i = 0; i < kColumns; ++i) {
      const f32x16 code = min(round_even(f32x16::load(above[i]) * factor), lanes_of(top));
      sums.add(code, f32x16::load(x[i]), f32x16::load(weights[i]));
    }
    const FitLine line = least_squares(sums, of);
    const f32x16 error = squared_error(line, sums, of);
    const auto better = [&](f32x16 now, f32x16 old) {
      return select_less(error, least, select_less(zero, line.step, now, old), old);
    };
    best = {better(line.step, best.step), better(line.minimum, best.minimum)};
    least = better(error, least);
  }
  return best;
}

template <int kColumns>
f32x16 search_scale(const LaneRow* x, const LaneRow* weights, float middle) {
  f32x16 largest = f32x16::zero(), magnitude = f32x16::zero();
  for (int i = 0; i < kColumns; ++i) {
    const f32x16 v = f32x16::load(x[i]), a = abs(v);
    largest = select_less(magnitude, a, v, largest);
    magnitude = max(a, magnitude);
  }
  const f32x16 per_largest = safe_divide(lanes_of(1.0f), largest);
  f32x16 scale = f32x16::zero(), best = f32x16::zero();
  for (int tenths = -kFitSteps; tenths <= kFitSteps; ++tenths) {
    const float more = float(tenths) / float(kFitSteps);
    const f32x16 factor = or_zero(lanes_of(-middle - more) * per_largest);
    FitSums sums;
    for (int i = 0; i < kColumns; ++i) {
      const f32x16 v = f32x16::load(x[i]);
      sums.add(round_and_clip(v * factor, -middle, middle - 1), v, f32x16::load(weights[i]));
    }
    const f32x16 gain = safe_divide(sums.cx * sums.cx, sums.cc);
    scale = select_less(best, gain, safe_divide(sums.cx, sums.cc), scale);
    best = select_less(best, gain, gain, best);
  }
  return scale;
}

}  // namespace penstock
