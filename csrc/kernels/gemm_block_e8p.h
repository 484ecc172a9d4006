// Formats of lattice points (quant/lattice.py): E8P, of which 16 bits are 8 k, and the smaller codebook,
// of which 8 bits are. Points are four times, and twice, what the lattice has, so whole numbers.
//
// The first byte of a code chooses the bytes of 8 k by a table of 2 KiB, which stays in L1. Of E8P these
// are magnitudes, which get signs and a move from the second byte. A line of a panel has a byte of the
// codes of 16 columns by 32 k, 4 bytes for each column: of E8P the first ones, then the second ones.
//
// Machines with VBMI look 64 codes up at once instead, in registers (gemm_block_shuffled.h).
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "gemm_block_points.h"
#include "gemm_block_quad.h"
#include "gemm_cuts.h"

namespace penstock {

// The bytes of 8 k for each of 256 codes.
using PointTable = std::array<std::array<uint8_t, 8>, 256>;

// Of E8P, four times the magnitudes: 2, 6 and 10. Where signs are an odd number the last one is negative,
// so that of all codes it has the sign which the others' parity says.
extern const PointTable kE8pMagnitudes;

// Twice the points of the smaller codebook, and 4.
constexpr int kSmallE8Offset = 4;
extern const PointTable kSmallE8Codes;

#if defined(__AVX512VNNI__)

// Half `half` of the 8 k of the codes in the low bytes of lanes.
PENSTOCK_INLINE __m512i looked_up_halves(const PointTable& table, __m512i codes, int half) {
  const __m512i index = _mm512_and_si512(codes, _mm512_set1_epi32(255));
  return _mm512_i32gather_epi32(index, table[0].data() + 4 * half, 8);
}

// As codes of E8p, of the two bytes of codes in the low bytes of lanes.
PENSTOCK_INLINE Quad e8p_quad(Quad chosen, Quad changed, int half) {
  const __m512i sizes = looked_up_halves(kE8pMagnitudes, chosen.v, half);
  const __m512i low = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  __m512i signs = _mm512_shuffle_epi8(changed.v, low);
  __mmask64 negative;
  if (half == 0) {
    negative = _mm512_test_epi8_mask(signs, _mm512_set1_epi32(0x08040201));
  } else {
    // Of the seven signs, whether they are an odd number.
    const __m512i nibble = _mm512_set1_epi8(15);
    alignas(16) static constexpr std::array<uint8_t, 16> kLow{0,   128, 128, 0,   128, 0,   0,   128,
                                                              128, 0,   0,   128, 0,   128, 128, 0};
    alignas(16) static constexpr std::array<uint8_t, 16> kHigh{0, 128, 128, 0,   128, 0,   0,   128,
                                                               0, 128, 128, 0,   128, 0,   0,   128};
    const auto table = [](const std::array<uint8_t, 16>& of) __attribute__((always_inline)) {
      return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(of.data())));
    };
    const __m512i first = _mm512_shuffle_epi8(table(kLow), _mm512_and_si512(signs, nibble));
    const __m512i last = _mm512_shuffle_epi8(
        table(kHigh), _mm512_and_si512(_mm512_srli_epi16(signs, 4), nibble));
    signs = _mm512_or_si512(_mm512_and_si512(signs, _mm512_set1_epi8(0x70)),
                            _mm512_xor_si512(first, last));
    negative = _mm512_test_epi8_mask(signs, _mm512_set1_epi32(int(0x80402010u)));
  }
  const __m512i points = _mm512_mask_sub_epi8(sizes, negative, _mm512_setzero_si512(), sizes);
  const __mmask16 down = _mm512_test_epi32_mask(changed.v, _mm512_set1_epi32(0x80));
  return {_mm512_add_epi8(
      points, _mm512_mask_blend_epi32(down, _mm512_set1_epi8(13), _mm512_set1_epi8(11)))};
}
PENSTOCK_INLINE Quad small_e8_quad(Quad line, int half) {
  return {looked_up_halves(kSmallE8Codes, line.v, half)};
}

#elif defined(__AVX2__)

