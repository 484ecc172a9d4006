// Sixteen float lanes on every instruction set, and the arithmetic kernels share.
//
// Policy apart from SIMD: kernels are written once against f32x16. Only this file (and the AMX and
// bf16 paths inside the matrix and attention kernels) knows an instruction set. Translation units
// are compiled with -ffp-contract=off, so a fused multiply-add happens where fma() is written and
// nowhere else: within one instruction set, results are a function of the source alone.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PENSTOCK_INLINE inline __attribute__((always_inline))

namespace penstock {

// Storage types. Distinct from uint16_t so that overloads choose the conversion.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

PENSTOCK_INLINE float to_f32(float x) { return x; }

PENSTOCK_INLINE float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

inline float to_f32(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  if (magnitude < 0x0400) {  // zero, subnormal: exact in float
    const float value = float(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Round to nearest, ties to even; a NaN stays a NaN.
PENSTOCK_INLINE bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffff) > 0x7f800000) return {uint16_t((u >> 16) | 0x40)};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

inline f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return {uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff))};
  if (magnitude >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // 65520 and up round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is subnormal: adding 0.5 aligns the mantissa to 2^-24 and rounds it.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1);
  return {uint16_t(sign | (rounded >> 13))};
}

template <class T>
T from_f32(float x);
template <>
PENSTOCK_INLINE float from_f32<float>(float x) {
  return x;
}
template <>
PENSTOCK_INLINE bf16 from_f32<bf16>(float x) {
  return to_bf16(x);
}
template <>
PENSTOCK_INLINE f16 from_f32<f16>(float x) {
  return to_f16(x);
}

// ---------------------------------------------------------------------------------------------
// The register, and for each instruction set the operations that need intrinsics.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

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
// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(pairs.v), _mm512_set1_epi32(int(0xffff0000))))};
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

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
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return select_less(f32x16::iota(), f32x16::broadcast(float(n)), x, y);
}

#elif defined(__aarch64__)

}  // namespace penstock
#include "simd_neon.h"
namespace penstock {

#else  // any machine: the compiler's own vectors

struct f32x16 {
  static constexpr int lanes = 16;
  typedef float vector __attribute__((vector_size(64)));
  typedef int32_t integers __attribute__((vector_size(64)));
  vector v;

  static PENSTOCK_INLINE f32x16 zero() { return {vector{}}; }
  static PENSTOCK_INLINE f32x16 broadcast(float x) { return {vector{} + x}; }
  static PENSTOCK_INLINE f32x16 iota() {
    return {vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  }

  static PENSTOCK_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(&r.v, p, sizeof(r.v));
    return r;
  }
  template <class T>
  static PENSTOCK_INLINE f32x16 load(const T* p) {
    f32x16 r;
    for (int i = 0; i < lanes; ++i) r.v[i] = to_f32(p[i]);
    return r;
  }
  // The first n lanes (0 <= n <= 16), the others zero; touches no other memory.
  template <class T>
  static PENSTOCK_INLINE f32x16 load_n(const T* p, int n) {
    f32x16 r = zero();
    for (int i = 0; i < n; ++i) r.v[i] = to_f32(p[i]);
    return r;
  }

  PENSTOCK_INLINE void store(float* p) const { std::memcpy(p, &v, sizeof(v)); }
  template <class T>
  PENSTOCK_INLINE void store(T* p) const {
    for (int i = 0; i < lanes; ++i) p[i] = from_f32<T>(v[i]);
  }
  template <class T>
  PENSTOCK_INLINE void store_n(T* p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = from_f32<T>(v[i]);
  }
};

PENSTOCK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
PENSTOCK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
PENSTOCK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
PENSTOCK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
PENSTOCK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FMA__)
  for (int i = 0; i < f32x16::lanes; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
#else
  return {a.v * b.v + c.v};
#endif
}
// min and max give b where either is a NaN.
PENSTOCK_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
PENSTOCK_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }
PENSTOCK_INLINE f32x16 sqrt(f32x16 a) {
  for (int i = 0; i < f32x16::lanes; ++i) a.v[i] = std::sqrt(a.v[i]);
  return a;
}
PENSTOCK_INLINE f32x16 abs(f32x16 a) {
  return {(f32x16::vector)((f32x16::integers)a.v & 0x7fffffff)};
}
// a < b ? x : y, lane by lane; a NaN is not less.
PENSTOCK_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
  return {a.v < b.v ? x.v : y.v};
}
// For |a| < 2^22: adding 1.5 * 2^23 leaves no bits below one.
PENSTOCK_INLINE f32x16 round_even(f32x16 a) {
  const f32x16 magic = f32x16::broadcast(0x1.8p23f);
  return (a + magic) - magic;
}
// a * 2^n for whole n, -252 <= n <= 252. Two factors, because 2^n itself may be out of range
// where a * 2^n is not.
PENSTOCK_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  const f32x16::integers whole = __builtin_convertvector(n.v, f32x16::integers);
  const f32x16::integers half = whole >> 1;
  const f32x16 one{(f32x16::vector)((half + 127) << 23)};
  const f32x16 two{(f32x16::vector)((whole - half + 127) << 23)};
  return a * one * two;
}
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return select_less(f32x16::iota(), f32x16::broadcast(float(n)), x, y);
}
// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  return {(f32x16::vector)((f32x16::integers)pairs.v << 16)};
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  return {(f32x16::vector)((f32x16::integers)pairs.v & int(0xffff0000))};
}

