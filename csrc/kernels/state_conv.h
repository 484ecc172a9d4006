// Convolutions along a sequence whose earlier inputs lie in the sequence's state: the `StateConv` op of
// plan/ops.
#pragma once

#include "../states.h"
#include "../types.h"

namespace penstock {

struct StateConvArgs {
  StateLayer state;     // its ring has so many columns
  Array x;              // [T, cols] f32
  Array out;            // [T, cols] f32; does not alias x
  const float* weight;  // [kernel, cols], that of the oldest token first
  const float* bias;    // [cols]; null without
  int kernel;           // tokens that one sees, itself included: 2 to kMostTaps
  bool silu;            // of the sum
};

// Workers share columns and sequences.
void state_conv(const StateConvArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
