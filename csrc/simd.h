// Sixteen float lanes on every instruction set, and the arithmetic kernels share.
//
// Policy apart from SIMD: kernels are written once against f32x16. Only simd_*.h (and the AMX and
// bf16 paths inside the matrix and attention kernels) know an instruction set. Translation units
// are compiled with -ffp-contract=off, so a fused multiply-add happens where fma() is written and
// nowhere else: within one instruction set, results are a function of the source alone.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "inline.h"
#include "small_floats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The register, and the operations that need intrinsics.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace penstock {

// Derived operations: one text for every instruction set.

// Floats of a register, on every machine.
inline constexpr int kLanes = f32x16::lanes;

PENSTOCK_INLINE f32x16& operator+=(f32x16& a, f32x16 b) { return a = a + b; }
PENSTOCK_INLINE f32x16& operator*=(f32x16& a, f32x16 b) { return a = a * b; }

#if !defined(__aarch64__)
// The sum of the lanes, always as the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
PENSTOCK_INLINE float hsum(f32x16 a) {
#if defined(__AVX2__)
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  alignas(64) float x[f32x16::lanes];
  a.store(x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
#endif
}

// The largest lane. Lanes must not be NaN.
PENSTOCK_INLINE float hmax(f32x16 a) {
#if defined(__AVX2__)
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  alignas(64) float x[f32x16::lanes];
  a.store(x);
  float best = x[0];
  for (int i = 1; i < f32x16::lanes; ++i) best = x[i] > best ? x[i] : best;
  return best;
#endif
}
#endif

PENSTOCK_INLINE f32x16 rsqrt(f32x16 a) { return f32x16::broadcast(1.0f) / sqrt(a); }

PENSTOCK_INLINE void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // tens of cycles; many cores take "yield" for nothing at all
#endif
}

}  // namespace penstock

#include "simd_functions.h"
