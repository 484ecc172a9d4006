// The rows whose logits or hidden states are wanted: the `SelectRows` op of plan/ops.
#pragma once

#include "../types.h"

namespace penstock {

struct SelectRowsArgs {
  Array x;    // [T, cols]
  Array out;  // [S, cols], the same element type
};

// out = x[logit_rows], then x[hidden_rows]. Each worker takes whole rows.
void select_rows(const SelectRowsArgs& args, const StepView& step, const Worker& worker);

}  // namespace penstock
