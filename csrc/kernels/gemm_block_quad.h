// Quads: the codes of 16 columns by 4 k, a byte each, column by column, for each instruction set.
//
// Their dots with int8 rows of x are exact; codes that need all 8 bits go into them signed where
// kSignedBytes says so.
#pragma once

#include <array>

#include "gemm_int_simd.h"

namespace penstock {

// Of float32, those that a sign, and exponent and mantissa of E4M3 are shifted to.
constexpr int32_t kFloat8Bits = int32_t(0x87f00000u);

#if defined(__AVX512VNNI__)

struct Quad {
  __m512i v;
  static PENSTOCK_INLINE Quad load(const std::byte* from) { return {_mm512_load_si512(from)}; }
  PENSTOCK_INLINE void store(std::byte* to) const { _mm512_store_si512(to, v); }
  // By so many bits within each column's four bytes: what comes over from a neighbour is to be masked.
  PENSTOCK_INLINE Quad right(int bits) const { return {_mm512_srli_epi32(v, unsigned(bits))}; }
  PENSTOCK_INLINE Quad left(int bits) const { return {_mm512_slli_epi32(v, unsigned(bits))}; }
  PENSTOCK_INLINE Quad masked(int mask) const {
    return {_mm512_and_si512(v, _mm512_set1_epi8(char(mask)))};
  }
  PENSTOCK_INLINE Quad flipped(int mask) const {
    return {_mm512_xor_si512(v, _mm512_set1_epi8(char(mask)))};
  }
  // This, and the masked bits of b.
  PENSTOCK_INLINE Quad with(Quad b, int mask) const {
    return {_mm512_ternarylogic_epi32(v, b.v, _mm512_set1_epi8(char(mask)), 0xf8)};
  }
  // By a table of 16 bytes.
  PENSTOCK_INLINE Quad lookup(const std::array<uint8_t, 16>& table) const {
    const __m512i all = _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())));
    return {_mm512_shuffle_epi8(all, v)};
  }
  // Byte i of each column as a number.
  PENSTOCK_INLINE f32x16 number(int i) const {
    return {_mm512_cvtepi32_ps(
        _mm512_and_si512(_mm512_srli_epi32(v, unsigned(8 * i)), _mm512_set1_epi32(255)))};
  }
  // What numbers of bytes are to be less by, whole numbers up to 255. A byte as the last bits of 2^23 is
  // 2^23 + the byte.
  struct Less {
    f32x16 by;
    Less() = default;
    PENSTOCK_INLINE explicit Less(f32x16 of) : by(of + f32x16::broadcast(0x1p23f)) {}
  };
  PENSTOCK_INLINE f32x16 number(int i, const Less& less) const {
    const __m512i bits = _mm512_ternarylogic_epi32(i ? right(8 * i).v : v, _mm512_set1_epi32(255),
                                                   _mm512_set1_epi32(0x4b000000), 0xea);
    return f32x16{_mm512_castsi512_ps(bits)} - less.by;
  }
  // As a number of E4M3; as float32's bits it is 2^120 times too small.
  PENSTOCK_INLINE f32x16 float8(int i) const {
    const __m512i bits = _mm512_srai_epi32(_mm512_slli_epi32(v, unsigned(24 - 8 * i)), 4);
    return {_mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(kFloat8Bits))),
                          _mm512_set1_ps(0x1p120f))};
  }
  // Its lowest four bits by a table of numbers, 64-byte aligned.
  PENSTOCK_INLINE f32x16 looked_up(int i, const std::array<float, 16>& table) const {
    return {_mm512_permutexvar_ps(right(8 * i).v, _mm512_load_ps(table.data()))};
  }
};

// Two quads by 8 k of x.
template <bool Wide>
PENSTOCK_INLINE void dot_quads(i32x16& sum, const Quad (&w)[2], const int8_t* x) {
  sum.v = _mm512_dpbusd_epi32(sum.v, w[0].v, _mm512_set1_epi32(load_quad(x)));
  sum.v = _mm512_dpbusd_epi32(sum.v, w[1].v, _mm512_set1_epi32(load_quad(x + 4)));
}

#elif defined(__AVX2__)

