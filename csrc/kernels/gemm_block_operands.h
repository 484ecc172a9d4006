// What blocks' weights become to be multiplied, by what x is: points in bytes, in pairs of bfloat16,
// in float32.
//
// An Operand says
//   Sum              16 columns' sums of products in a group
//   kElement         bytes of an element of x
//   kQuads           quads of codes that are a step; its k are 4 * kQuads
//   Weights          a step of 16 columns, and how it is stored and loaded: kStepBytes
//   decode<Format>   Weights from codes
//   kLoose           whether decode() looks at no bits above a code
//   kSquares         whether a step is two quads that matrix instructions of AArch64 take
//   Shift<Format>    of a format with zeros, those of a group, and a decode() that takes them away
//   add              to a Sum, a step's products with x
#pragma once

#include "../bf16_dots.h"
#include "gemm_block_format.h"

#if defined(__aarch64__)
#include "dots_neon.h"
#endif

namespace penstock {

// x in int8, exact dots.
struct ByteOperand {
  using Sum = i32x16;
  static constexpr bool kRounded = true, kLoose = false, kSquares = true;
  static constexpr int64_t kElement = 1;
  static constexpr int kQuads = 2;
  static constexpr int64_t kStepBytes = kQuads * kLineBytes;

  struct Weights {
    Quad quads[kQuads];
    static PENSTOCK_INLINE Weights load(const std::byte* from) {
      return {{Quad::load(from), Quad::load(from + kLineBytes)}};
    }
    PENSTOCK_INLINE void store(std::byte* to) const {
      quads[0].store(to);
      quads[1].store(to + kLineBytes);
    }
  };

  // How far the points of weights are from what they stand for.
  template <class Format>
  static constexpr int kept_offset() {
    return Format::kWide && kSignedBytes ? 0 : Format::kOffset;
  }

  template <class Format>
  static PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) {
    Weights w;
    for (int i = 0; i < kQuads; ++i) {
      if constexpr (Format::kTabled) w.quads[i] = codes[i].lookup(kKeptPoints<Format>);
      else if constexpr (Format::kWide && kSignedBytes) w.quads[i] = codes[i].flipped(128);
      else w.quads[i] = codes[i];
    }
    return w;
  }
  static PENSTOCK_INLINE Sum zero() { return i32x16::broadcast(0); }
  template <bool Wide>
  static PENSTOCK_INLINE void add(Sum& sum, const Weights& w, const std::byte* x) {
    dot_quads<Wide>(sum, w.quads, reinterpret_cast<const int8_t*>(x));
  }

 private:
  template <class Format>
  static constexpr std::array<uint8_t, 16> kept_points() {
    std::array<uint8_t, 16> all = Format::kTable;
    for (uint8_t& point : all) point = uint8_t(point ^ (Format::kWide && kSignedBytes ? 128 : 0));
    return all;
  }
  template <class Format>
  static constexpr std::array<uint8_t, 16> kKeptPoints = kept_points<Format>();
};

// x in float32.
struct FloatOperand {
  using Sum = f32x16;
  static constexpr bool kRounded = false, kLoose = false, kSquares = false;
  static constexpr int64_t kElement = 4;
  static constexpr int kQuads = 1;
  static constexpr int64_t kStepBytes = 4 * 4 * kPanelColumns;

  struct Weights {
    f32x16 k[4];
    static PENSTOCK_INLINE Weights load(const std::byte* from) {
      const float* const f = reinterpret_cast<const float*>(from);
      return {{f32x16::load(f), f32x16::load(f + 16), f32x16::load(f + 32), f32x16::load(f + 48)}};
    }
    PENSTOCK_INLINE void store(std::byte* to) const {
      for (int i = 0; i < 4; ++i) k[i].store(reinterpret_cast<float*>(to) + 16 * i);
    }
  };

