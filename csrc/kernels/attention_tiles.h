// The two products of attention over one split, on vector registers: scores = q K^T and
// weighted = p V. Both are small matrix products whose right-hand operand lies in cache blocks.
//
// A tile kernel (this one, or attention_amx.h) has
//   Operand               element of packed queries and of softmax weights
//   kStreams              whether it asks for what is read next by itself
//   scores(q, ...)        fills columns [first * 32, last * 32) of a row of scores
//   weigh(p, ...)         sums over blocks first..last into head_dim columns
// Every output element is summed in ascending order of its inner dimension, whatever the number
// of rows, and starting blocks later or ending them earlier where weights are zero changes nothing.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../bf16_dots.h"
#include "../simd.h"
#include "../types.h"
#include "attention.h"

namespace penstock {

// Elements in a row of scores or weights: a split, padded so that the rows of a tile do not fall
// into the same sets of L1.
constexpr int kScoreStride = kSplitTokens + 16;

// The blocks of one split for one KV head; only [first, last) are set.
//
// Few rows take as long as the cache takes to come, so what is read next is asked for while this is computed: a line
// of the block at the same place for every line that is read, into L2. (Zen 4, bfloat16, 32768 tokens, 8 KV heads of 64,
// 4 rows each, one thread that reads 32 GB/s: 15 GB/s of values as their keys were read and of keys a block ahead.)
struct SplitBlocks {
  const std::byte* keys[kSplitBlocks];
  const std::byte* values[kSplitBlocks];
  const std::byte* next_keys[kSplitBlocks];  // what is read after this split
  const std::byte* next_values[kSplitBlocks];
  int first;
  int last;
  bool streams;  // whether that is to be fetched: the rows are few, and there is something next
};

// The first lines of a tile, into L2: the hardware's streamer takes it from there. All of its lines
// would fill the line buffers that loads need. Decode of 8192 tokens, 8 KV heads of 64, one thread:
// 0.66 ms with four lines, 0.78 with none, 0.87 with all.
PENSTOCK_INLINE void prefetch_tile(const std::byte* tile) {
  if (!tile) return;
  for (int64_t i = 0; i < 256; i += 64) __builtin_prefetch(tile + i, 0, 2);
}

// A bfloat16 kept as the float it stands for, where floats are multiplied.
struct WideBf16 {
  float value = 0;
};

PENSTOCK_INLINE void put(f32x16 x, float* to) { x.store(to); }
PENSTOCK_INLINE void put(f32x16 x, bf16* to) { x.store(to); }
PENSTOCK_INLINE void put(f32x16 x, WideBf16* to) {
  bf16 rounded[f32x16::lanes];
  x.store(rounded);
  f32x16::load(rounded).store(&to->value);
}

// What a product multiplies at a time: a line of the right operand, 16 columns by `depth` inner indices, in so
// many `parts`, one after the other, each by what accumulate() takes of a row of the left operand.

// One inner index: the operand is a float, the cache holds T.
template <class T>
struct FloatDot {
  using Operand = float;
  using Right = T;
  static constexpr int depth = 1, parts = 1;

  static PENSTOCK_INLINE f32x16 load(const T* p) { return f32x16::load(p); }
  static PENSTOCK_INLINE f32x16 load(const T* p, int n) { return f32x16::load_n(p, n); }
  template <int>
  static PENSTOCK_INLINE f32x16 part(f32x16 line) { return line; }
  template <int>
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const float* left, f32x16 right) {
    return fma(f32x16::broadcast(*left), right, acc);
  }
};

PENSTOCK_INLINE float widened(bf16 x) { return to_f32(x); }
PENSTOCK_INLINE float widened(WideBf16 x) { return x.value; }

// Two inner indices, as a lane of two bfloat16. Left is bf16 or WideBf16.
template <class Left>
struct PairDot {
  using Operand = Left;
  struct Right {
    bf16 pair[2];
  };
  static constexpr int depth = 2;

