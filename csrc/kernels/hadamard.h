// The Hadamard transform of rows, by blocks of columns: what is large in a row is spread over its
// block, so that one scale serves all of it. quant/hadamard.py says why, and is the same in NumPy, to
// the bit: sums and differences at distances 1, 2, 4, ..., each rounded once.
#pragma once

#include <array>
#include <cstdint>

#include "../simd.h"

namespace penstock {

constexpr int64_t kMostHadamard = 512;  // columns of a block

// The largest power of two that divides k.
constexpr int64_t hadamard_block(int64_t k) { return std::min(k & -k, kMostHadamard); }

// The sign of a block's column: without signs, a row of nearly equal values would become a large one.
constexpr float hadamard_sign(uint32_t column) {
  uint32_t mixed = column * 0x9E3779B1u;
  mixed = (mixed ^ mixed >> 15) * 0x85EBCA77u;
  mixed ^= mixed >> 13;
  return mixed & 1 ? -1.0f : 1.0f;
}
inline constexpr auto kHadamardSigns = [] {
  std::array<float, kMostHadamard> signs{};
  for (uint32_t i = 0; i < kMostHadamard; ++i) signs[i] = hadamard_sign(i);
  return signs;
}();

// 1 in the lanes that are the first of a pair at this distance, -1 in the second ones.
template <int kDistance>
inline constexpr auto kFirstOfPairs = [] {
  std::array<float, f32x16::lanes> ones{};
  for (int i = 0; i < f32x16::lanes; ++i) ones[size_t(i)] = i & kDistance ? -1.0f : 1.0f;
  return ones;
}();

// Sums of the pairs of lanes at this distance, in the first of each, and differences in the second.
template <int kDistance>
PENSTOCK_INLINE f32x16 butterfly(f32x16 a) {
  return fma(a, f32x16::load(kFirstOfPairs<kDistance>.data()), swap_lanes<kDistance>(a));
}

// Transforms k values times `by` and signs; `to` has room for k rounded up to whole registers, what
// is past k becomes 0, and may be x.
template <class T>
void hadamard_row(const T* x, int64_t k, float by, float* to) {
  constexpr int64_t lanes = f32x16::lanes;
  const int64_t block = hadamard_block(k);
  const f32x16 factor = f32x16::broadcast(by);
  // Of blocks shorter than a register, signs begin anew within it.
  alignas(64) float few[lanes];
  for (int64_t i = 0; i < lanes; ++i) few[i] = kHadamardSigns[size_t(i % block)];
  for (int64_t i = 0; i < k; i += lanes) {
    const float* const signs = block < lanes ? few : kHadamardSigns.data() + i % block;
    f32x16 v = k - i >= lanes ? f32x16::load(x + i) : f32x16::load_n(x + i, int(k - i));
    v = v * (f32x16::load(signs) * factor);
    if (block > 1) v = butterfly<1>(v);
    if (block > 2) v = butterfly<2>(v);
    if (block > 4) v = butterfly<4>(v);
    if (block > 8) v = butterfly<8>(v);
    v.store(to + i);
  }
  int64_t distance = lanes;
  // Two distances in one pass.
  for (; 4 * distance <= block; distance *= 4)
    for (int64_t first = 0; first < k; first += 4 * distance)
      for (float* at = to + first; at < to + first + distance; at += lanes) {
        const f32x16 a = f32x16::load(at), b = f32x16::load(at + distance);
        const f32x16 c = f32x16::load(at + 2 * distance), d = f32x16::load(at + 3 * distance);
        const f32x16 ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        (ab + cd).store(at);
        (a_b + c_d).store(at + distance);
        (ab - cd).store(at + 2 * distance);
        (a_b - c_d).store(at + 3 * distance);
      }
  if (2 * distance <= block)
    for (int64_t first = 0; first < k; first += 2 * distance)
      for (float* at = to + first; at < to + first + distance; at += lanes) {
        const f32x16 a = f32x16::load(at), b = f32x16::load(at + distance);
        (a + b).store(at);
        (a - b).store(at + distance);
      }
}

}  // namespace penstock
