// Keys and values of a step's tokens into the cache: the `KvWrite` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct KvWriteArgs {
  KvLayer kv;
  Array k;  // [T, kv_heads * head_dim] f32
  Array v;  // the same; of a cache of latents nothing
};

// Puts each token's heads where its slot is. Every worker calls it once.
void kv_write(const KvWriteArgs& args, const StepView& step, Worker& worker);

}  // namespace penstock