  static PENSTOCK_INLINE f32x16 load(const Right* p) {
    return f32x16::load(reinterpret_cast<const float*>(p));  // words, not numbers
  }
  static PENSTOCK_INLINE f32x16 load(const Right* p, int n) {
    return f32x16::load_n(reinterpret_cast<const float*>(p), n);
  }
#if defined(PENSTOCK_BF16_DOTS)
  static constexpr int parts = 1;
  template <int>
  static PENSTOCK_INLINE f32x16 part(f32x16 line) { return line; }
  template <int>
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const Left* left, f32x16 right) {
    uint32_t pair;
    std::memcpy(&pair, left, sizeof(pair));
    return dpbf16(acc, right, pair);
  }
#else
  static constexpr int parts = 2;
  template <int Part>
  static PENSTOCK_INLINE f32x16 part(f32x16 line) { return Part ? high_bf16(line) : low_bf16(line); }
  template <int Part>
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const Left* left, f32x16 right) {
    return fma(f32x16::broadcast(widened(left[Part])), right, acc);
  }
#endif
};

// Of rows that are packed for it.
#if defined(PENSTOCK_BF16_DOTS)
using PackedPairDot = PairDot<bf16>;
#else
using PackedPairDot = PairDot<WideBf16>;
#endif

// Four inner indices, as a lane of four codes, summed in floats.
struct QuadDot {
  using Operand = float;
  using Right = int32_t;
  static constexpr int depth = 4, parts = 4;

  static PENSTOCK_INLINE f32x16 load(const Right* p) {
    return f32x16::load(reinterpret_cast<const float*>(p));  // words, not numbers
  }
  static PENSTOCK_INLINE f32x16 load(const Right* p, int n) {
    return f32x16::load_n(reinterpret_cast<const float*>(p), n);
  }
  template <int Part>
  static PENSTOCK_INLINE f32x16 part(f32x16 line) { return signed_byte<Part>(line); }
  template <int Part>
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const float* left, f32x16 right) {
    return fma(f32x16::broadcast(left[Part]), right, acc);
  }

 private:
  // Of each lane's word, as a float.
  template <int Byte>
  static PENSTOCK_INLINE f32x16 signed_byte(f32x16 line) {
    typedef int32_t words __attribute__((vector_size(32)));
    typedef float floats __attribute__((vector_size(32)));
    struct Halves {
      words half[2];
    };
    const Halves bits = std::bit_cast<Halves>(line);
    struct Floats {
      floats half[2];
    } codes;
    for (int i = 0; i < 2; ++i)
      codes.half[i] = __builtin_convertvector((bits.half[i] << (24 - 8 * Byte)) >> 24, floats);
    return std::bit_cast<f32x16>(codes);
  }
};

// f<i>() for the parts of a line, in their order.
template <class Dot, int Part = 0, class F>
PENSTOCK_INLINE void for_each_part(F f) {
  f.template operator()<Part>();
  if constexpr (Part + 1 < Dot::parts) for_each_part<Dot, Part + 1>(f);
}

// Nothing is fetched.
struct NoFetch {};

// at(b, c) is the line for the first of block b and of columns from 16 c on; lines are 2^Shift times as short as those
// that are read.
template <int Shift, class At>
struct FetchLines {
  At at;
  static constexpr int kShift = Shift;
};

