// Attention over an INT8 cache: a token's keys are codes times one scale, its values likewise, and
// queries are turned as its keys are. An INT4 cache is the same once a split's codes have a byte each
// (wide_codes.h), and what is weighed is turned back as values of 4 bits are, at the end. Where its
// keys are less a center, all scores of a query are less by one number, which a softmax cancels.
//
// A score is (q . codes) * key scale, and a value weighs p * value scale. Where there are dots of
// bytes, each row of q, and each row of a split's weights, is rounded to 16-bit integers under a
// scale of its own and kept as two planes of bytes. Sums of products with codes are then exact in
// 32 bits: vector instructions and tiles give the same bits in any order. A weight is off by at
// most 2^-16 of its row's largest in the split, its exponential included, and so is a component of
// q of its row's largest: less than rounding to bfloat16 costs. Elsewhere floats are multiplied
// (CodeSplits).
#pragma once

#include <algorithm>
#include <limits>

#include "../simd.h"
#include "attention_feed.h"
#include "attention_item.h"
#include "attention_softmax.h"
#include "attention_tiles.h"
#include "turn_head.h"

namespace penstock {

// The scales that follow a tile of keys or values.
PENSTOCK_INLINE const bf16* scales_of(const std::byte* data, const KvTile& tile) {
  return reinterpret_cast<const bf16*>(data + tile.element_bytes());
}

// q's rows as floats, [rows][padded dim], zeros behind the dim; for one row.
inline void widen_query(const Tile& tile, int row, float* out) {
  const Array& q = tile.args.q;
  const int dim = tile.dim();
  if (q.elem == Elem::bf16)
    convert(out, q.row<const bf16>(tile.token[row]) + tile.column[row], dim);
  else
    convert(out, q.row<const float>(tile.token[row]) + tile.column[row], dim);
  const KvLayer& kv = tile.args.kv;
  if (kv.key_columns) {
    const float* const factors = kv.key_factors(tile.kv_head);
    for (int i = 0; i < dim; ++i) out[i] *= factors[i];
  }
  if (kv.turns_keys()) turn_head(out, dim);
  std::fill(out + dim, out + kv.key_tile().widened().padded_dim(), 0.0f);
}

// Wanted between keys and values, so ahead of what streams both.
inline void prefetch_value_scales(const Tile& tile, const SplitBlocks& blocks) {
  const KvTile values = tile.args.kv.value_tile().widened();
  for (int b = blocks.first; b < blocks.last; ++b)
    __builtin_prefetch(scales_of(blocks.values[b], values));
}

inline void widen_value_scales(const Tile& tile, const SplitBlocks& blocks, float* out) {
  const KvTile values = tile.args.kv.value_tile().widened();
  for (int b = blocks.first; b < blocks.last; ++b) {
    const bf16* scales = scales_of(blocks.values[b], values);
    convert(out + b * kBlockSize, scales, kBlockSize);
  }
}

// A row of scores times the keys' scales.
inline void scale_scores(const Tile& tile, const SplitBlocks& blocks, float* scores) {
  const KvTile keys = tile.args.kv.key_tile().widened();
  for (int b = blocks.first; b < blocks.last; ++b) {
    const bf16* scales = scales_of(blocks.keys[b], keys);
    for (int i = 0; i < kBlockSize; i += f32x16::lanes) {
      float* x = scores + b * kBlockSize + i;
      (f32x16::load(x) * f32x16::load(scales + i)).store(x);
    }
  }
}

// 2^x to 2^-18.5 relative, for weights that 16 bits hold anyway: x at most about 0. NaN stays NaN.
// The polynomial is ours, of least relative error on [-1/2, 1/2]; in all ten operations for the
// sixteen of exp().
PENSTOCK_INLINE f32x16 power_of_two(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  x = max(c(-160.0f), x);  // what is not visible is -inf
  const f32x16 n = round_even(x);
  const f32x16 f = x - n;
  f32x16 p = c(0.00957010128f);
  p = fma(p, f, c(0.0559178591f));
  p = fma(p, f, c(0.240247443f));
  p = fma(p, f, c(0.693121791f));
  p = fma(p, f, c(0.999999285f));
  return scale_pow2(p, n);
}

struct CodeWeights {
  float sum;      // of exp(scale * score - maximum)
  float largest;  // of those times the value's scale; NaN if one is
};

// weights = exp(scale * scores - maximum) * value scale, zero where not visible in [first, last).
// The order of the sum is that of exponentials(). Every register of them fetches `lines` of feed.
inline CodeWeights scaled_exponentials(const float* scores, const float* value_scales,
                                       float* weights, float scale, float maximum,
                                       const ScoreColumns& columns, int first, int last, Feed& feed,
                                       int lines) {
  const f32x16 zero = f32x16::zero();
  constexpr float kLog2E = 0x1.715476p+0f;
  const f32x16 factor = f32x16::broadcast(scale * kLog2E);
  const f32x16 shift = f32x16::broadcast(-maximum * kLog2E);
  f32x16 sum = zero, largest = zero, bad = zero;
  for (int i = first; i < columns.low; i += f32x16::lanes) zero.store(weights + i);
  for (int i = columns.low; i < columns.high; i += f32x16::lanes) {
    feed.fetch(lines);
    const f32x16 p = power_of_two(fma(f32x16::load(scores + i), factor, shift));
    sum += p;
    f32x16 w = p * f32x16::load(value_scales + i);
    // A weight of zero does not hide the scale of a slot out of sight, which may be NaN.
    if (i < columns.begin) w = select_first(columns.begin - i, zero, w);
    if (i + f32x16::lanes > columns.end) w = select_first(columns.end - i, w, zero);
    largest = max(w, largest);
    bad = fma(w, zero, bad);
    w.store(weights + i);
  }
  for (int i = columns.high; i < last; i += f32x16::lanes) zero.store(weights + i);
  return {hsum(sum), hmax(largest) + hsum(bad)};
}

// The softmax of a row whose scores are of codes, which lack the keys' scales: its weights times the values' scales,
// zero in the rest of the split, and its maximum and sum behind the values of `out`, the row's partial result.
// `weights` may be `scores`.
inline void scaled_softmax(const Tile& tile, int row, int split, const SplitBlocks& blocks,
                           const float* value_scales, float* scores, float* weights, float* out,
                           Feed& feed, int lines) {
  const ScoreColumns columns(tile.begin[row], tile.end[row], split);
  const int first = blocks.first * kBlockSize, last = blocks.last * kBlockSize;
  float &maximum = out[tile.dim()], &sum = out[tile.dim() + 1];
  maximum = kNoScore;
  sum = 0.0f;
  if (columns.empty()) {
    std::fill(weights + first, weights + last, 0.0f);
    return;
  }
  const bool shaped = tile.args.shapes_scores();
  const float scale = shaped ? 1.0f : tile.args.scale;
  scale_scores(tile, blocks, scores);
  if (shaped) tile.shape_row(row, split, columns, tile.args.scale, scores);
  maximum = mask_and_max(scores, columns) * scale;
  sum = scaled_exponentials(scores, value_scales, weights, scale, maximum, columns, first, last,
                            feed, lines)
            .sum;
}

// Partial results of one split in floats, for machines without dots of bytes.
class CodeSplits {
 public:
  CodeSplits(const Tile& tile, const Scratch& scratch)
      : tile_(tile), scratch_(scratch), kernel_(tile.rows, tile.dim()) {
    for (int r = 0; r < tile.rows; ++r) widen_query(tile, r, queries() + r * padded());
  }

