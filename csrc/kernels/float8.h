// Floats of 8 bits, E4M3 without infinities: a sign, 4 bits of exponent with bias 7, 3 of mantissa;
// the largest is 448. All bits set but the sign would be NaN: it is never written, and is read as 480.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../simd.h"

namespace penstock {

constexpr float kMostFloat8 = 448;

// x, of at most that magnitude, rounded to nearest even.
PENSTOCK_INLINE uint8_t to_float8(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80;
  const uint32_t mag = bits & 0x7fffffff;
  constexpr uint32_t kLeastNormal = 121u << 23;  // 2^-6
  const uint32_t normal = (mag - (120u << 23) + 0x7ffff + (mag >> 20 & 1)) >> 20;
  // Adding 1.5 * 2^23 leaves the whole number of units of 2^-9 in the low bits, rounded likewise.
  const float units = std::bit_cast<float>(mag < kLeastNormal ? mag : 0) * 512.0f + 12582912.0f;
  const uint32_t small = std::bit_cast<uint32_t>(units) & 0xff;
  return uint8_t(sign | (mag < kLeastNormal ? small : normal));
}

// The same number's bits in bfloat16, which holds all of them.
constexpr uint16_t float8_as_bf16(int code) {
  const int mag = code & 0x7f, sign = (code & 0x80) << 8;
  if (mag >= 8) return uint16_t(sign | ((mag << 4) + (120 << 7)));
  if (mag >= 4) return uint16_t(sign | ((120 << 7) + ((mag - 4) << 5)));
  if (mag >= 2) return uint16_t(sign | ((119 << 7) + ((mag - 2) << 6)));
  return uint16_t(sign | (mag ? 118 << 7 : 0));
}

// n of them to bfloat16; n a multiple of 32.
inline void widen_float8(const std::byte* from, int n, std::byte* to) {
#if defined(__AVX512BW__)
  // Magnitudes by a table of 128, in four registers.
  alignas(64) static constexpr auto kTable = [] {
    struct {
      uint16_t of[128];
    } table{};
    for (int code = 0; code < 128; ++code) table.of[code] = float8_as_bf16(code);
    return table;
  }();
  const __m512i first = _mm512_load_si512(kTable.of), second = _mm512_load_si512(kTable.of + 32);
  const __m512i third = _mm512_load_si512(kTable.of + 64), last = _mm512_load_si512(kTable.of + 96);
  const __m512i sign = _mm512_set1_epi16(int16_t(0x8000));
  for (int i = 0; i < n; i += 32) {
    const __m512i codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    const __m512i low = _mm512_permutex2var_epi16(first, codes, second);
    const __m512i high = _mm512_permutex2var_epi16(third, codes, last);
    const __m512i mag = _mm512_mask_mov_epi16(
        low, _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64)), high);
    // mag | (codes << 8 & sign)
    _mm512_storeu_si512(
        to + 2 * i, _mm512_ternarylogic_epi32(mag, _mm512_slli_epi16(codes, 8), sign, 0xf8));
  }
#else
  // As wide as registers are: of wider vectors GCC 12 makes numbers one by one.
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  typedef int16_t Line __attribute__((vector_size(32)));
  for (int i = 0; i < n; i += 16) {
    Bytes bytes;
    std::memcpy(&bytes, from + i, sizeof(bytes));
    const Line codes = __builtin_convertvector(bytes, Line);
    const Line mag = codes & 0x7f;
    const Line one = mag == 1 ? Line{} + (118 << 7) : Line{};
    const Line two = mag > 1 ? (119 << 7) + ((mag - 2) << 6) : one;
    const Line four = mag > 3 ? (120 << 7) + ((mag - 4) << 5) : two;
    const Line all = (mag > 7 ? (mag << 4) + (120 << 7) : four) | ((codes & 0x80) << 8);
    std::memcpy(to + 2 * i, &all, sizeof(all));
  }
#endif
}

}  // namespace penstock