struct Quad {
  __m256i lo, hi;
  static PENSTOCK_INLINE Quad load(const std::byte* from) {
    const __m256i* row = reinterpret_cast<const __m256i*>(from);
    return {_mm256_load_si256(row), _mm256_load_si256(row + 1)};
  }
  PENSTOCK_INLINE void store(std::byte* to) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), lo);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to) + 1, hi);
  }
  PENSTOCK_INLINE Quad right(int bits) const {
    return {_mm256_srli_epi32(lo, bits), _mm256_srli_epi32(hi, bits)};
  }
  PENSTOCK_INLINE Quad left(int bits) const {
    return {_mm256_slli_epi32(lo, bits), _mm256_slli_epi32(hi, bits)};
  }
  PENSTOCK_INLINE Quad masked(int mask) const {
    const __m256i all = _mm256_set1_epi8(char(mask));
    return {_mm256_and_si256(lo, all), _mm256_and_si256(hi, all)};
  }
  PENSTOCK_INLINE Quad flipped(int mask) const {
    const __m256i all = _mm256_set1_epi8(char(mask));
    return {_mm256_xor_si256(lo, all), _mm256_xor_si256(hi, all)};
  }
  PENSTOCK_INLINE Quad with(Quad b, int mask) const {
    const Quad some = b.masked(mask);
    return {_mm256_or_si256(lo, some.lo), _mm256_or_si256(hi, some.hi)};
  }
  PENSTOCK_INLINE Quad lookup(const std::array<uint8_t, 16>& table) const {
    const __m256i all = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())));
    return {_mm256_shuffle_epi8(all, lo), _mm256_shuffle_epi8(all, hi)};
  }
  PENSTOCK_INLINE f32x16 number(int i) const {
    const __m256i byte = _mm256_set1_epi32(255);
    return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(lo, 8 * i), byte)),
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(hi, 8 * i), byte))};
  }
  // A byte as the last bits of 2^23 is 2^23 + the byte; eight bits further up, 2^15 + the byte.
  struct Less {
    f32x16 first, second;
    Less() = default;
    PENSTOCK_INLINE explicit Less(f32x16 of)
        : first(of + f32x16::broadcast(0x1p23f)), second(of + f32x16::broadcast(0x1p15f)) {}
  };
  PENSTOCK_INLINE f32x16 number(int i, const Less& less) const {
    const Quad from = i / 2 ? right(16) : *this;
    const __m256i mask = _mm256_set1_epi32(i % 2 ? 0xff00 : 255);
    const __m256i power = _mm256_set1_epi32(i % 2 ? 0x47000000 : 0x4b000000);
    const auto half = [&](__m256i codes) __attribute__((always_inline)) {
      return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(codes, mask), power));
    };
    return f32x16{half(from.lo), half(from.hi)} - (i % 2 ? less.second : less.first);
  }
  PENSTOCK_INLINE f32x16 float8(int i) const {
    const auto half = [&](__m256i codes) __attribute__((always_inline)) {
      const __m256i bits = _mm256_srai_epi32(_mm256_slli_epi32(codes, 24 - 8 * i), 4);
      return _mm256_mul_ps(
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(kFloat8Bits))),
          _mm256_set1_ps(0x1p120f));
    };
    return {half(lo), half(hi)};
  }
  PENSTOCK_INLINE f32x16 looked_up(int i, const std::array<float, 16>& table) const {
    const __m256 low = _mm256_load_ps(table.data()), high = _mm256_load_ps(table.data() + 8);
    const auto half = [&](__m256i codes) __attribute__((always_inline)) {
      const __m256i code = _mm256_srli_epi32(codes, 8 * i);
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code),
                              _mm256_permutevar8x32_ps(high, code),
                              _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
    };
    return {half(lo), half(hi)};
  }
};

#if defined(__AVXVNNI__)

template <bool Wide>
PENSTOCK_INLINE void dot_quads(i32x16& sum, const Quad (&w)[2], const int8_t* x) {
  for (int q = 0; q < 2; ++q) {
    const __m256i quad = _mm256_set1_epi32(load_quad(x + 4 * q));
    sum.lo = _mm256_dpbusd_avx_epi32(sum.lo, w[q].lo, quad);
    sum.hi = _mm256_dpbusd_avx_epi32(sum.hi, w[q].hi, quad);
  }
}

#else

