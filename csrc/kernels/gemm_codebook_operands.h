// What codes of codebooks become to be multiplied, by what x is: pairs of bfloat16, or floats.
//
// An Operand says
//   Weights          a step of 32 k of one column
//   kStepBytes       of x
//   Values<Bits>     a column's values, as codes are looked up in them
//   Codes            a line of codes
//   named<Bits>      the Weights of codes `by` bits up in each word of a line
//   spare            of 3 bits, those of the bits that three lines have left over
//   add              to 16 sums, a step's products
//   Element          of x
//   element          x at a k
//   make_row         x made ready: its steps, zeros behind the last k
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../simd.h"
#include "gemm_codebook_panels.h"

namespace penstock {

// Lanes of eight columns, added as hsum() adds them.
PENSTOCK_INLINE void add_lanes(const f32x16 (&lanes)[kCodebookColumns], float* to) {
#if defined(__AVX2__)
  const auto four_lanes = [&](int i) __attribute__((always_inline)) {  // (i, i + 8), then (i, i + 4)
    const auto eight = [](f32x16 a) __attribute__((always_inline)) {
#if defined(__AVX512F__)
      return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
      return _mm256_add_ps(a.lo, a.hi);
#endif
    };
    const __m256 a = eight(lanes[i]), b = eight(lanes[i + 4]);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const auto two_lanes = [&](int i) __attribute__((always_inline)) {  // of columns i, i + 1, i + 4, i + 5
    const __m256d a = _mm256_castps_pd(four_lanes(i)), b = _mm256_castps_pd(four_lanes(i + 1));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  };
  const __m256 a = two_lanes(0), b = two_lanes(2);
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
#else
  for (int c = 0; c < kCodebookColumns; ++c) to[c] = hsum(lanes[c]);
#endif
}

// Prefetch a line where `codes` are read: a compiler collects prefetches at the start of a loop, and of many
// at once a processor drops some. (Zen 4, a row from memory, 4 bits: 22.6 GB/s where eight came at once, and
// 25.0 in their places.)
template <int Level, class Codes>
PENSTOCK_INLINE void prefetch_beside(const std::byte* line, [[maybe_unused]] Codes& codes) {
  if constexpr (Level == 0) return;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Codes, __m512i>) {
    if constexpr (Level == 1) asm("prefetcht0 %1" : "+v"(codes) : "m"(*line));
    else asm("prefetcht1 %1" : "+v"(codes) : "m"(*line));
    return;
  }
#endif
  __builtin_prefetch(line, 0, Level == 1 ? 3 : 2);
}

// A bit of each of three lines, as a code.
#if defined(__AVX512F__)
PENSTOCK_INLINE __m512i joined_bits(__m512i first, __m512i second, __m512i third) {
  const __m512i two = _mm512_ternarylogic_epi32(first, second, _mm512_set1_epi16(2), 0xf8);
  return _mm512_ternarylogic_epi32(two, third, _mm512_set1_epi16(4), 0xf8);
}
#endif

#if defined(__AVX512BF16__)

// x in bfloat16, as are the values. A word of codes is a place of VPERMW, which reads five bits.
struct PairCodebook {
  using Element = bf16;
  using Codes = __m512i;

  static constexpr int64_t kStepBytes = kLineBytes;

  struct Weights {
    __m512i v;
  };

  // As often as five bits need them.
  template <int Bits>
  struct Values {
    __m512i v;
    static PENSTOCK_INLINE Values load(const std::byte* from, Elem) {
      if constexpr (Bits == 4)
        return {_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
      else
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
    }
  };

