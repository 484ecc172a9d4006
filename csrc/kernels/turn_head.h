// Keys of an INT8 cache, keys and values of an INT4 cache, are turned before they are rounded:
// `KvWrite` of plan/ops says how and why.
#pragma once

#include <cmath>

#include "../simd.h"

namespace penstock {

// Sums and differences of components so far apart, in runs of twice as many.
template <int Apart>
PENSTOCK_INLINE void turn_near(float* x, int n) {
  for (int i = 0; i < n; i += 2 * Apart)
    for (int j = i; j < i + Apart; ++j) {
      const float first = x[j], second = x[j + Apart];
      x[j] = first + second;
      x[j + Apart] = first - second;
    }
}

// Turns a head of n components, n even, in place; twice makes it what it was, but for rounding.
inline void turn_head(float* x, int n) {
  const int run = n & -n;
  const float factor = float(1.0 / std::sqrt(double(run)));
  for (int i = 0; i < n; ++i) x[i] *= factor;
  turn_near<1>(x, n);
  if (run > 2) turn_near<2>(x, n);
  if (run > 4) turn_near<4>(x, n);
  if (run > 8) turn_near<8>(x, n);
  for (int apart = f32x16::lanes; apart < run; apart *= 2)
    for (int i = 0; i < n; i += 2 * apart)
      for (int j = i; j < i + apart; j += f32x16::lanes) {
        const f32x16 first = f32x16::load(x + j), second = f32x16::load(x + j + apart);
        (first + second).store(x + j);
        (first - second).store(x + j + apart);
      }
}

}  // namespace penstock
