// A convolution along each sequence, column by column: the `ShortConv` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct ShortConvArgs {
  KvLayer kv;           // of rows
  Array x;              // [T, c] f32
  Array out;            // the same; apart from x
  const float* taps;    // [kernel, c], the oldest token's first
  const float* bias;    // [c], or null
  int kernel;           // 2 to kMostTaps
};

// So many columns of a sequence are a task: whole cache lines of rows in any type.
constexpr int64_t kConvolvedColumns = 64;
constexpr int64_t convolved_pieces(int64_t cols) {
  return (cols + kConvolvedColumns - 1) / kConvolvedColumns;
}

// Workers share columns of sequences. Each walks the rows of its columns in order, and has read what
// was cached before the step when it puts rows of the step into the same places.
void short_conv(const ShortConvArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