  template <class Format>
  static PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) {
    Weights w;
    if constexpr (Format::kFloat8) {
      for (int i = 0; i < 4; ++i) w.k[i] = codes[0].float8(i);
      return w;
    }
#if defined(__AVX512F__)
    constexpr bool by_table = Format::kBits <= 4;
#else
    constexpr bool by_table = !Format::kWhole;
#endif
    if constexpr (by_table) {
      alignas(64) static constexpr std::array<float, 16> kPoints = points<Format>();
      for (int i = 0; i < 4; ++i) w.k[i] = codes[0].looked_up(i, kPoints);
      return w;
    }
    Quad all = codes[0];
    if constexpr (Format::kTabled) all = all.lookup(Format::kTable);
    if constexpr (Format::kOffset != 0) {
      const Quad::Less less(f32x16::broadcast(float(Format::kOffset)));
      for (int i = 0; i < 4; ++i) w.k[i] = all.number(i, less);
    } else {
      for (int i = 0; i < 4; ++i) w.k[i] = all.number(i);
    }
    return w;
  }
  template <class Format>
  struct Shift {
    Quad::Less zeros;
    Shift() = default;
    PENSTOCK_INLINE explicit Shift(i32x16 of) : zeros(of.to_float()) {}
    PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) const {
      Weights w;
      for (int i = 0; i < 4; ++i) w.k[i] = codes[0].number(i, zeros);
      return w;
    }
  };
  static PENSTOCK_INLINE Sum zero() { return f32x16::zero(); }
  template <bool>
  static PENSTOCK_INLINE void add(Sum& sum, const Weights& w, const std::byte* x) {
    const float* const f = reinterpret_cast<const float*>(x);
    for (int i = 0; i < 4; ++i) sum = fma(f32x16::broadcast(f[i]), w.k[i], sum);
  }
  static PENSTOCK_INLINE float element(float x) { return x; }

 private:
  template <class Format>
  static constexpr std::array<float, 16> points() {
    std::array<float, 16> all{};
    for (int code = 0; code < 1 << Format::kBits; ++code)
      for (int at = code; at < 16; at += 1 << Format::kBits)
        all[size_t(at)] = float(point_of<Format>(code));
    return all;
  }
};

#if defined(__AVX512BF16__)

// x in bfloat16 by VDPBF16PS. Of each four k the pairs are the first and third, the second and
// fourth, as 16-bit lanes of codes have them; so x's inner two change places.
struct PairOperand {
  using Sum = f32x16;
  static constexpr bool kRounded = false, kLoose = true;
  static constexpr int64_t kElement = 2;
  static constexpr int kQuads = 1;
  static constexpr int64_t kStepBytes = 2 * kLineBytes;

  struct Weights {
    __m512i pairs[2];
    static PENSTOCK_INLINE Weights load(const std::byte* from) {
      return {{_mm512_load_si512(from), _mm512_load_si512(from + kLineBytes)}};
    }
    PENSTOCK_INLINE void store(std::byte* to) const {
      _mm512_store_si512(to, pairs[0]);
      _mm512_store_si512(to + kLineBytes, pairs[1]);
    }
  };

