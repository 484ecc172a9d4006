// The softmax of one row over one split, and the merge of splits.
#pragma once

#include <algorithm>
#include <limits>

#include "../simd.h"
#include "attention.h"
#include "attention_tiles.h"

namespace penstock {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Floats of a partial result: KvLayer::out_dim() weighted values, the maximum score, the sum of weights.
constexpr int partial_stride(int dim) { return (dim + 2 + 15) / 16 * 16; }

// Columns [begin, end) of a row of scores, rounded out to registers, [low, high).
struct ScoreColumns {
  int begin, end, low, high;

  // Of a row that sees positions [first, last).
  ScoreColumns(int first, int last, int split)
      : begin(std::max(first - split * kSplitTokens, 0)),
        end(std::min(last - split * kSplitTokens, kSplitTokens)),
        low(begin / f32x16::lanes * f32x16::lanes),
        high((end + f32x16::lanes - 1) / f32x16::lanes * f32x16::lanes) {}

  bool empty() const { return begin >= end; }
};

// The largest visible score. Makes the others in its registers -inf, which exp turns into zeros.
inline float mask_and_max(float* scores, const ScoreColumns& columns) {
  const f32x16 none = f32x16::broadcast(kNoScore);
  if (columns.begin > columns.low) {
    float* x = scores + columns.low;
    select_first(columns.begin - columns.low, none, f32x16::load(x)).store(x);
  }
  if (columns.end < columns.high) {
    float* x = scores + columns.high - f32x16::lanes;
    select_first(f32x16::lanes - (columns.high - columns.end), f32x16::load(x), none).store(x);
  }
  f32x16 largest = none;
  for (int i = columns.low; i < columns.high; i += f32x16::lanes)
    largest = max(f32x16::load(scores + i), largest);
  return hmax(largest);
}

// A row's scores in the registers of `columns`, times `scale`, capped where softcap is not 0, and
// with slope times their distance added; the distance of column 0 is `distance`. exponentials()
// then takes them with a scale of 1.
inline void shape_scores(float* scores, const ScoreColumns& columns, float scale, float softcap,
                         float slope, int distance) {
  const f32x16 factor = f32x16::broadcast(scale), cap = f32x16::broadcast(softcap);
  const f32x16 down = f32x16::broadcast(slope);
  for (int i = columns.low; i < columns.high; i += f32x16::lanes) {
    f32x16 x = f32x16::load(scores + i) * factor;
    if (softcap > 0) x = cap * tanh(x / cap);
    x = fma(down, f32x16::broadcast(float(distance + i)) + f32x16::iota(), x);
    x.store(scores + i);
  }
}

// The same where positions and their products with the slope are rounded to bf16, and differences
// of these multiplied by `steps`. `first` is the position of column 0.
inline void shape_scores_rounded(float* scores, const ScoreColumns& columns, float scale, float softcap,
                                 float slope, float steps, int first, int position) {
  const f32x16 factor = f32x16::broadcast(scale), cap = f32x16::broadcast(softcap);
  const auto round = [](f32x16 x) {
    bf16 rounded[f32x16::lanes];
    x.store(rounded);
    return f32x16::load(rounded);
  };
  const auto place = [&](f32x16 at) { return round(f32x16::broadcast(slope) * round(at)); };
  const f32x16 own = place(f32x16::broadcast(float(position)));
  for (int i = columns.low; i < columns.high; i += f32x16::lanes) {
    f32x16 x = f32x16::load(scores + i) * factor;
    if (softcap > 0) x = cap * tanh(x / cap);
    const f32x16 at = f32x16::broadcast(float(first + i)) + f32x16::iota();
    fma(f32x16::broadcast(steps), place(at) - own, x).store(scores + i);
  }
}

// What weighted values are multiplied by in the end, given the maximum of scores and the sum of
// weights under it: the sink, a score without a value, joins the sum here and nowhere else.
inline float factor_with_sink(float maximum, float sum, float sink) {
  const float most = std::max(maximum, sink);
  const f32x16 own = exp(f32x16::broadcast(maximum - most));
  const f32x16 total =
      fma(f32x16::broadcast(sum), own, exp(f32x16::broadcast(sink - most)));
  float factor;
  (own / total).store_n(&factor, 1);
  return factor;
}

// weights = exp(scale * scores - maximum), zero in the rest of [first, last); their sum. Lane i of
// the sum takes columns i, i + 16, ... of the split, absolute positions: registers without visible
// columns may be left out or not.
template <class T>
float exponentials(const float* scores, T* weights, float scale, float maximum,
                   const ScoreColumns& columns, int first, int last) {
  const f32x16 zero = f32x16::zero();
  const f32x16 factor = f32x16::broadcast(scale);
  const f32x16 shift = f32x16::broadcast(-maximum);
  f32x16 sum = zero;
  for (int i = first; i < columns.low; i += f32x16::lanes) put(zero, weights + i);
  for (int i = columns.low; i < columns.high; i += f32x16::lanes) {
    const f32x16 w = exp(fma(f32x16::load(scores + i), factor, shift));
    put(w, weights + i);
    sum += w;
  }
  for (int i = columns.high; i < last; i += f32x16::lanes) put(zero, weights + i);
  return hsum(sum);
}

// Adds a split's partial result to that of the splits before it. A sum of zero is a split of
// which the row sees nothing.
inline void merge(float* merged, const float* partial, int dim) {
  if (partial[dim + 1] == 0.0f) return;
  if (merged[dim + 1] == 0.0f) {
    std::copy_n(partial, dim + 2, merged);
    return;
  }
  const float maximum = std::max(merged[dim], partial[dim]);
  const f32x16 old_factor = exp(f32x16::broadcast(merged[dim] - maximum));
  const f32x16 new_factor = exp(f32x16::broadcast(partial[dim] - maximum));
  const f32x16 sum = fma(f32x16::broadcast(partial[dim + 1]), new_factor,
                         f32x16::broadcast(merged[dim + 1]) * old_factor);
  for (int i = 0; i < dim; i += f32x16::lanes) {
    const int count = std::min(f32x16::lanes, dim - i);
    fma(f32x16::load_n(partial + i, count), new_factor,
        f32x16::load_n(merged + i, count) * old_factor)
        .store_n(merged + i, count);
  }
  merged[dim] = maximum;
  sum.store_n(merged + dim + 1, 1);
}

}  // namespace penstock