  static PENSTOCK_INLINE Codes codes(const std::byte* line) { return _mm512_load_si512(line); }
  template <int Bits>
  static PENSTOCK_INLINE Weights named(Codes codes, unsigned by, const Values<Bits>& values) {
    return {_mm512_permutexvar_epi16(by ? _mm512_srli_epi16(codes, by) : codes, values.v)};
  }
  static PENSTOCK_INLINE Weights spare(Codes first, Codes second, Codes third,
                                       const Values<3>& values) {
    return {_mm512_permutexvar_epi16(
        joined_bits(_mm512_srli_epi16(first, 15), _mm512_srli_epi16(second, 14),
                    _mm512_srli_epi16(third, 13)),
        values.v)};
  }
  static PENSTOCK_INLINE void add(f32x16& sums, const Weights& w, const std::byte* x) {
    sums.v = _mm512_dpbf16_ps(sums.v, std::bit_cast<__m512bh>(w.v),
                              std::bit_cast<__m512bh>(_mm512_load_si512(x)));
  }
  static PENSTOCK_INLINE float element(const std::byte* x, int64_t k) {
    return to_f32(reinterpret_cast<const bf16*>(x)[k]);
  }
  static void make_row(const bf16* x, int64_t k, int64_t steps, std::byte* to) {
    const auto bytes = size_t(k) * sizeof(bf16);
    std::memcpy(to, x, bytes);
    std::memset(to + bytes, 0, size_t(steps * kStepBytes) - bytes);
  }
};

#endif

// x in float32. A word of 32 bits has the codes of an even k and of the odd one behind it; a step of x
// is its 16 even k, then its 16 odd ones.
struct FloatCodebook {
  using Element = float;

  static constexpr int64_t kStepBytes = 2 * 4 * f32x16::lanes;

  struct Weights {
    f32x16 even, odd;
  };

  // The values of a column as they are stored, and then zeros.
  template <int Bits>
  static PENSTOCK_INLINE f32x16 stored(const std::byte* from, Elem elem) {
    constexpr int count = 1 << Bits;
    if (elem == Elem::bf16) return f32x16::load_n(reinterpret_cast<const bf16*>(from), count);
    return f32x16::load_n(reinterpret_cast<const float*>(from), count);
  }

#if defined(__AVX512F__)

  using Codes = __m512i;
  template <int Bits>
  struct Values {
    __m512 v;
    static PENSTOCK_INLINE Values load(const std::byte* from, Elem elem) {
      const __m512 own = stored<Bits>(from, elem).v;
      return {Bits == 4 ? own : _mm512_shuffle_f32x4(own, own, 0x44)};
    }
    PENSTOCK_INLINE f32x16 of(__m512i code) const { return {_mm512_permutexvar_ps(code, v)}; }
  };
  static PENSTOCK_INLINE Codes codes(const std::byte* line) { return _mm512_load_si512(line); }
  static PENSTOCK_INLINE Codes right(Codes codes, unsigned by) {
    return by ? _mm512_srli_epi32(codes, by) : codes;
  }
  static PENSTOCK_INLINE Codes joined(Codes first, Codes second, Codes third) {
    return joined_bits(first, second, third);
  }

#elif defined(__AVX2__)

  struct Codes {
    __m256i lo, hi;
  };
  template <int Bits>
  struct Values {
    __m256 low, high;
    static PENSTOCK_INLINE Values load(const std::byte* from, Elem elem) {
      const f32x16 own = stored<Bits>(from, elem);
      return {own.lo, own.hi};
    }
    // VPERMPS reads three bits, and the fourth chooses.
    PENSTOCK_INLINE __m256 eight(__m256i code) const {
      const __m256 found = _mm256_permutevar8x32_ps(low, code);
      if constexpr (Bits == 3) return found;
      return _mm256_blendv_ps(found, _mm256_permutevar8x32_ps(high, code),
                              _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
    }
    PENSTOCK_INLINE f32x16 of(const Codes& code) const { return {eight(code.lo), eight(code.hi)}; }
  };
  static PENSTOCK_INLINE Codes codes(const std::byte* line) {
    const __m256i* const from = reinterpret_cast<const __m256i*>(line);
    return {_mm256_load_si256(from), _mm256_load_si256(from + 1)};
  }
  static PENSTOCK_INLINE Codes right(const Codes& codes, unsigned by) {
    return {_mm256_srli_epi32(codes.lo, int(by)), _mm256_srli_epi32(codes.hi, int(by))};
  }
  static PENSTOCK_INLINE Codes joined(const Codes& first, const Codes& second, const Codes& third) {
    const auto eight = [](__m256i a, __m256i b, __m256i c) __attribute__((always_inline)) {
      return _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi32(1)),
                             _mm256_or_si256(_mm256_and_si256(b, _mm256_set1_epi32(2)),
                                             _mm256_and_si256(c, _mm256_set1_epi32(4))));
    };
    return {eight(first.lo, second.lo, third.lo), eight(first.hi, second.hi, third.hi)};
  }

#else

