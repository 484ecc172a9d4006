// Lanes and dots on 256 bits, for CPUs without AVX-512: with VPDPBUSD, which client processors have since 2021,
// codes stay unsigned as with AVX-512; without it those of 8 bits become signed. Included by gemm_int_simd.h.
#pragma once

#if defined(__AVX2__) && !defined(__AVX512VNNI__)

namespace penstock {

struct i32x16 {
  __m256i lo, hi;
  static PENSTOCK_INLINE i32x16 broadcast(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
  PENSTOCK_INLINE f32x16 to_float() const {
    return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
  }
  PENSTOCK_INLINE void store(int32_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + 1, hi);
  }
  static PENSTOCK_INLINE i32x16 widen(const std::byte* from) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  PENSTOCK_INLINE i32x16 operator+(i32x16 b) const {
    return {_mm256_add_epi32(lo, b.lo), _mm256_add_epi32(hi, b.hi)};
  }
  PENSTOCK_INLINE i32x16 operator*(i32x16 b) const {
    return {_mm256_mullo_epi32(lo, b.lo), _mm256_mullo_epi32(hi, b.hi)};
  }
  // Times b, which fits 16 bits, as these do, which are not negative.
  PENSTOCK_INLINE i32x16 times_short(int32_t b) const {
    const __m256i all = _mm256_set1_epi32(b);
    return {_mm256_madd_epi16(lo, all), _mm256_madd_epi16(hi, all)};
  }
  PENSTOCK_INLINE i32x16 right(int bits) const {
    return {_mm256_srli_epi32(lo, bits), _mm256_srli_epi32(hi, bits)};
  }
  PENSTOCK_INLINE i32x16 masked(int32_t mask) const {
    const __m256i all = _mm256_set1_epi32(mask);
    return {_mm256_and_si256(lo, all), _mm256_and_si256(hi, all)};
  }
};

PENSTOCK_INLINE f32x16 powers_of_two(const std::byte* from) {
  const i32x16 e = i32x16::widen(from);
  const __m256i least = _mm256_set1_epi32(1 << 22);
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e.lo, 23), least)),
          _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e.hi, 23), least))};
}

// 16 bytes in E4M3 as numbers; as float16's bits they are 2^8 times too small.
PENSTOCK_INLINE f32x16 e4m3_of(const std::byte* from) {
  const __m256i codes =
      _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(128)), 8);
  const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(127)), 7);
  const __m256i half = _mm256_or_si256(sign, rest);
  const __m256 by = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), by),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), by)};
}

#if defined(__AVXVNNI__)

template <int Bits>
struct Line {
  __m256i lo[kQuads<Bits>], hi[kQuads<Bits>];  // of each quad

  static PENSTOCK_INLINE Line load(const std::byte* from) {
    const __m256i* row = reinterpret_cast<const __m256i*>(from);
    const __m256i a = _mm256_load_si256(row), b = _mm256_load_si256(row + 1);
    if constexpr (Bits == 8) {
      return {{a}, {b}};
    } else {
      const __m256i low = _mm256_set1_epi8(15);
      return {{_mm256_and_si256(a, low), _mm256_and_si256(_mm256_srli_epi16(a, 4), low)},
              {_mm256_and_si256(b, low), _mm256_and_si256(_mm256_srli_epi16(b, 4), low)}};
    }
  }
};

template <int Bits>
PENSTOCK_INLINE void dot(i32x16& sum, const Line<Bits>& w, const int8_t* x) {
  for (int q = 0; q < kQuads<Bits>; ++q) {
    const __m256i quad = _mm256_set1_epi32(load_quad(x + 4 * q));
    sum.lo = _mm256_dpbusd_avx_epi32(sum.lo, w.lo[q], quad);
    sum.hi = _mm256_dpbusd_avx_epi32(sum.hi, w.hi[q], quad);
  }
}

#else

// PMADDUBSW saturates the sum of two products at 32767. Nibbles stay below 4 * 31 * 127; bytes do
// as |w| times x with the sign of w, at 2 * 127 * 127.
template <int Bits>
struct Line;

template <>
struct Line<8> {
  __m256i lo, hi;  // signed
  static PENSTOCK_INLINE Line load(const std::byte* from) {
    const __m256i* row = reinterpret_cast<const __m256i*>(from);
    const __m256i offset = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(_mm256_load_si256(row), offset),
            _mm256_xor_si256(_mm256_load_si256(row + 1), offset)};
  }
};

template <>
struct Line<4> {
  __m256i lo[2], hi[2];  // of each quad
  static PENSTOCK_INLINE Line load(const std::byte* from) {
    const __m256i* row = reinterpret_cast<const __m256i*>(from);
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i a = _mm256_load_si256(row), b = _mm256_load_si256(row + 1);
    return {{_mm256_and_si256(a, low), _mm256_and_si256(_mm256_srli_epi16(a, 4), low)},
            {_mm256_and_si256(b, low), _mm256_and_si256(_mm256_srli_epi16(b, 4), low)}};
  }
};

PENSTOCK_INLINE __m256i add_pairs(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int Bits>
PENSTOCK_INLINE void dot(i32x16& sum, const Line<Bits>& w, const int8_t* x) {
  if constexpr (Bits == 8) {
    const __m256i a = _mm256_set1_epi32(load_quad(x));
    sum.lo = add_pairs(sum.lo, _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo),
                                                    _mm256_sign_epi8(a, w.lo)));
    sum.hi = add_pairs(sum.hi, _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi),
                                                    _mm256_sign_epi8(a, w.hi)));
  } else {
    const __m256i a = _mm256_set1_epi32(load_quad(x)), b = _mm256_set1_epi32(load_quad(x + 4));
    // Four products stay below 32767, too, with codes below 32.
    sum.lo = add_pairs(sum.lo, _mm256_add_epi16(_mm256_maddubs_epi16(w.lo[0], a),
                                                _mm256_maddubs_epi16(w.lo[1], b)));
    sum.hi = add_pairs(sum.hi, _mm256_add_epi16(_mm256_maddubs_epi16(w.hi[0], a),
                                                _mm256_maddubs_epi16(w.hi[1], b)));
  }
}

#endif

}  // namespace penstock

#endif
