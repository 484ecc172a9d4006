// Token embeddings: the `Embed` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct EmbedArgs {
  const std::byte* table;  // [vocabulary, cols] row-major
  Elem elem;               // of the table: f32, bf16 or f16
  Array out;               // [T, cols] f32
};

// out[t] = table[token_ids[t]]. Each worker takes whole rows.
void embed(const EmbedArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
