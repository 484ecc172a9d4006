// Residual addition and RMS norm: the `AddNorm` op of plan/ops.py.
#pragma once

#include "../types.h"

namespace penstock {

struct AddNormArgs {
  Array residual;  // [rows, cols] f32, updated in place
  Array delta;     // [rows, cols] f32; null data: nothing to add
  Array out;       // [rows, cols] f32 or bf16; aliases neither
  const float* weight;  // [cols]
  float eps;
};

// residual += delta; out = residual / sqrt(mean(residual^2) + eps) * weight. Each worker takes
// whole rows.
void add_norm(const AddNormArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
