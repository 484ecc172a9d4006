// Recurrences along a sequence: the `GatedDelta` and `SelectiveScan` ops of plan/ops.
//
// Both walk a state of float32 token by token, a tile of its columns at a time: columns never meet,
// so a tile stays in L1 for all tokens that a sequence has in the step, and tiles are what threads
// share. No bit depends on how a sequence is cut into steps, on the batch or on the threads.
#pragma once

#include "../states.h"
#include "../types.h"

namespace penstock {

struct GatedDeltaArgs {
  StateLayer state;      // of value heads: [key_dim, value_dim] each
  Array qkv;             // [T, queries and keys of key heads, values of value heads] f32
  Array ba;              // [T, b of value heads, a of value heads] f32
  Array out;             // [T, value heads * value_dim] f32; aliases neither
  const float* a_log;    // [value heads]
  const float* dt_bias;  // [value heads]
  int key_heads;         // consecutive value heads share one,
  bool tiled;            // or else those that lie this number of key heads apart
};

struct SelectiveScanArgs {
  StateLayer state;      // of heads: [state, head_dim] each
  Array xbc;             // [T, x of heads, B of groups, C of groups] f32
  Array dt;              // [T, heads] f32
  Array out;             // [T, heads * head_dim] f32; aliases neither
  const float* a_log;    // [heads]
  const float* dt_bias;  // [heads]
  const float* d;        // [heads]
  int groups;            // consecutive heads share one
  float least_step, most_step;
};

size_t scan_scratch_bytes(const StateLayer& state);
void gated_delta(const GatedDeltaArgs& args, const StepView& step, const Worker& worker);
void selective_scan(const SelectiveScanArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