// out[r][0..n) = sum over blocks and their inner indices of left[r][k] * block[k][0..n), for Rows
// rows and n <= 16 * Cols, all of them if Whole. inner counts steps of Dot::depth; strides are in elements.
// right(b, c) is the first line of block b and of columns from 16 c on. Fetch is NoFetch or FetchLines: what is asked for
// meanwhile, in the same order.
//
// Loops over rows and columns are unrolled by name: left to itself, GCC 12 keeps sums in registers and stores
// each of them at every step as well, which takes longer than the arithmetic.
template <class Dot, int Rows, int Cols, bool Whole, class Right, class Fetch>
PENSTOCK_INLINE void product_of(const typename Dot::Operand* left, int left_stride, int count, int inner,
                                Right right, int right_stride, Fetch fetch, int n, float* out,
                                int out_stride) {
  constexpr bool fetches = !std::is_same_v<Fetch, NoFetch>;
  const auto lanes = [n](int c) { return std::clamp(n - c * f32x16::lanes, 0, f32x16::lanes); };
  f32x16 acc[Rows][Cols];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < Cols; ++c) acc[r][c] = f32x16::zero();
  for (int b = 0; b < count; ++b) {
    const auto* operands = left + b * inner * Dot::depth;
    const typename Dot::Right* lines[Cols];
    const std::byte* ahead[Cols];
#pragma GCC unroll 16
    for (int c = 0; c < Cols; ++c) {
      lines[c] = right(b, c);
      if constexpr (fetches) ahead[c] = fetch.at(b, c);
    }
    int64_t at = 0;
    for (int k = 0; k < inner; ++k, operands += Dot::depth, at += right_stride) {
#pragma GCC unroll 16
      for (int c = 0; c < Cols; ++c) {
        if constexpr (fetches)
          __builtin_prefetch(ahead[c] + (at * int64_t(sizeof(typename Dot::Right)) >> Fetch::kShift), 0, 2);
        const f32x16 line = Whole ? Dot::load(lines[c] + at) : Dot::load(lines[c] + at, lanes(c));
        for_each_part<Dot>([&]<int Part>() __attribute__((always_inline)) {
          const f32x16 part = Dot::template part<Part>(line);
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r)
            acc[r][c] = Dot::template accumulate<Part>(acc[r][c], operands + r * left_stride, part);
        });
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < Cols; ++c) {
      float* const to = out + r * out_stride + c * f32x16::lanes;
      if (Whole) acc[r][c].store(to);
      else acc[r][c].store_n(to, lanes(c));
    }
}

template <class Dot, int Rows, int Cols, class Right, class Fetch>
PENSTOCK_INLINE void product(const typename Dot::Operand* left, int left_stride, int count, int inner,
                             Right right, int right_stride, Fetch fetch, int n, float* out,
                             int out_stride) {
  const auto some = [&]<bool Whole>() __attribute__((always_inline)) {
    product_of<Dot, Rows, Cols, Whole>(left, left_stride, count, inner, right, right_stride, fetch, n, out,
                                       out_stride);
  };
  if (n == Cols * f32x16::lanes) some.template operator()<true>();
  else some.template operator()<false>();
}

// f<Most>(row) while so many rows are left, then half as many at a time.
template <int Most, class F>
PENSTOCK_INLINE void by_rows(int rows, F f, int row = 0) {
  for (; row + Most <= rows; row += Most) f.template operator()<Most>(row);
  if constexpr (Most > 1) by_rows<Most / 2>(rows, f, row);
}

// Sums of rows by columns that fit the registers beside a line of the right operand and numbers of the left one:
// AVX-512 has 32 of 16 lanes, AVX2 16 of 8, AArch64 32 of 4. The fewest rows that are worth a shape of their own.
#if defined(__AVX512F__)
constexpr int kProductSums = 16;
constexpr int kLeastRows = 2;
#else
constexpr int kProductSums = 4;
constexpr int kLeastRows = 1;
#endif

// f<Rows, Cols>() of the widest shape that so many rows fill.
template <int Rows, class F>
PENSTOCK_INLINE void with_shape(int rows, F f) {
  if constexpr (Rows > kLeastRows)
    if (rows < Rows) return with_shape<Rows / 2>(rows, f);
  f.template operator()<Rows, kProductSums / Rows>();
}

// Shift: tiles of the cache are 2^Shift times as short as those that are multiplied.
template <class Dot, int Shift = 0>
class VectorTiles {
 public:
  using Operand = typename Dot::Operand;
  static constexpr bool kStreams = true;  // asks for what is next by itself

  VectorTiles(int rows, int dim)
      : rows_(rows), dim_(dim), padded_((dim + Dot::depth - 1) / Dot::depth * Dot::depth) {}

