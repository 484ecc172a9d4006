// Weights of tokens: their probabilities as whole numbers, a group of a row at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../simd.h"

namespace penstock {

// Elements of a row that share a maximum and a sum, by which most of a row is passed over.
constexpr int64_t kGroup = 4 * f32x16::lanes;

constexpr int kWeightBits = 40;
constexpr int64_t kOne = int64_t(1) << kWeightBits;  // the weight of the likeliest token

inline int64_t groups_of(int64_t size) { return (size + kGroup - 1) / kGroup; }

struct Peak {
  float value;
  bool has_nan;
};

// The maximum, at the speed of memory. Zero times anything but a number is a NaN, and a NaN stays.
inline Peak peak_of(const float* x, int64_t size) {
  f32x16 best[4], trace[4];
  for (int c = 0; c < 4; ++c) {
    best[c] = f32x16::broadcast(-std::numeric_limits<float>::infinity());
    trace[c] = f32x16::zero();
  }
  int64_t i = 0;
  for (; i + kGroup <= size; i += kGroup)
    for (int c = 0; c < 4; ++c) {
      const f32x16 v = f32x16::load(x + i + c * f32x16::lanes);
      best[c] = max(v, best[c]);
      trace[c] = fma(v, f32x16::zero(), trace[c]);
    }
  float value = hmax(max(max(best[0], best[1]), max(best[2], best[3])));
  float seen = hsum(trace[0] + trace[1] + trace[2] + trace[3]);
  for (; i < size; ++i) {
    value = x[i] > value ? x[i] : value;
    seen += x[i] * 0.0f;
  }
  const bool suspect = !(seen == 0.0f);  // an infinity is one too
  return {value, suspect && std::any_of(x, x + size, [](float v) { return v != v; })};
}

// What makes weights of a row's logits. `peak` is the row's maximum.
struct Weigher {
  float peak, inverse_temperature;
};

// 2^40 e^((x - peak) / temperature), of which the whole part is the weight. Additions and
// multiplications alone, in this order: sampling/select.py has the same and says why.
PENSTOCK_INLINE f32x16 weight_of(f32x16 x, const Weigher& w) {
  const auto c = [](double value) { return f32x16::broadcast(float(value)); };
  x = max((x - c(w.peak)) * c(w.inverse_temperature), c(-30.0));
  const f32x16 n = round_even(x * c(0x1.715476p+0));
  f32x16 r = x - n * c(0x1.62e4p-1);
  r = r - n * c(0x1.7f7d1cp-20);
  f32x16 power = c(1.0 / 5040);
  power = power * r + c(1.0 / 720);
  power = power * r + c(1.0 / 120);
  power = power * r + c(1.0 / 24);
  power = power * r + c(1.0 / 6);
  power = power * r + c(0.5);
  power = power * r + c(1.0);
  power = power * r + c(1.0);
  return scale_pow2(power, n + c(kWeightBits));
}

// The weights of a group, zero beyond `size` elements.
struct GroupWeights {
  alignas(64) float value[kGroup];

  GroupWeights(const float* x, int64_t size, const Weigher& w) {
    for (int c = 0; c < kGroup / f32x16::lanes; ++c) {
      const int n = int(std::clamp<int64_t>(size - c * f32x16::lanes, 0, f32x16::lanes));
      f32x16 v = f32x16::zero();
      if (n == f32x16::lanes)
        v = weight_of(f32x16::load(x + c * f32x16::lanes), w);
      else if (n > 0)
        v = select_first(n, weight_of(f32x16::load_n(x + c * f32x16::lanes, n), w), v);
      v.store(value + c * f32x16::lanes);
    }
  }
  int64_t operator[](int64_t i) const { return int64_t(value[i]); }
};

}  // namespace penstock
