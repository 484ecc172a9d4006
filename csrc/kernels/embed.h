// Embeddings of tokens and of positions: the `Embed` and `AddPositions` ops of plan/ops.
#pragma once

#include "../types.h"
#include "gemm_block.h"
#include "gemm_int.h"

namespace penstock {

struct EmbedArgs {
  const std::byte* table;  // [vocabulary, cols] row-major
  Elem elem;               // of the table: f32, bf16 or f16
  Array out;               // [T, cols] f32
};

// out[t] = table[token_ids[t]]. Each worker takes whole rows.
void embed(const EmbedArgs& args, const StepView& step, const Worker& worker);

struct BlockEmbedArgs {
  BlockMatrix table;  // [vocabulary, cols], not gated
  Array out;          // [T, cols] f32
};

// The same, of a table in blocks, each element as its block's values are.
void embed(const BlockEmbedArgs& args, const StepView& step, const Worker& worker);

struct IntEmbedArgs {
  IntMatrix table;  // [vocabulary, cols], not gated
  Array out;        // [T, cols] f32
};

// The same, of a table in groups.
void embed(const IntEmbedArgs& args, const StepView& step, const Worker& worker);

struct AddPositionsArgs {
  const std::byte* table;  // [rows, cols] row-major
  Elem elem;               // of the table: f32, bf16 or f16
  int64_t offset;          // the row of position 0
  Array x;                 // [T, cols] f32
  Array out;               // [T, cols] f32; may be x
};

// out[t] = x[t] + table[positions[t] + offset]. Each worker takes whole rows.
void add_positions(const AddPositionsArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
