// A convolution along the tokens of a sequence, of a register's columns: what `ShortConv` and
// `StateConv` share, whose earlier inputs lie in different places.
#pragma once

#include <type_traits>

#include "../simd.h"

namespace penstock {

constexpr int kMostTaps = 16;  // tokens that a convolution sees, its own included

// x as T keeps it.
template <class T>
PENSTOCK_INLINE f32x16 as_kept(f32x16 x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    alignas(64) T kept[f32x16::lanes];
    x.store(kept);
    return f32x16::load(kept);
  }
}

// Columns [first, first + n) of rows, at most a register of them.
struct TapColumns {
  int64_t first;
  int n;
};

// K tokens, or, where K is 0, as many as `kernel` says.
template <int K>
class Taps {
 public:
  // weight [kernel, cols], the oldest token's first; bias [cols], or null. All tokens before are zeros.
  Taps(const float* weight, const float* bias, int kernel, int64_t cols, const TapColumns& at)
      : kernel_(kernel),
        bias_(bias ? f32x16::load_n(bias + at.first, at.n) : f32x16::zero()) {
    for (int j = 0; j < count(); ++j) {
      weight_[j] = f32x16::load_n(weight + j * cols + at.first, at.n);
      seen_[j] = f32x16::zero();
    }
  }

  int count() const { return K ? K : kernel_; }

  // What the token has that is so many before the first.
  PENSTOCK_INLINE void precede(int back, f32x16 u) { seen_[count() - back] = u; }

  // The sum of the next token, which has u.
  PENSTOCK_INLINE f32x16 next(f32x16 u) {
    for (int j = 1; j < count(); ++j) seen_[j - 1] = seen_[j];
    seen_[count() - 1] = u;
    f32x16 sum = bias_;
    for (int j = 0; j < count(); ++j) sum = fma(weight_[j], seen_[j], sum);
    return sum;
  }

 private:
  static constexpr int kRoom = K ? K : kMostTaps;
  int kernel_;
  f32x16 bias_, weight_[kRoom], seen_[kRoom];
};

// f with the K of Taps: published models have 3 or 4.
template <class F>
void with_taps(int kernel, F f) {
  switch (kernel) {
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    default: return f(std::integral_constant<int, 0>{});
  }
}

}  // namespace penstock
