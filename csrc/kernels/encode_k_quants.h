// What the encoders of Q2_K to Q6_K share. They are as quant/encode/k_quants.py, bit by bit.
#pragma once

#include "encode_batch.h"

namespace penstock {

constexpr int kRefits = 2;  // quant/encode/k_quants.py's _ROUNDS

template <int kSubs>
constexpr int kColumnsOf = kSuper / kSubs;

// How much errors count, but for Q6_K.
template <int kSubs>
void weigh(Batch<kSuper>& batch) {
  constexpr int kSubColumns = kColumnsOf<kSubs>;
  f32x16 squares[kSubs], total = f32x16::zero();
  for (int sub = 0; sub < kSubs; ++sub) {
    squares[sub] = f32x16::zero();
    for (int i = 0; i < kSubColumns; ++i) {
      const f32x16 v = f32x16::load(batch.x[sub * kSubColumns + i]);
      squares[sub] += v * v;
    }
    total += squares[sub];
  }
  const f32x16 twice = lanes_of(2.0f) * (total / lanes_of(float(kSuper)));
  for (int sub = 0; sub < kSubs; ++sub) {
    const f32x16 root = sqrt(squares[sub] / lanes_of(float(kSubColumns)));
    for (int i = 0; i < kSubColumns; ++i) {
      const f32x16 v = f32x16::load(batch.x[sub * kSubColumns + i]);
      LaneRow& weights = batch.weights[sub * kSubColumns + i];
      if (batch.weighted) (f32x16::load(weights) * sqrt(twice + v * v)).store(weights);
      else (abs(v) + root).store(weights);
    }
  }
}

// The encoder of a k-quant whose sub-blocks have offsets, or have none; null for other formats.
Encode<kSuper> encoder_with_offsets(WeightFormat format);
Encode<kSuper> encoder_without_offsets(WeightFormat format);

}  // namespace penstock
