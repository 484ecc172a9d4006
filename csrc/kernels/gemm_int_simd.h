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

#elif defined(__AVX2__)

}  // namespace penstock
#include "gemm_int_simd_avx2.h"
namespace penstock {

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
