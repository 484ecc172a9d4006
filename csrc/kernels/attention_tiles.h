// The two products of attention over one split, on vector registers: scores = q K^T and
// weighted = p V. Both are small matrix products whose right-hand operand lies in cache blocks.
//
// A tile kernel (this one, or attention_amx.h) has
//   Operand               element of packed queries and of softmax weights
//   scores(q, ...)        fills columns [first * 32, last * 32) of a row of scores
//   weigh(p, ...)         sums over blocks first..last into head_dim columns
// Every output element is summed in ascending order of its inner dimension, whatever the number
// of rows, and starting blocks later or ending them earlier where weights are zero changes nothing.
#pragma once

#include <algorithm>

#include "../bf16_dots.h"
#include "../simd.h"
#include "../types.h"
#include "attention.h"

namespace penstock {

// Elements in a row of scores or weights: a split, padded so that the rows of a tile do not fall
// into the same sets of L1.
constexpr int kScoreStride = kSplitTokens + 16;

// The blocks of one split for one KV head; only [first, last) are set.
struct SplitBlocks {
  const std::byte* keys[kSplitBlocks];
  const std::byte* values[kSplitBlocks];
  const std::byte* fetch_values[kSplitBlocks];  // to prefetch while keys are read; may be null
  const std::byte* fetch_keys[kSplitBlocks];    // of the next split, while values are read
  const std::byte* fetch_next;  // the first keys that are read after this split; may be null
  int first;
  int last;
};

// The first lines of a tile, into L2: the hardware's streamer takes it from there. All of its lines
// would fill the line buffers that loads need. Decode of 8192 tokens, 8 KV heads of 64, one thread:
// 0.66 ms with four lines, 0.78 with none, 0.87 with all.
PENSTOCK_INLINE void prefetch_tile(const std::byte* tile) {
  if (!tile) return;
  for (int64_t i = 0; i < 256; i += 64) __builtin_prefetch(tile + i, 0, 2);
}

// One inner index at a time: the operand is a float, the cache holds T.
template <class T>
struct FloatDot {
  using Operand = float;
  using Right = T;
  static constexpr int depth = 1;  // inner indices a step consumes

  static PENSTOCK_INLINE f32x16 load(const T* p, int n) { return f32x16::load_n(p, n); }
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const float* left, f32x16 right) {
    return fma(f32x16::broadcast(*left), right, acc);
  }
};

// Two inner indices at a time, as a lane of two bfloat16.
struct PairDot {
  using Operand = bf16;
  struct Right {
    bf16 pair[2];
  };
  static constexpr int depth = 2;

  static PENSTOCK_INLINE f32x16 load(const Right* p, int n) {
    return f32x16::load_n(reinterpret_cast<const float*>(p), n);  // words, not numbers
  }
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const bf16* left, f32x16 right) {
#if defined(PENSTOCK_BF16_DOTS)
    uint32_t pair;
    std::memcpy(&pair, left, sizeof(pair));
    return dpbf16(acc, right, pair);
#else
    acc = fma(f32x16::broadcast(to_f32(left[0])), low_bf16(right), acc);
    return fma(f32x16::broadcast(to_f32(left[1])), high_bf16(right), acc);
#endif
  }
};

// Four inner indices at a time, as a lane of four codes, summed in floats.
struct QuadDot {
  using Operand = float;
  using Right = int32_t;
  static constexpr int depth = 4;

  static PENSTOCK_INLINE f32x16 load(const Right* p, int n) {
    return f32x16::load_n(reinterpret_cast<const float*>(p), n);  // words, not numbers
  }
  static PENSTOCK_INLINE f32x16 accumulate(f32x16 acc, const float* left, f32x16 right) {
    typedef int32_t words __attribute__((vector_size(64)));
    typedef float floats __attribute__((vector_size(64)));
    const words bits = std::bit_cast<words>(right);
    for (int i = 0; i < 4; ++i) {
      const floats codes = __builtin_convertvector((bits << (24 - 8 * i)) >> 24, floats);
      acc = fma(f32x16::broadcast(left[i]), std::bit_cast<f32x16>(codes), acc);
    }
    return acc;
  }
};

// Memory that is asked for while something else is computed, two lines a step, into L2.
class Ahead {
 public:
  Ahead() = default;
  explicit Ahead(const std::byte* tile) : at_(tile) {}

  PENSTOCK_INLINE void fetch() {
    __builtin_prefetch(at_, 0, 2);
    __builtin_prefetch(at_ + 64, 0, 2);
    at_ += 128;
  }

 private:
  const std::byte* at_ = nullptr;
};