  void run(int split, float* out) const {
    const int stride = partial_stride(tile_.dim());
    SplitBlocks blocks = gather<int8_t>(tile_, split, scratch_);
    // The kernel asks for what is next as it reads, unless it reads a copy.
    const bool widened = tile_.args.kv.value_tile().elem != Elem::i8;
    Feed feed(widened ? blocks : SplitBlocks{}, tile_.args.kv.head_bytes());
    if (widened) blocks.streams = false;
    const int lines = feed.lines(1.0f, tile_.rows * kSplitTokens / f32x16::lanes);
    kernel_.scores(queries(), padded(), blocks, scratch_.scores);
    widen_value_scales(tile_, blocks, scratch_.value_scales);
    auto* weights = reinterpret_cast<float*>(scratch_.weights);
    for (int r = 0; r < tile_.rows; ++r)
      scaled_softmax(tile_, r, split, blocks, scratch_.value_scales,
                     scratch_.scores + r * kScoreStride, weights + r * kScoreStride,
                     out + r * stride, feed, lines);
    kernel_.weigh(weights, blocks, out, stride);
  }

 private:
  int padded() const { return tile_.args.kv.key_tile().widened().padded_dim(); }
  float* queries() const { return reinterpret_cast<float*>(scratch_.queries); }

  const Tile& tile_;
  const Scratch& scratch_;
  const VectorTiles<QuadDot> kernel_;
};

}  // namespace penstock

