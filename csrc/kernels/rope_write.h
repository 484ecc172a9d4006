// QK-norm, rotary embedding and the cache write in one pass: the `RopeWrite` op of plan/ops.
#pragma once

#include "../types.h"
#include "rotation.h"

namespace penstock {

struct RopeWriteArgs {
  KvLayer kv;
  Array qkv;  // [T, (heads + 2 * kv_heads) * head_dim] f32: queries, keys, values
  Array q;    // [T, heads * head_dim] f32 or bf16: rotated, not scaled
  int heads;
  Rotation rotation;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  float eps;
};

// Every worker calls it once. Needs no scratch.
void rope_write(const RopeWriteArgs& args, const StepView& step, Worker& worker);

}  // namespace penstock