  void scores(const Operand* q, int q_stride, const SplitBlocks& blocks, float* out) const {
    with_shape<kMostRows>(rows_, [&]<int Rows, int Cols>() {
      constexpr int together = std::max(1, Cols / kBlockColumns);  // blocks whose columns are summed at once
      int b = blocks.first;
      for (; b + together <= blocks.last; b += together) score<Rows, Cols>(q, q_stride, blocks, b, together, out);
      if constexpr (together > 1)
        for (; b < blocks.last; ++b) score<Rows, kBlockColumns>(q, q_stride, blocks, b, 1, out);
    });
  }

  void weigh(const Operand* p, const SplitBlocks& blocks, float* out, int out_stride) const {
    with_shape<kProductSums == 4 ? 4 : kMostRows / 2>(rows_, [&]<int Rows, int Cols>() {
      for (int column = 0; column < dim_; column += Cols * f32x16::lanes)
        by_rows<Rows>(rows_, [&]<int Some>(int row) {
          weigh<Some, Cols>(p, blocks, out, out_stride, column, row);
        });
    });
  }

 private:
  using Right = typename Dot::Right;
  static constexpr int kMostRows = kProductSums == 4 ? 4 : 8;
  static constexpr int kBlockColumns = kBlockSize / f32x16::lanes;
  static constexpr int kLaneBytes = f32x16::lanes * int(sizeof(Right));  // of a line of 16 columns

  // Columns of `count` blocks from `block` on, or of one, some at a time.
  template <int Rows, int Cols>
  PENSTOCK_INLINE void score(const Operand* q, int q_stride, const SplitBlocks& blocks, int block, int count,
                             float* out) const {
    for (int first = 0; first < count * kBlockColumns; first += Cols) {
      const auto keys = [&](int, int c) __attribute__((always_inline)) {
        return reinterpret_cast<const Right*>(blocks.keys[block + (first + c) / kBlockColumns]) +
               (first + c) % kBlockColumns * f32x16::lanes;
      };
      const auto keys_after = [&](int, int c) __attribute__((always_inline)) {
        return blocks.next_keys[block + (first + c) / kBlockColumns] +
               ((first + c) % kBlockColumns * kLaneBytes >> Shift);
      };
      float* const to = out + block * kBlockSize + first * f32x16::lanes;
      by_rows<Rows>(rows_, [&]<int Some>(int row) {
        const auto some = [&](auto fetch) __attribute__((always_inline)) {
          product<Dot, Some, Cols>(q + row * q_stride, q_stride, 1, padded_ / Dot::depth, keys, kBlockSize,
                                   fetch, Cols * f32x16::lanes, to + row * kScoreStride, kScoreStride);
        };
        if (row == 0 && blocks.streams) some(FetchLines<Shift, decltype(keys_after)>{keys_after});
        else some(NoFetch{});
      });
    }
  }

  template <int Rows, int Cols>
  PENSTOCK_INLINE void weigh(const Operand* p, const SplitBlocks& blocks, float* out, int out_stride,
                             int column, int row) const {
    const auto values = [&](int b, int c) __attribute__((always_inline)) {
      return reinterpret_cast<const Right*>(blocks.values[blocks.first + b]) + column + c * f32x16::lanes;
    };
    const auto values_after = [&](int b, int c) __attribute__((always_inline)) {
      return blocks.next_values[blocks.first + b] + ((column * int(sizeof(Right)) + c * kLaneBytes) >> Shift);
    };
    const auto some = [&](auto fetch) __attribute__((always_inline)) {
      product<Dot, Rows, Cols>(p + row * kScoreStride + blocks.first * kBlockSize, kScoreStride,
                               blocks.last - blocks.first, kBlockSize / Dot::depth, values, padded_, fetch,
                               std::min(Cols * f32x16::lanes, dim_ - column),
                               out + row * out_stride + column, out_stride);
    };
    if (row == 0 && blocks.streams) some(FetchLines<Shift, decltype(values_after)>{values_after});
    else some(NoFetch{});
  }

  int rows_;
  int dim_;
  int padded_;  // to whole steps of Dot
};

}  // namespace penstock