  template <class Format>
  static PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) {
    const __m512i even = codes[0].v;
    if constexpr (Format::kFloat8) {
      return float8(even);
    } else if constexpr (Format::kBits == 8) {
      return bytes(even, _mm512_set1_ps(-(0x1p23f + float(Format::kOffset))));
    } else {
      // VPERMW reads the lowest five bits of a lane, VPERMI2W six.
      alignas(64) static constexpr std::array<uint16_t, 64> kPoints = points<Format>();
      const __m512i table = _mm512_load_si512(kPoints.data());
      const __m512i odd = _mm512_srli_epi16(even, 8);
      if constexpr (Format::kBits <= 5)
        return {{_mm512_permutexvar_epi16(even, table), _mm512_permutexvar_epi16(odd, table)}};
      const __m512i more = _mm512_load_si512(kPoints.data() + 32);
      return {{_mm512_permutex2var_epi16(table, even, more),
               _mm512_permutex2var_epi16(table, odd, more)}};
    }
  }
  template <class Format>
  struct Shift {
    __m512i by;
    Shift() = default;
    PENSTOCK_INLINE explicit Shift(i32x16 of) {
      if constexpr (Format::kBits == 8)
        by = _mm512_castps_si512(_mm512_sub_ps(_mm512_set1_ps(-0x1p23f), of.to_float().v));
      else  // in each of a column's bytes
        by = _mm512_shuffle_epi8(of.v, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    }
    // Differences of four bits have five, with a sign; VPERMW reads no more of a lane.
    PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) const {
      if constexpr (Format::kBits == 8) return bytes(codes[0].v, _mm512_castsi512_ps(by));
      alignas(64) static constexpr std::array<uint16_t, 32> kPoints = differences();
      const __m512i table = _mm512_load_si512(kPoints.data());
      const __m512i even = _mm512_sub_epi8(codes[0].v, by);
      return {{_mm512_permutexvar_epi16(even, table),
               _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), table)}};
    }
  };
  static PENSTOCK_INLINE Sum zero() { return f32x16::zero(); }
  template <bool>
  static PENSTOCK_INLINE void add(Sum& sum, const Weights& w, const std::byte* x) {
    // Each read by itself, so that it is broadcast from memory and by no vector instruction.
    uint32_t first, second;
    std::memcpy(&first, x, sizeof(first));
    std::memcpy(&second, x + sizeof(first), sizeof(second));
    sum = dpbf16(sum, w.pairs[0], first);
    sum = dpbf16(sum, w.pairs[1], second);
  }

 private:
  template <class Format>
  static constexpr std::array<uint16_t, 64> points() {
    std::array<uint16_t, 64> all{};
    // The bits above a code are those of its neighbour: 16 repeats where there are four.
    for (int i = 0; i < 64; ++i) {
      const int code = i & ((1 << Format::kBits) - 1);
      all[size_t(i)] = narrow_point<Format>(code);
    }
    return all;
  }
  // E4M3: exponent and mantissa are shifted to where bfloat16 has them, and what has no exponent is
  // looked up. (By tables of all codes, VPERMI2B, it took as long.)
  static PENSTOCK_INLINE Weights float8(__m512i row) {
    // Of lanes with a code in their high byte, and code & 7 in the low bits of `low`.
    const auto half = [&](__m512i codes, __m512i low) __attribute__((always_inline)) {
      const __mmask32 small = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x7800));
      const __m512i bits = _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi16(0x7f0));
      const __m512i value = _mm512_mask_permutexvar_epi16(
          _mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7)), small, low,
          _mm512_load_si512(kSmallFloat8.data()));
      return _mm512_ternarylogic_epi32(value, codes, _mm512_set1_epi16(int16_t(0x8000)), 0xf8);
    };
    return {{half(_mm512_slli_epi16(row, 8), row), half(row, _mm512_srli_epi16(row, 8))}};
  }

  // 0 to 15 and, as five bits that are negative, -16 to -1.
  static constexpr std::array<uint16_t, 32> differences() {
    std::array<uint16_t, 32> all{};
    for (int i = 0; i < 32; ++i)
      all[size_t(i)] = uint16_t(std::bit_cast<uint32_t>(float(i < 16 ? i : i - 32)) >> 16);
    return all;
  }
  // 2^23 with a byte as its last bits is 2^23 + the byte.
  static PENSTOCK_INLINE Weights bytes(__m512i row, __m512 less) {
    const __m512i mask = _mm512_set1_epi32(255), magic = _mm512_set1_epi32(0x4b000000);
    const auto point = [&](__m512i at) __attribute__((always_inline)) {
      return _mm512_castps_si512(_mm512_add_ps(
          _mm512_castsi512_ps(_mm512_ternarylogic_epi32(at, mask, magic, 0xea)), less));
    };
    const __m512i first = point(row), second = point(_mm512_srli_epi32(row, 8));
    const __m512i third = point(_mm512_srli_epi32(row, 16)), fourth = point(_mm512_srli_epi32(row, 24));
    return {{_mm512_or_si512(_mm512_srli_epi32(first, 16), third),
             _mm512_or_si512(_mm512_srli_epi32(second, 16), fourth)}};
  }
};

#elif defined(PENSTOCK_BF16_DOTS)

}  // namespace penstock
#include "gemm_block_pairs_neon.h"
namespace penstock {

#endif

}  // namespace penstock