PENSTOCK_INLINE __m256i looked_up_halves(const PointTable& table, __m256i codes, int half) {
  const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi32(255));
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(table[0].data() + 4 * half), index, 8);
}
PENSTOCK_INLINE Quad e8p_quad(Quad chosen, Quad changed, int half) {
  const auto eight = [&](__m256i codes, __m256i changes) __attribute__((always_inline)) {
    const __m256i sizes = looked_up_halves(kE8pMagnitudes, codes, half);
    const __m256i low_bytes = _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c,
                                               0x08080808, 0x04040404, 0);
    __m256i signs = _mm256_shuffle_epi8(changes, low_bytes);
    __m256i bits = _mm256_set1_epi32(0x08040201);
    if (half == 1) {
      const __m256i nibble = _mm256_set1_epi8(15);
      const __m256i low = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128,
                                           -128, 0, 0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128,
                                           0, -128, -128, 0);
      const __m256i high = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, 0, -128, -128, 0, -128, 0,
                                            0, -128, 0, -128, -128, 0, -128, 0, 0, -128, 0, -128, -128, 0,
                                            -128, 0, 0, -128);
      const __m256i first = _mm256_shuffle_epi8(low, _mm256_and_si256(signs, nibble));
      const __m256i last =
          _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(signs, 4), nibble));
      signs = _mm256_or_si256(_mm256_and_si256(signs, _mm256_set1_epi8(0x70)),
                              _mm256_xor_si256(first, last));
      bits = _mm256_set1_epi32(int(0x80402010u));
    }
    const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
    const __m256i points = _mm256_sub_epi8(_mm256_xor_si256(sizes, negative), negative);
    const __m256i down = _mm256_srai_epi32(_mm256_slli_epi32(changes, 24), 31);  // 0, or -1 in each byte
    return _mm256_add_epi8(points, _mm256_add_epi8(_mm256_set1_epi8(13), _mm256_add_epi8(down, down)));
  };
  return {eight(chosen.lo, changed.lo), eight(chosen.hi, changed.hi)};
}
PENSTOCK_INLINE Quad small_e8_quad(Quad line, int half) {
  return {looked_up_halves(kSmallE8Codes, line.lo, half),
          looked_up_halves(kSmallE8Codes, line.hi, half)};
}

#else

// What `points` makes of the low bytes of each column.
template <class Points>
PENSTOCK_INLINE Quad each_column(Quad chosen, Quad changed, Points points) {
  alignas(64) uint8_t bytes[kLineBytes], changes[kLineBytes];
  chosen.store(reinterpret_cast<std::byte*>(bytes));
  changed.store(reinterpret_cast<std::byte*>(changes));
  for (int64_t at = 0; at < kLineBytes; at += 4) {
    const uint32_t four = points(bytes[at], changes[at]);
    std::memcpy(bytes + at, &four, sizeof(four));
  }
  return Quad::load(reinterpret_cast<const std::byte*>(bytes));
}
PENSTOCK_INLINE uint32_t looked_up_half(const PointTable& table, uint8_t code, int half) {
  uint32_t four;
  std::memcpy(&four, table[code].data() + 4 * half, sizeof(four));
  return four;
}
PENSTOCK_INLINE Quad e8p_quad(Quad chosen, Quad changed, int half) {
  return each_column(chosen, changed, [half](uint8_t code, uint8_t changes) {
    const uint32_t sizes = looked_up_half(kE8pMagnitudes, code, half);
    uint32_t signs = changes & 127u;
    signs |= uint32_t(std::popcount(signs) & 1) << 7;
    const int move = changes & 128 ? 11 : 13;
    uint32_t four = 0;
    for (int i = 0; i < 4; ++i) {
      const int size = int8_t(sizes >> 8 * i);
      const int point = (signs >> (4 * half + i) & 1 ? -size : size) + move;
      four |= uint32_t(uint8_t(point)) << 8 * i;
    }
    return four;
  });
}
PENSTOCK_INLINE Quad small_e8_quad(Quad line, int half) {
  return each_column(line, line, [half](uint8_t code, uint8_t) {
    return looked_up_half(kSmallE8Codes, code, half);
  });
}

#endif

// What is the same whatever looks codes up. One scale for all, which a power of two is exact in: the
// matrix's own comes with what turns its outputs back.
template <int Bytes>
struct LatticePanels {
  static constexpr int64_t kSegment = 32, kGroup = 32;
  static constexpr bool kLeast = false;
  static constexpr int64_t kCodeBytes = Bytes * kLineBytes;
  static constexpr int64_t kSegmentBytes = kCodeBytes;

  // A code is read in the place of the first of its 8 k.
  static void put(std::byte* segment, int lane, int64_t k, const uint8_t* codes) {
    if (k % 8 != 0) return;
    for (int byte = 0; byte < Bytes; ++byte)
      segment[byte * kLineBytes + lane * 4 + k / 8] = std::byte(codes[byte]);
  }
  static PENSTOCK_INLINE f32x16 scale(const std::byte*, int64_t) {
    return f32x16::broadcast(Bytes == 2 ? 0.25f : 0.5f);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte*, int64_t) { return f32x16::zero(); }
  template <class Block>
  static void put_group(std::byte*, int, int64_t, const Block&, int64_t) {}
};

template <int Bytes, int Offset>
struct LatticeFormat : LatticePanels<Bytes>, PlainPoints<Offset, false> {
  static constexpr int kBits = 5;  // of what quad() gives, from 0 to 24

  static PENSTOCK_INLINE Quad quad(const std::byte* segment, int64_t, int q) {
    const auto codes = [&](int line) __attribute__((always_inline)) {
      const Quad all = Quad::load(segment + line * kLineBytes);
      return q < 2 ? all : all.right(q / 2 * 8);
    };
    if constexpr (Bytes == 2) return e8p_quad(codes(0), codes(1), q % 2);
    else return small_e8_quad(codes(0), q % 2);
  }
  static PENSTOCK_INLINE Quad loose_quad(const std::byte* segment, int64_t run, int q) {
    return quad(segment, run, q);
  }
};
using E8p = LatticeFormat<2, 12>;
using SmallE8 = LatticeFormat<1, kSmallE8Offset>;

}  // namespace penstock
