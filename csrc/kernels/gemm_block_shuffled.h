// Formats of lattice points by VBMI: 64 codes at once are looked up in registers, and what is found
// becomes a code of four bits for each k. On Zen 4 a gather of 16 codes takes longer than all of that.
//
// Panels are those of gemm_block_e8p.h, a segment being a line, or two, of the codes of 16 columns by 32 k.
#pragma once

#include "gemm_block_e8p.h"

#if defined(__AVX512VNNI__)

namespace penstock {

// Of the CPUs with AVX512-BF16, which this code needs, Cooper Lake alone lacks VBMI.
inline bool shuffles_bytes() {
  static const bool does = __builtin_cpu_supports("avx512vbmi");
  return does;
}

// The instructions by their names, since this is compiled for machines without them, too.
//
// Bytes of a table of 128 by the lowest seven bits of bytes.
PENSTOCK_INLINE __m512i permuted_bytes(__m512i index, __m512i low, __m512i high) {
  asm("vpermi2b %2, %1, %0" : "+v"(index) : "v"(low), "vm"(high));
  return index;
}
// For each byte, the eight bits from so many of its 64 on.
PENSTOCK_INLINE __m512i shifted_bytes(__m512i at, __m512i from) {
  __m512i to;
  asm("vpmultishiftqb %2, %1, %0" : "=v"(to) : "v"(at), "vm"(from));
  return to;
}
PENSTOCK_INLINE __m512i shifted_bytes(__m512i otherwise, __mmask64 some, __m512i at, __m512i from) {
  asm("vpmultishiftqb %2, %1, %0%{%3%}" : "+v"(otherwise) : "v"(at), "vm"(from), "Yk"(some));
  return otherwise;
}

using ByteTable = std::array<uint8_t, 256>;

PENSTOCK_INLINE __m512i looked_up_bytes(const ByteTable& table, __m512i index, __mmask64 upper) {
  const uint8_t* const at = table.data();
  const __m512i low = permuted_bytes(index, _mm512_load_si512(at), _mm512_load_si512(at + 64));
  const __m512i high = permuted_bytes(index, _mm512_load_si512(at + 128), _mm512_load_si512(at + 192));
  return _mm512_mask_blend_epi8(upper, low, high);
}

// Where the bits of each byte of a quad begin in the eight bytes that two columns have in a plane.
using ShiftTable = std::array<uint8_t, 64>;
template <class At>
constexpr ShiftTable shift_table(At at) {
  ShiftTable all{};
  for (int i = 0; i < 64; ++i) all[size_t(i)] = uint8_t((i / 4 % 2 * 32 + at(i % 4)) & 63);
  return all;
}

// Bytes of planes of E8P: of four k each, two bits that choose a magnitude, and two that change it.
// Signs of the second half are one more where magnitudes are an odd sum: then the last one is the other.
extern const std::array<ByteTable, 2> kE8pChosen;
extern const std::array<std::array<uint8_t, 128>, 2> kE8pSigns;
extern const uint8_t kE8pFirstOdd;

// A code of four bits: which magnitude, 4 where it is negative, 8 where the point is moved down.
struct ShuffledE8p : LatticePanels<2> {
  static constexpr bool kWhole = true, kFloat8 = false;
  static constexpr int kOffset = 12;
  static constexpr bool kWide = false, kTabled = true;
  static constexpr int kBits = 4;
  static constexpr std::array<uint8_t, 16> kTable{15, 19, 23, 23, 11, 7, 3, 3,
                                                  13, 17, 21, 21, 9,  5, 1, 1};

