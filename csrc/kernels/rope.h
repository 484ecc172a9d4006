// Rotation, and norm, of each head of a row by itself: the `Rope` and `HeadNorm` ops of plan/ops.
#pragma once

#include "../types.h"
#include "rotation.h"

namespace penstock {

struct RopeArgs {
  Array x;       // [T, heads * head_dim] f32
  Array out;     // the same shape, f32 or bf16; may be x
  int head_dim;  // 1..kMostHeadDim
  Rotation rotation;
};

// out = x turned by the angles of its token's position. Workers share (token, head) pairs.
void rope(const RopeArgs& args, const StepView& step, const Worker& worker);

struct HeadNormArgs {
  Array x;              // [rows, heads * head_dim] f32
  Array out;            // the same shape, f32 or bf16; may be x
  const float* weight;  // [head_dim], or [heads, head_dim]; null without
  const float* bias;    // the same, of a LayerNorm; null without
  int head_dim;         // 1..kMostHeadDim
  float eps;
  bool layer;      // a LayerNorm
  bool each_head;  // weight and bias are of each head
};

// out = x / sqrt(mean(x^2) + eps) * weight, or the LayerNorm of x, head by head. Workers share
// (row, head) pairs.
void head_norm(const HeadNormArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
