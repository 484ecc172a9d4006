// f32x16 on AVX-512: one register. Included by simd.h, which has the rest.
#pragma once

#include <immintrin.h>

namespace penstock {

struct f32x16 {
  static constexpr int lanes = 16;
  __m512 v;

  static PENSTOCK_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
  static PENSTOCK_INLINE f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static PENSTOCK_INLINE f32x16 iota() {
    return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static PENSTOCK_INLINE __mmask16 first(int n) { return __mmask16(_bzhi_u32(0xffff, unsigned(n))); }

  static PENSTOCK_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static PENSTOCK_INLINE f32x16 load(const bf16* p) { return widen_bf16(_mm256_loadu_epi16(p)); }
  static PENSTOCK_INLINE f32x16 load(const f16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  // The first n lanes (0 <= n <= 16), the others zero; touches no other memory.
  static PENSTOCK_INLINE f32x16 load_n(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(first(n), p)};
  }
  static PENSTOCK_INLINE f32x16 load_n(const bf16* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static PENSTOCK_INLINE f32x16 load_n(const f16* p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
  }

  PENSTOCK_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  PENSTOCK_INLINE void store(bf16* p) const { _mm256_storeu_epi16(p, narrow_bf16()); }
  PENSTOCK_INLINE void store(f16* p) const { _mm256_storeu_epi16(p, narrow_f16()); }
  PENSTOCK_INLINE void store_n(float* p, int n) const { _mm512_mask_storeu_ps(p, first(n), v); }
  PENSTOCK_INLINE void store_n(bf16* p, int n) const {
    _mm256_mask_storeu_epi16(p, first(n), narrow_bf16());
  }
  PENSTOCK_INLINE void store_n(f16* p, int n) const {
    _mm256_mask_storeu_epi16(p, first(n), narrow_f16());
  }

  static PENSTOCK_INLINE f32x16 widen_bf16(__m256i x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
  }
  // Round to nearest even. Where vcvtneps2bf16 exists it is used; it reads subnormals as zero.
  PENSTOCK_INLINE __m256i narrow_bf16() const {
#if defined(__AVX512BF16__)
    return std::bit_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
#endif
  }
  PENSTOCK_INLINE __m256i narrow_f16() const {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

PENSTOCK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// min and max give b where either is a NaN.
PENSTOCK_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
PENSTOCK_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
PENSTOCK_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
// a < b ? x : y, lane by lane; a NaN is not less.
PENSTOCK_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
PENSTOCK_INLINE f32x16 round_even(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for whole n, rounded once.
PENSTOCK_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return {_mm512_mask_blend_ps(f32x16::first(n), y.v, x.v)};
}
// Lane i from lane i ^ kDistance, a power of two.
template <int kDistance>
PENSTOCK_INLINE f32x16 swap_lanes(f32x16 a) {
  if constexpr (kDistance == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  else if constexpr (kDistance == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  else if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  else return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}
// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(pairs.v), _mm512_set1_epi32(int(0xffff0000))))};
}

#if defined(__AVX512BF16__)
// acc[i] += row[2i] * b[0] + row[2i + 1] * b[1] for the pair b of bfloat16 held in one word (b[0] in
// the low half). Products are exact in float32; vdpbf16ps sums in a fixed order, rounds to nearest
// even and reads subnormals as zero.
PENSTOCK_INLINE f32x16 dpbf16(f32x16 acc, __m512i row, uint32_t pair) {
  return {_mm512_dpbf16_ps(acc.v, std::bit_cast<__m512bh>(row),
                           std::bit_cast<__m512bh>(_mm512_set1_epi32(int(pair))))};
}
#endif

}  // namespace penstock
