// Norms of parts of rows, with a gate: the `GatedNorm` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct GatedNormArgs {
  Array x;              // [rows, cols] f32
  Array gate;           // [rows, cols] f32
  Array out;            // [rows, cols] f32, which may be x or gate, or bf16
  const float* weight;  // [size], or [cols] where each part has its own
  int64_t size;         // columns that are normed together
  bool each_part;
  bool gate_first;
  float eps;
};
size_t gated_norm_scratch_bytes(const GatedNormArgs& args);

// Workers share parts of rows.
void gated_norm(const GatedNormArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