// out[r][0..n) = sum over blocks and their inner indices of left[r][k] * block[k][0..n), for Rows
// rows and n <= 16 * Cols. inner counts steps of Dot::depth; strides are in elements. Each step fetches of `ahead`.
template <class Dot, int Rows, int Cols, class... Aheads>
PENSTOCK_INLINE void product(const typename Dot::Operand* left, int left_stride,
                             const std::byte* const* blocks, int count, int64_t column, int inner,
                             int right_stride, int n, float* out, int out_stride, Aheads... ahead) {
  const auto lanes = [n](int c) { return std::clamp(n - c * f32x16::lanes, 0, f32x16::lanes); };
  f32x16 acc[Rows][Cols];
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Cols; ++c) acc[r][c] = f32x16::zero();
  for (int b = 0; b < count; ++b) {
    const auto* right = reinterpret_cast<const typename Dot::Right*>(blocks[b]) + column;
    for (int k = 0; k < inner; ++k, right += right_stride) {
      (ahead.fetch(), ...);
      f32x16 line[Cols];
      for (int c = 0; c < Cols; ++c) line[c] = Dot::load(right + c * f32x16::lanes, lanes(c));
      for (int r = 0; r < Rows; ++r) {
        const auto* operand = left + r * left_stride + (b * inner + k) * Dot::depth;
        for (int c = 0; c < Cols; ++c) acc[r][c] = Dot::accumulate(acc[r][c], operand, line[c]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Cols; ++c)
      acc[r][c].store_n(out + r * out_stride + c * f32x16::lanes, lanes(c));
}

// f<Most>(row) while so many rows are left, then half as many at a time.
template <int Most, class F>
PENSTOCK_INLINE void by_rows(int rows, F f, int row = 0) {
  for (; row + Most <= rows; row += Most) f.template operator()<Most>(row);
  if constexpr (Most > 1) by_rows<Most / 2>(rows, f, row);
}

template <class Dot>
class VectorTiles {
 public:
  using Operand = typename Dot::Operand;

  VectorTiles(int rows, int dim)
      : rows_(rows), dim_(dim), padded_((dim + Dot::depth - 1) / Dot::depth * Dot::depth) {}

  void scores(const Operand* q, int q_stride, const SplitBlocks& blocks, float* out) const {
    for (int b = blocks.first; b < blocks.last; ++b) {
      float* const to = out + b * kBlockSize;
      if (const std::byte* values = blocks.fetch_values[b]) {
        const std::byte* const keys = blocks.keys[std::min(b + 1, blocks.last - 1)];
        by_rows<kScoreRows>(rows_, [&]<int Rows>(int row) {
          score<Rows>(q, q_stride, blocks.keys + b, to, row, Ahead(keys), Ahead(values));
        });
      } else {
        by_rows<kScoreRows>(rows_, [&]<int Rows>(int row) {
          score<Rows>(q, q_stride, blocks.keys + b, to, row);
        });
      }
    }
  }

  void weigh(const Operand* p, const SplitBlocks& blocks, float* out, int out_stride) const {
    constexpr int width = kCols * f32x16::lanes;
    for (int column = 0; column < dim_; column += width)
      if (column == 0 && blocks.fetch_next)
        by_rows<kRows>(rows_, [&]<int Rows>(int row) {
          weigh<Rows>(p, blocks, out, out_stride, column, row, Ahead(blocks.fetch_next));
        });
      else
        by_rows<kRows>(rows_, [&]<int Rows>(int row) {
          weigh<Rows>(p, blocks, out, out_stride, column, row);
        });
  }

 private:
  template <int Rows, class... Aheads>
  PENSTOCK_INLINE void score(const Operand* q, int q_stride, const std::byte* const* keys, float* out,
                             int row, Aheads... ahead) const {
    product<Dot, Rows, 2>(q + row * q_stride, q_stride, keys, 1, 0, padded_ / Dot::depth, kBlockSize,
                          kBlockSize, out + row * kScoreStride, kScoreStride, ahead...);
  }
  template <int Rows, class... Aheads>
  PENSTOCK_INLINE void weigh(const Operand* p, const SplitBlocks& blocks, float* out, int out_stride,
                             int column, int row, Aheads... ahead) const {
    product<Dot, Rows, kCols>(p + row * kScoreStride + blocks.first * kBlockSize, kScoreStride,
                              blocks.values + blocks.first, blocks.last - blocks.first, column,
                              kBlockSize / Dot::depth, padded_,
                              std::min(kCols * f32x16::lanes, dim_ - column),
                              out + row * out_stride + column, out_stride, ahead...);
  }

  // Accumulators and one line of the right operand fit the register file: 32 of 16 lanes with
  // AVX-512, otherwise 16 of 8 lanes, two to an f32x16.
#if defined(__AVX512F__)
  static constexpr int kScoreRows = 8;
  static constexpr int kRows = 4;
  static constexpr int kCols = 4;
#else
  static constexpr int kScoreRows = 2;
  static constexpr int kRows = 2;
  static constexpr int kCols = 2;
#endif

  int rows_;
  int dim_;
  int padded_;  // to whole steps of Dot
};

}  // namespace penstock
