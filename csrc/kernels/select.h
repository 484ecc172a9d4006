// The rows whose logits are wanted: the `SelectRows` op of plan/ops.py.
#pragma once

#include "../types.h"

namespace penstock {

struct SelectRowsArgs {
  Array x;    // [T, cols]
  Array out;  // [R, cols], the same element type
};

// out[r] = x[logit_rows[r]]. Each worker takes whole rows.
void select_rows(const SelectRowsArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
