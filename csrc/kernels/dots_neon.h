// Dots of bytes of some rows by 16 columns on AArch64, 16 k at a time, for every kind of codes.
//
// Where there are matrix instructions, USMMLA and BFMMLA, two rows and more take these. A register
// then holds two columns by two rows, and one instruction adds to these four the products of eight
// bytes each. A line has four bytes a column, so two lines are interleaved in registers; packed
// weights lie as they do for every other instruction set.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gemm_cuts.h"
#include "gemm_int_simd.h"

#if defined(__aarch64__)

namespace penstock {

#if defined(__ARM_FEATURE_MATMUL_INT8)

PENSTOCK_INLINE int32x4_t add_square(int32x4_t sum, uint8x16_t w, uint8x16_t x) {
  return vusmmlaq_s32(sum, w, vreinterpretq_s8_u8(x));
}
PENSTOCK_INLINE i32x16 first_row(const int32x4_t (&v)[8]) {
  return i32x16::each([&](int c) { return vuzp1q_s32(v[2 * c], v[2 * c + 1]); });
}
PENSTOCK_INLINE i32x16 second_row(const int32x4_t (&v)[8]) {
  return i32x16::each([&](int c) { return vuzp2q_s32(v[2 * c], v[2 * c + 1]); });
}
PENSTOCK_INLINE void join_rows(i32x16 first, i32x16 second, int32x4_t (&v)[8]) {
  for (int c = 0; c < 4; ++c) {
    v[2 * c] = vzip1q_s32(first.v[c], second.v[c]);
    v[2 * c + 1] = vzip2q_s32(first.v[c], second.v[c]);
  }
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Adds as two BFDOTs do, one after the other: a row has the same bits alone and among others.
PENSTOCK_INLINE float32x4_t add_square(float32x4_t sum, uint8x16_t w, uint8x16_t x) {
  return vbfmmlaq_f32(sum, vreinterpretq_bf16_u8(w), vreinterpretq_bf16_u8(x));
}
PENSTOCK_INLINE f32x16 first_row(const float32x4_t (&v)[8]) {
  return f32x16::each([&](int c) { return vuzp1q_f32(v[2 * c], v[2 * c + 1]); });
}
PENSTOCK_INLINE f32x16 second_row(const float32x4_t (&v)[8]) {
  return f32x16::each([&](int c) { return vuzp2q_f32(v[2 * c], v[2 * c + 1]); });
}
PENSTOCK_INLINE void join_rows(f32x16 first, f32x16 second, float32x4_t (&v)[8]) {
  for (int c = 0; c < 4; ++c) {
    v[2 * c] = vzip1q_f32(first.v[c], second.v[c]);
    v[2 * c + 1] = vzip2q_f32(first.v[c], second.v[c]);
  }
}
#endif

// Sums of `Rows` rows; Sum: i32x16 or f32x16. Of an odd number the last row is there twice.
template <class Sum, int Rows>
struct Squares {
  static constexpr int kPairs = (Rows + 1) / 2;
  std::remove_reference_t<decltype(Sum{}.v[0])> v[kPairs][8];

  // at(r): what row r begins with.
  template <class At>
  static PENSTOCK_INLINE Squares of(At at) {
    Squares sums;
    for (int p = 0; p < kPairs; ++p)
      join_rows(at(2 * p), at(std::min(2 * p + 1, Rows - 1)), sums.v[p]);
    return sums;
  }
  PENSTOCK_INLINE Sum row(int r) const { return r % 2 ? second_row(v[r / 2]) : first_row(v[r / 2]); }

  // Two lines, by eight bytes of x of each row; pair(p): those of rows 2p and 2p + 1.
  template <class Pair>
  PENSTOCK_INLINE void add_pairs(const uint8x16_t (&first)[4], const uint8x16_t (&second)[4],
                                 Pair pair) {
    uint8x16_t x[kPairs];
    for (int p = 0; p < kPairs; ++p) x[p] = pair(p);
    for (int c = 0; c < 4; ++c) {
      const uint32x4_t one = vreinterpretq_u32_u8(first[c]), two = vreinterpretq_u32_u8(second[c]);
      const uint8x16_t low = vreinterpretq_u8_u32(vzip1q_u32(one, two));
      const uint8x16_t high = vreinterpretq_u8_u32(vzip2q_u32(one, two));
      for (int p = 0; p < kPairs; ++p) {
        v[p][2 * c] = add_square(v[p][2 * c], low, x[p]);
        v[p][2 * c + 1] = add_square(v[p][2 * c + 1], high, x[p]);
      }
    }
  }
  // Those of row r lie at at(r).
  template <class At>
  PENSTOCK_INLINE void add(const uint8x16_t (&first)[4], const uint8x16_t (&second)[4], At at) {
    const auto eight = [&](int r) __attribute__((always_inline)) {
      return vld1_u8(reinterpret_cast<const uint8_t*>(at(r)));
    };
    add_pairs(first, second, [&](int p) __attribute__((always_inline)) {
      return vcombine_u8(eight(2 * p), eight(std::min(2 * p + 1, Rows - 1)));
    });
  }
};

#endif

// Two quads, 8 k, of codes as they lie in a panel.
template <int Bits>
struct PlainCodes {
  static constexpr int64_t kBytes = 8 * kPanelColumns * Bits / 8;
  const std::byte* codes;

  PENSTOCK_INLINE void quads(int eight, uint8x16_t (&first)[4], uint8x16_t (&second)[4]) const {
    const std::byte* const from = codes + eight * kBytes;
    const auto copy = [](const uint8x16_t (&quad)[4], uint8x16_t (&to)[4]) __attribute__((always_inline)) {
      for (int c = 0; c < 4; ++c) to[c] = quad[c];
    };
    const Line<Bits> line = Line<Bits>::load(from);
    copy(line.quads[0], first);
    if constexpr (Bits == 4) copy(line.quads[1], second);
    else copy(Line<8>::load(from + kLineBytes).quads[0], second);
  }
};

template <int Rows>
struct Dots {
  i32x16 rows[Rows];

  // What each row's dots start from.
  template <class At>
  static PENSTOCK_INLINE Dots of(At at) {
    Dots dots;
    for (int r = 0; r < Rows; ++r) dots.rows[r] = at(r);
    return dots;
  }
  PENSTOCK_INLINE i32x16 row(int r) const { return rows[r]; }

  // 16 k of weights by those of rows of x that lie `stride` bytes apart.
  template <class Codes>
  PENSTOCK_INLINE void add(const Codes& codes, const int8_t* x, int64_t stride) {
    int8x16_t k[Rows];
    for (int r = 0; r < Rows; ++r) k[r] = vld1q_s8(x + r * stride);
    add_eight<0>(codes, k);
    add_eight<1>(codes, k);
  }

 private:
  template <int Eight, class Codes>
  PENSTOCK_INLINE void add_eight(const Codes& codes, const int8x16_t (&x)[Rows]) {
    uint8x16_t first[4], second[4];
    codes.quads(Eight, first, second);
    for (int c = 0; c < 4; ++c)
      for (int r = 0; r < Rows; ++r)
        rows[r].v[c] = add_dots<2 * Eight>(rows[r].v[c], first[c], x[r]);
    for (int c = 0; c < 4; ++c)
      for (int r = 0; r < Rows; ++r)
        rows[r].v[c] = add_dots<2 * Eight + 1>(rows[r].v[c], second[c], x[r]);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
template <int Rows>
  requires(Rows > 1)
struct Dots<Rows> : Squares<i32x16, Rows> {
  template <class At>
  static PENSTOCK_INLINE Dots of(At at) {
    return {Squares<i32x16, Rows>::of(at)};
  }
  template <class Codes>
  PENSTOCK_INLINE void add(const Codes& codes, const int8_t* x, int64_t stride) {
    for (int eight = 0; eight < 2; ++eight) {
      uint8x16_t first[4], second[4];
      codes.quads(eight, first, second);
      Squares<i32x16, Rows>::add(first, second, [&](int r) __attribute__((always_inline)) {
        return x + r * stride + 8 * eight;
      });
    }
  }
};
#endif

}  // namespace penstock

#endif