#endif

// ---------------------------------------------------------------------------------------------
// Derived operations: one text for every instruction set.

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

// e^x within 2 ulp. exp(-inf) and anything below -104 is 0, above 88.73 infinity; NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2)/2, ln 2 in two parts; e^r by its Taylor series to r^7, whose
// remainder there is below 6e-9.
PENSTOCK_INLINE f32x16 exp(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  x = min(c(89.0f), max(c(-104.0f), x));
  const f32x16 n = round_even(x * c(0x1.715476p+0f));
  const f32x16 r = fma(n, c(-0x1.7f7d1cp-20f), fma(n, c(-0x1.62e4p-1f), x));
  f32x16 p = c(1.0f / 5040);
  p = fma(p, r, c(1.0f / 720));
  p = fma(p, r, c(1.0f / 120));
  p = fma(p, r, c(1.0f / 24));
  p = fma(p, r, c(1.0f / 6));
  p = fma(p, r, c(0.5f));
  p = fma(p, r, c(1.0f));
  p = fma(p, r, c(1.0f));
  return scale_pow2(p, n);
}

// x / (1 + e^-x)
PENSTOCK_INLINE f32x16 silu(f32x16 x) {
  return x / (f32x16::broadcast(1.0f) + exp(f32x16::zero() - x));
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as x times the logistic function of twice
// the argument, which cancels nothing.
PENSTOCK_INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 inner = fma(f32x16::broadcast(0.044715f) * x * x, x, x);
  const f32x16 e = exp(inner * f32x16::broadcast(-1.5957691216057308f));  // -2 sqrt(2/pi)
  return x / (f32x16::broadcast(1.0f) + e);
}

// x/2 (1 + erf(x / sqrt 2)) = x (1 - e) for x >= 0 and x e below, with e = erfc(|x| / sqrt 2) / 2.
//
// erfc(z) = t exp(-z^2) Q(t) with t = 1 / (1 + z/2) and Q of degree 8, fitted by us at Chebyshev
// nodes for 0 <= z <= 10.5, where erfc leaves float; relative error 6e-8.
PENSTOCK_INLINE f32x16 gelu(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  const f32x16 t = c(1.0f) / fma(abs(x), c(0.35355339059327373f), c(1.0f));  // 1 / (2 sqrt 2)
  f32x16 q = c(-0.06020521f);
  q = fma(q, t, c(0.28990433f));
  q = fma(q, t, c(-0.49774992f));
  q = fma(q, t, c(0.2895327f));
  q = fma(q, t, c(-0.03407368f));
  q = fma(q, t, c(0.20563397f));
  q = fma(q, t, c(0.24241343f));
  q = fma(q, t, c(0.28246245f));
  q = fma(q, t, c(0.2820819f));
  const f32x16 e = t * exp(x * x * c(-0.5f)) * q * c(0.5f);
  return x * select_less(x, f32x16::zero(), e, c(1.0f) - e);
}

// tanh(x) within 1 ulp near zero and 2^-24 elsewhere; 1 or -1 far away, and NaN stays NaN.
//
// Near zero x + x^3 P(x^2), P of degree 4, fitted by us at Chebyshev nodes for |x| <= 5/8; relative
// error 8e-8. Elsewhere 1 - 2 / (e^(2 |x|) + 1), which cancels nothing there, and the sign of x.
PENSTOCK_INLINE f32x16 tanh(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  const f32x16 square = x * x;
  f32x16 p = c(-0.00609671418f);
  p = fma(p, square, c(0.0209971797f));
  p = fma(p, square, c(-0.0538509078f));
  p = fma(p, square, c(0.133327693f));
  p = fma(p, square, c(-0.333333284f));
  const f32x16 size = abs(x);
  const f32x16 far = c(1.0f) - c(2.0f) / (exp(size + size) + c(1.0f));
  return select_less(size, c(0.625f), fma(x * square, p, x),
                     select_less(x, f32x16::zero(), f32x16::zero() - far, far));
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

PENSTOCK_INLINE void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // tens of cycles; many cores take "yield" for nothing at all
#endif
}

}  // namespace penstock
