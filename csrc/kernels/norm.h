// Norms of rows: the `AddNorm`, `RmsNorm` and `LayerNorm` ops of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct AddNormArgs {
  Array residual;  // [rows, cols] f32, updated in place
  Array delta;     // [rows, cols] f32; null data: nothing to add
  Array out;       // [rows, cols] f32 or bf16; aliases neither
  const float* weight;  // [cols]; null without
  float eps;
};

// residual += delta; out = residual / sqrt(mean(residual^2) + eps) * weight. Each worker takes
// whole rows.
void add_norm(const AddNormArgs& args, int64_t rows, const Worker& worker);

struct NormArgs {
  Array x;              // [rows, cols] f32
  Array out;            // [rows, cols] f32, which may be x, or bf16
  const float* weight;  // [cols]; null without
  const float* bias;     // [cols]; null without, as it is for rms_norm()
  float eps;
};

// out = x / sqrt(mean(x^2) + eps) * weight, with the bits of add_norm(). Each worker takes whole
// rows.
void rms_norm(const NormArgs& args, int64_t rows, const Worker& worker);

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, the variance being the mean of squared
// differences from the mean. Each worker takes whole rows.
void layer_norm(const NormArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
