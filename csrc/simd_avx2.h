// f32x16 on AVX2: two registers of eight lanes. Included by simd.h, which has the rest.
#pragma once

#include <immintrin.h>

namespace penstock {

struct f32x16 {
  static constexpr int lanes = 16;
  __m256 lo, hi;

  static PENSTOCK_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static PENSTOCK_INLINE f32x16 broadcast(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
  }
  static PENSTOCK_INLINE f32x16 iota() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static PENSTOCK_INLINE f32x16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static PENSTOCK_INLINE f32x16 load(const bf16* p) { return {widen(p), widen(p + 8)}; }
  static PENSTOCK_INLINE f32x16 load(const f16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  // The first n lanes (0 <= n <= 16), the others zero; touches no other memory.
  template <class T>
  static PENSTOCK_INLINE f32x16 load_n(const T* p, int n) {
    if (n == lanes) return load(p);
    alignas(32) T padded[lanes] = {};
    std::memcpy(padded, p, size_t(n) * sizeof(T));
    return load(padded);
  }

  PENSTOCK_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  PENSTOCK_INLINE void store(bf16* p) const {
    const __m256i packed = _mm256_packus_epi32(narrow(lo), narrow(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  PENSTOCK_INLINE void store(f16* p) const {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(lo, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(hi, mode));
  }
  template <class T>
  PENSTOCK_INLINE void store_n(T* p, int n) const {
    if (n == lanes) return store(p);
    alignas(32) T padded[lanes];
    store(padded);
    std::memcpy(p, padded, size_t(n) * sizeof(T));
  }

  static PENSTOCK_INLINE __m256 widen(const bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static PENSTOCK_INLINE __m256i narrow(__m256 x) {  // bf16 bits in each 32-bit lane
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
};

#define PENSTOCK_HALVES(expression_lo, expression_hi) return {expression_lo, expression_hi}
PENSTOCK_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  PENSTOCK_HALVES(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
// min and max give b where either is a NaN.
PENSTOCK_INLINE f32x16 min(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 max(f32x16 a, f32x16 b) {
  PENSTOCK_HALVES(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
PENSTOCK_INLINE f32x16 sqrt(f32x16 a) {
  PENSTOCK_HALVES(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi));
}
PENSTOCK_INLINE f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  PENSTOCK_HALVES(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}
// a < b ? x : y, lane by lane; a NaN is not less.
PENSTOCK_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
  PENSTOCK_HALVES(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                  _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
PENSTOCK_INLINE f32x16 round_even(f32x16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  PENSTOCK_HALVES(_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode));
}
PENSTOCK_INLINE __m256 scale_pow2_half(__m256 a, __m256 n) {
  // Two factors, because 2^n itself may be out of range where a * 2^n is not.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i one = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i two =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(one)), _mm256_castsi256_ps(two));
}
// a * 2^n for whole n, -252 <= n <= 252.
PENSTOCK_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  PENSTOCK_HALVES(scale_pow2_half(a.lo, n.lo), scale_pow2_half(a.hi, n.hi));
}
// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  PENSTOCK_HALVES(
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.lo), 16)),
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.hi), 16)));
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000)));
  PENSTOCK_HALVES(_mm256_and_ps(pairs.lo, mask), _mm256_and_ps(pairs.hi, mask));
}
#undef PENSTOCK_HALVES
// Lane i from lane i ^ kDistance, a power of two.
template <int kDistance>
PENSTOCK_INLINE f32x16 swap_lanes(f32x16 a) {
  if constexpr (kDistance == 1)
    return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
  else if constexpr (kDistance == 2)
    return {_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
  else if constexpr (kDistance == 4)
    return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  else return {a.hi, a.lo};
}
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return select_less(f32x16::iota(), f32x16::broadcast(float(n)), x, y);
}

}  // namespace penstock
