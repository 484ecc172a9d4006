// What ops over a token's heads share: norm, rotation, and how a head's row is stored.
#pragma once

#include <algorithm>

#include "../simd.h"
#include "../types.h"
#include "rotation.h"

namespace penstock {

constexpr int64_t kLeastHeads = 16;  // for a thread to take at a time: about 1 us

// Heads of tokens as they are written to the cache: all of a tile of tokens for one head before
// the next head. Tokens of a block share the lines of its keys, 64 of a head of 128 components, and those
// of eight heads are more than L1 has. (Zen 4, L1 of 32 KiB, 16 heads and 8 KV heads
// of 128, bf16, two threads, single runs of 1,035 tokens: 2.4 ms a layer token by token, 2.0 so.)
class TiledHeads {
 public:
  struct Tile {
    int64_t first, end;  // tokens
    int head;
  };
  TiledHeads(int tokens, int heads) : tokens_(tokens), heads_(heads) {}

  int64_t size() const { return int64_t(tokens_ + kBlockSize - 1) / kBlockSize * heads_; }
  // For a thread to take at a time.
  int64_t least() const { return std::max<int64_t>(1, kLeastHeads / std::min(tokens_, kBlockSize)); }
  Tile operator[](int64_t i) const {
    const int64_t first = i / heads_ * kBlockSize;
    return {first, std::min<int64_t>(tokens_, first + kBlockSize), int(i % heads_)};
  }

 private:
  int tokens_, heads_;
};

// f(first component, number of components), for each register of n components.
template <class F>
PENSTOCK_INLINE void for_lanes(int n, F f) {
  for (int i = 0; i < n; i += f32x16::lanes) f(i, std::min(f32x16::lanes, n - i));
}

// rsqrt(mean(x^2) + eps). Lane i sums components i, i + 16, ...
PENSTOCK_INLINE f32x16 rms_factor(const float* x, int n, float eps) {
  f32x16 squares = f32x16::zero();
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count);
    squares = fma(v, v, squares);
  });
  return rsqrt(f32x16::broadcast(hsum(squares) / float(n) + eps));
}

// x = x * rsqrt(mean(x^2) + eps) * weight.
inline void norm_head(float* x, int n, const float* weight, float eps) {
  const f32x16 factor = rms_factor(x, n, eps);
  for_lanes(n, [&](int i, int count) {
    (f32x16::load_n(x + i, count) * factor * f32x16::load_n(weight + i, count))
        .store_n(x + i, count);
  });
}

// The same without a weight.
inline void norm_head(float* x, int n, float eps) {
  const f32x16 factor = rms_factor(x, n, eps);
  for_lanes(n, [&](int i, int count) {
    (f32x16::load_n(x + i, count) * factor).store_n(x + i, count);
  });
}

// x = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, either of which may be null.
inline void layer_norm_head(float* x, int n, const float* weight, const float* bias, float eps) {
  f32x16 sum = f32x16::zero();
  for_lanes(n, [&](int i, int count) { sum += f32x16::load_n(x + i, count); });
  const f32x16 mean = f32x16::broadcast(hsum(sum) / float(n));
  f32x16 squares = f32x16::zero();
  for_lanes(n, [&](int i, int count) {
    const f32x16 v =
        select_first(count, f32x16::load_n(x + i, count) - mean, f32x16::zero());
    v.store_n(x + i, count);
    squares = fma(v, v, squares);
  });
  const f32x16 factor = rsqrt(f32x16::broadcast(hsum(squares) / float(n) + eps));
  for_lanes(n, [&](int i, int count) {
    f32x16 y = f32x16::load_n(x + i, count) * factor;
    if (weight) y *= f32x16::load_n(weight + i, count);
    if (bias) y += f32x16::load_n(bias + i, count);
    y.store_n(x + i, count);
  });
}

inline void rotate_halves(float* x, const float* cos, const float* sin, int half) {
  for_lanes(half, [&](int i, int count) {
    const f32x16 a = f32x16::load_n(x + i, count);
    const f32x16 b = f32x16::load_n(x + half + i, count);
    const f32x16 c = f32x16::load_n(cos + i, count);
    const f32x16 s = f32x16::load_n(sin + i, count);
    (a * c - b * s).store_n(x + i, count);
    (b * c + a * s).store_n(x + half + i, count);
  });
}

// The same arithmetic for neighbours.
inline void rotate_neighbours(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// Turns a head in place by the angles of `position`.
inline void rotate(float* x, const Rotation& rotation, int64_t position) {
  const int half = rotation.dim / 2;
  const float *cos = rotation.cos + position * half, *sin = rotation.sin + position * half;
  if (rotation.interleaved)
    rotate_neighbours(x, cos, sin, half);
  else
    rotate_halves(x, cos, sin, half);
}

template <class T>
inline void store_row(T* out, const float* x, int n) {
  for_lanes(n, [&](int i, int count) { f32x16::load_n(x + i, count).store_n(out + i, count); });
}

// Into row r of `out` from `column` on, rounded to its element.
inline void store_head(const Array& out, int64_t r, int64_t column, const float* x, int n) {
  if (out.elem == Elem::bf16)
    store_row(out.row<bf16>(r) + column, x, n);
  else
    store_row(out.row<float>(r) + column, x, n);
}

}  // namespace penstock
