// The largest logit of each row: the `Argmax` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

// A row is cut at multiples of this many columns, so that threads share a single row (decoding one
// sequence) as well as many. 64 KiB: long enough to stream.
constexpr int64_t kArgmaxColumns = 16384;

struct ArgmaxPartial {
  float value;
  int32_t index;
};

constexpr int64_t argmax_partials(int64_t rows, int64_t cols) {
  return rows * ((cols + kArgmaxColumns - 1) / kArgmaxColumns);
}

struct ArgmaxArgs {
  Array x;                  // [rows, cols] f32
  Array out;                // [rows, 1] i32
  ArgmaxPartial* partials;  // argmax_partials(rows, cols)
};

// out[r] is the lowest index of the largest of x[r], and of the first NaN where there is one, as
// NumPy has it: so that x[r][out[r]] tells whether the row can be trusted. A row of
// negative infinities gives 0. Two phases with a barrier between.
void argmax(const ArgmaxArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
