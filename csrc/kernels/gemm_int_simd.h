// Sixteen int32 lanes and exact dots of bytes, for each instruction set.
//
// A Line is one of a panel made ready: 16 columns by kQuads times 4 k. dot() adds to each column's
// lane its products with the same k of a row of x.
#pragma once

#include "../simd.h"

namespace penstock {

PENSTOCK_INLINE int32_t load_quad(const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, sizeof(quad));
  return quad;
}

// 16 codes of 8 bits from lanes that hold integers.
PENSTOCK_INLINE void store_codes(f32x16 codes, int8_t* to) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(codes.v)));
#else
  alignas(64) float values[f32x16::lanes];
  codes.store(values);
  for (int i = 0; i < f32x16::lanes; ++i) to[i] = int8_t(values[i]);
#endif
}

template <int Bits>
constexpr int kQuads = 8 / Bits;

// kSignedBytes: whether the hardware multiplies no unsigned bytes of full range by signed ones exactly,
// so that codes of 8 bits are taken back from their offset before.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool kSignedBytes = true;
#elif defined(__aarch64__) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kSignedBytes = true;
#else
constexpr bool kSignedBytes = false;
#endif

#if defined(__AVX512VNNI__)

struct i32x16 {
  __m512i v;
  static PENSTOCK_INLINE i32x16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
  PENSTOCK_INLINE f32x16 to_float() const { return {_mm512_cvtepi32_ps(v)}; }
  // Of 16 unsigned bytes, 16-byte aligned.
  static PENSTOCK_INLINE i32x16 widen(const std::byte* from) {
    return {_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  PENSTOCK_INLINE void store(int32_t* to) const { _mm512_storeu_si512(to, v); }
  PENSTOCK_INLINE i32x16 operator*(i32x16 b) const { return {_mm512_mullo_epi32(v, b.v)}; }
  PENSTOCK_INLINE i32x16 operator+(i32x16 b) const { return {_mm512_add_epi32(v, b.v)}; }
  // Times b, which fits 16 bits, as these do, which are not negative.
  PENSTOCK_INLINE i32x16 times_short(int32_t b) const {
    return {_mm512_madd_epi16(v, _mm512_set1_epi32(b))};
  }
  PENSTOCK_INLINE i32x16 right(int bits) const { return {_mm512_srli_epi32(v, unsigned(bits))}; }
  PENSTOCK_INLINE i32x16 masked(int32_t mask) const {
    return {_mm512_and_si512(v, _mm512_set1_epi32(mask))};
  }
};

// 2^(e - 127) of 16 bytes e below 255; the least of them are subnormal.
PENSTOCK_INLINE f32x16 powers_of_two(const std::byte* from) {
  const __m512i e = _mm512_slli_epi32(i32x16::widen(from).v, 23);
  return {_mm512_castsi512_ps(_mm512_max_epi32(e, _mm512_set1_epi32(1 << 22)))};
}

// 16 bytes in E4M3 as numbers; as float16's bits they are 2^8 times too small.
PENSTOCK_INLINE f32x16 e4m3_of(const std::byte* from) {
  const __m256i codes =
      _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(128)), 8);
  const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(127)), 7);
  return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), _mm512_set1_ps(256.0f))};
}

template <int Bits>
struct Line {
  __m512i quads[kQuads<Bits>];

  static PENSTOCK_INLINE Line load(const std::byte* from) {
    const __m512i row = _mm512_load_si512(from);
    if constexpr (Bits == 8) {
      return {{row}};
    } else {
      const __m512i low = _mm512_set1_epi8(15);
      return {{_mm512_and_si512(row, low), _mm512_and_si512(_mm512_srli_epi16(row, 4), low)}};
    }
  }
};

template <int Bits>
PENSTOCK_INLINE void dot(i32x16& sum, const Line<Bits>& w, const int8_t* x) {
  for (int q = 0; q < kQuads<Bits>; ++q)
    sum.v = _mm512_dpbusd_epi32(sum.v, w.quads[q], _mm512_set1_epi32(load_quad(x + 4 * q)));
}

#elif defined(__AVXVNNI__)

}  // namespace penstock
#include "gemm_int_simd_vnni256.h"
namespace penstock {

#elif defined(__AVX2__)

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

#elif defined(__aarch64__)

}  // namespace penstock
#include "gemm_int_simd_neon.h"
namespace penstock {

#else  // any machine: the compiler's own vectors, and rows of bytes

struct i32x16 {
  typedef int32_t vector __attribute__((vector_size(64)));
  vector v;
  static PENSTOCK_INLINE i32x16 broadcast(int32_t x) { return {vector{} + x}; }
  PENSTOCK_INLINE f32x16 to_float() const {
    typedef float floats __attribute__((vector_size(64)));
    return std::bit_cast<f32x16>(__builtin_convertvector(v, floats));
  }
  PENSTOCK_INLINE void store(int32_t* to) const { std::memcpy(to, &v, sizeof(v)); }
  static PENSTOCK_INLINE i32x16 widen(const std::byte* from) {
    i32x16 wide;
    for (int i = 0; i < f32x16::lanes; ++i) wide.v[i] = int32_t(from[i]);
    return wide;
  }
  PENSTOCK_INLINE i32x16 operator+(i32x16 b) const { return {v + b.v}; }
  PENSTOCK_INLINE i32x16 operator*(i32x16 b) const { return {v * b.v}; }
  PENSTOCK_INLINE i32x16 right(int bits) const { return {v >> bits}; }
  PENSTOCK_INLINE i32x16 masked(int32_t mask) const { return {v & mask}; }
};

PENSTOCK_INLINE f32x16 powers_of_two(const std::byte* from) {
  i32x16::vector bits;
  for (int i = 0; i < f32x16::lanes; ++i) bits[i] = std::max(int32_t(from[i]) << 23, 1 << 22);
  return std::bit_cast<f32x16>(bits);
}

// 16 bytes in E4M3 as numbers; as float32's bits they are 2^120 times too small.
PENSTOCK_INLINE f32x16 e4m3_of(const std::byte* from) {
  i32x16::vector bits;
  for (int i = 0; i < f32x16::lanes; ++i)
    bits[i] = (int32_t(from[i]) & 127) << 20 | (int32_t(from[i]) & 128) << 24;
  return std::bit_cast<f32x16>(bits) * f32x16::broadcast(0x1p120f);
}

template <int Bits>
struct Line {
  i32x16::vector quads[kQuads<Bits>];  // each lane four bytes

  static PENSTOCK_INLINE Line load(const std::byte* from) {
    Line line;
    std::memcpy(&line.quads[0], from, sizeof(line.quads[0]));
    if constexpr (Bits == 4) {
      line.quads[1] = line.quads[0] >> 4 & 0x0f0f0f0f;
      line.quads[0] &= 0x0f0f0f0f;
    }
    return line;
  }
};

template <int Bits>
PENSTOCK_INLINE void dot(i32x16& sum, const Line<Bits>& w, const int8_t* x) {
  for (int q = 0; q < kQuads<Bits>; ++q)
    for (int i = 0; i < 4; ++i) sum.v += ((w.quads[q] >> 8 * i) & 255) * int32_t(x[4 * q + i]);
}

#endif

}  // namespace penstock