  struct Codes {
    uint32_t words[16];
  };
  template <int Bits>
  struct Values {
    float own[16];
    static PENSTOCK_INLINE Values load(const std::byte* from, Elem elem) {
      Values values;
      stored<Bits>(from, elem).store(values.own);
      return values;
    }
    PENSTOCK_INLINE f32x16 of(const Codes& codes) const {
      alignas(64) float found[16];
      for (int i = 0; i < 16; ++i) found[i] = own[codes.words[i] & ((1u << Bits) - 1)];
      return f32x16::load(found);
    }
  };
  static PENSTOCK_INLINE Codes codes(const std::byte* line) {
    Codes all;
    std::memcpy(all.words, line, sizeof(all.words));
    return all;
  }
  static PENSTOCK_INLINE Codes right(Codes codes, unsigned by) {
    for (uint32_t& word : codes.words) word >>= by;
    return codes;
  }
  static PENSTOCK_INLINE Codes joined(Codes first, const Codes& second, const Codes& third) {
    for (int i = 0; i < 16; ++i)
      first.words[i] = (first.words[i] & 1) | (second.words[i] & 2) | (third.words[i] & 4);
    return first;
  }

#endif

  template <int Bits>
  static PENSTOCK_INLINE Weights named(const Codes& codes, unsigned by, const Values<Bits>& values) {
    return {values.of(right(codes, by)), values.of(right(codes, by + 16))};
  }
  static PENSTOCK_INLINE Weights spare(const Codes& first, const Codes& second, const Codes& third,
                                       const Values<3>& values) {
    return {values.of(joined(masked_right(first, 15), right(second, 14), right(third, 13))),
            values.of(joined(right(first, 31), right(second, 30), right(third, 29)))};
  }
  static PENSTOCK_INLINE void add(f32x16& sums, const Weights& w, const std::byte* x) {
    const float* const by = reinterpret_cast<const float*>(x);
    sums = fma(w.odd, f32x16::load(by + 16), fma(w.even, f32x16::load(by), sums));
  }
  static PENSTOCK_INLINE float element(const std::byte* x, int64_t k) {
    return reinterpret_cast<const float*>(x)[(k & ~int64_t(31)) | (k & 1) << 4 | (k >> 1 & 15)];
  }
  template <class T>
  static void make_row(const T* x, int64_t k, int64_t steps, std::byte* to) {
    float* const f = reinterpret_cast<float*>(to);
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t i = 0; i < kCodebookStep; ++i) {
        const int64_t at = step * kCodebookStep + i;
        f[step * kCodebookStep + i % 2 * 16 + i / 2] = at < k ? to_f32(x[at]) : 0.0f;
      }
  }

 private:
  // VPERMPS reads a bit more than a code of 3 bits has, and joined() leaves the first line's as it is.
  static PENSTOCK_INLINE Codes masked_right(const Codes& codes, unsigned by) {
#if defined(__AVX512F__)
    return _mm512_and_si512(right(codes, by), _mm512_set1_epi32(1));
#else
    return right(codes, by);
#endif
  }
};

}  // namespace penstock