  struct LookedUp {
    __m512i chosen[2], changed[2];  // planes of either half
  };
  static PENSTOCK_INLINE Quad quad(const std::byte* segment, int64_t, int q) {
    return loose_quad(looked_up(segment), q).masked(15);
  }
  static PENSTOCK_INLINE LookedUp looked_up(const std::byte* segment) {
    const __m512i first = _mm512_load_si512(segment), second = _mm512_load_si512(segment + kLineBytes);
    const __mmask64 upper = _mm512_movepi8_mask(first), down = _mm512_movepi8_mask(second);
    const __mmask64 odd = _mm512_cmpge_epu8_mask(first, _mm512_set1_epi8(char(kE8pFirstOdd)));
    LookedUp all;
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const signs = kE8pSigns[size_t(half)].data();
      all.chosen[half] = looked_up_bytes(kE8pChosen[size_t(half)], first, upper);
      const __m512i spread =
          permuted_bytes(second, _mm512_load_si512(signs), _mm512_load_si512(signs + 64));
      all.changed[half] = or_bytes(spread, down, char(0xaa));
    }
    all.changed[1] = xor_bytes(all.changed[1], odd, 0x40);
    return all;
  }
  // What lies above a code's bits is anything.
  static PENSTOCK_INLINE Quad loose_quad(const LookedUp& all, int q) {
    static constexpr auto at = [](int less) {
      std::array<ShiftTable, 4> to{};
      for (int block = 0; block < 4; ++block)
        to[size_t(block)] = shift_table([=](int j) { return 8 * block + 2 * j - less; });
      return to;
    };
    alignas(64) static constexpr std::array<ShiftTable, 4> kChosenAt = at(0), kChangedAt = at(2);
    const size_t block = size_t(q / 2);
    const __m512i chosen = shifted_bytes(_mm512_load_si512(kChosenAt[block].data()), all.chosen[q % 2]);
    const __m512i changed =
        shifted_bytes(_mm512_load_si512(kChangedAt[block].data()), all.changed[q % 2]);
    return {_mm512_ternarylogic_epi32(chosen, changed, _mm512_set1_epi8(3), 0xe4)};  // mask ? a : b
  }

 private:
  static PENSTOCK_INLINE __m512i or_bytes(__m512i x, __mmask64 some, char bits) {
    return _mm512_or_si512(x, _mm512_maskz_mov_epi8(some, _mm512_set1_epi8(bits)));
  }
  static PENSTOCK_INLINE __m512i xor_bytes(__m512i x, __mmask64 some, char bits) {
    return _mm512_xor_si512(x, _mm512_maskz_mov_epi8(some, _mm512_set1_epi8(bits)));
  }
};

// Bytes of planes of the smaller codebook: codes of four bits of two k each.
extern const std::array<ByteTable, 4> kSmallE8Pairs;

struct ShuffledSmallE8 : LatticePanels<1>, PlainPoints<kSmallE8Offset, false> {
  static constexpr int kBits = 4;

  struct LookedUp {
    __m512i pairs[4];
  };
  static PENSTOCK_INLINE Quad quad(const std::byte* segment, int64_t, int q) {
    return loose_quad(looked_up(segment), q).masked(15);
  }
  static PENSTOCK_INLINE LookedUp looked_up(const std::byte* segment) {
    const __m512i codes = _mm512_load_si512(segment);
    const __mmask64 upper = _mm512_movepi8_mask(codes);
    LookedUp all;
    for (int i = 0; i < 4; ++i) all.pairs[i] = looked_up_bytes(kSmallE8Pairs[size_t(i)], codes, upper);
    return all;
  }
  static PENSTOCK_INLINE Quad loose_quad(const LookedUp& all, int q) {
    static constexpr auto at = [] {
      std::array<ShiftTable, 4> to{};
      for (int block = 0; block < 4; ++block)
        to[size_t(block)] = shift_table([=](int j) { return 8 * block + j % 2 * 4; });
      return to;
    };
    alignas(64) static constexpr std::array<ShiftTable, 4> kAt = at();
    const __m512i from = _mm512_load_si512(kAt[size_t(q / 2)].data());
    const int half = q % 2 * 2;
    return {shifted_bytes(shifted_bytes(from, all.pairs[half]), 0xccccccccccccccccu, from,
                          all.pairs[half + 1])};
  }
};

}  // namespace penstock

#endif