// PMADDUBSW saturates the sum of two products at 32767. Of codes below 64 four stay below it:
// 4 * 63 * 127. Those of full range go as |w| times x with the sign of w: 2 * 128 * 127.
template <bool Wide>
PENSTOCK_INLINE void dot_quads(i32x16& sum, const Quad (&w)[2], const int8_t* x) {
  const __m256i a = _mm256_set1_epi32(load_quad(x)), b = _mm256_set1_epi32(load_quad(x + 4));
  const auto add = [&](__m256i total, __m256i first, __m256i second) __attribute__((always_inline)) {
    if constexpr (Wide) {
      const __m256i one = _mm256_maddubs_epi16(_mm256_abs_epi8(first), _mm256_sign_epi8(a, first));
      const __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(second), _mm256_sign_epi8(b, second));
      return add_pairs(add_pairs(total, one), two);
    } else {
      return add_pairs(total, _mm256_add_epi16(_mm256_maddubs_epi16(first, a),
                                               _mm256_maddubs_epi16(second, b)));
    }
  };
  sum.lo = add(sum.lo, w[0].lo, w[1].lo);
  sum.hi = add(sum.hi, w[0].hi, w[1].hi);
}

#endif

#elif defined(__aarch64__)

}  // namespace penstock
#include "gemm_block_quad_neon.h"
namespace penstock {

#else  // any machine

struct Quad {
  typedef uint32_t vector __attribute__((vector_size(64)));
  vector v;
  static PENSTOCK_INLINE Quad load(const std::byte* from) {
    Quad quad;
    std::memcpy(&quad.v, from, sizeof(quad.v));
    return quad;
  }
  PENSTOCK_INLINE void store(std::byte* to) const { std::memcpy(to, &v, sizeof(v)); }
  static constexpr uint32_t all(int mask) { return uint32_t(mask) * 0x01010101u; }
  PENSTOCK_INLINE Quad right(int bits) const { return {v >> uint32_t(bits)}; }
  PENSTOCK_INLINE Quad left(int bits) const { return {v << uint32_t(bits)}; }
  PENSTOCK_INLINE Quad masked(int mask) const { return {v & all(mask)}; }
  PENSTOCK_INLINE Quad flipped(int mask) const { return {v ^ all(mask)}; }
  PENSTOCK_INLINE Quad with(Quad b, int mask) const { return {v | (b.v & all(mask))}; }
  PENSTOCK_INLINE Quad lookup(const std::array<uint8_t, 16>& table) const {
    alignas(64) uint8_t codes[64];
    store(reinterpret_cast<std::byte*>(codes));
    for (uint8_t& code : codes) code = table[code & 15];
    return load(reinterpret_cast<const std::byte*>(codes));
  }
  PENSTOCK_INLINE f32x16 number(int i) const {
    typedef float floats __attribute__((vector_size(64)));
    const i32x16::vector byte = std::bit_cast<i32x16::vector>(v >> uint32_t(8 * i) & 255u);
    return std::bit_cast<f32x16>(__builtin_convertvector(byte, floats));
  }
  struct Less {
    f32x16 by;
    Less() = default;
    PENSTOCK_INLINE explicit Less(f32x16 of) : by(of) {}
  };
  PENSTOCK_INLINE f32x16 number(int i, const Less& less) const { return number(i) - less.by; }
  PENSTOCK_INLINE f32x16 float8(int i) const {
    const i32x16::vector codes = std::bit_cast<i32x16::vector>(v << uint32_t(24 - 8 * i));
    return std::bit_cast<f32x16>(codes >> 4 & kFloat8Bits) * f32x16::broadcast(0x1p120f);
  }
  PENSTOCK_INLINE f32x16 looked_up(int i, const std::array<float, 16>& table) const {
    alignas(64) float found[f32x16::lanes];
    for (int c = 0; c < f32x16::lanes; ++c) found[c] = table[v[c] >> uint32_t(8 * i) & 15u];
    return f32x16::load(found);
  }
};

template <bool Wide>
PENSTOCK_INLINE void dot_quads(i32x16& sum, const Quad (&w)[2], const int8_t* x) {
  for (int q = 0; q < 2; ++q)
    for (int i = 0; i < 4; ++i)
      sum.v += std::bit_cast<i32x16::vector>(w[q].v >> uint32_t(8 * i) & 255u) *
               int32_t(x[4 * q + i]);
}

#endif

}  // namespace penstock
