// Activation and addition, element by element: the `Activate`, `Add` and `AddActivated` ops of
// plan/ops.py.
#pragma once

#include "../types.h"
#include "gemm.h"

namespace penstock {

struct AddActivatedArgs {
  Array x;    // [rows, cols] f32; null data: nothing to add to
  Array y;    // [rows, cols] f32
  Array out;  // [rows, cols] f32, which may be x or y, or bf16
  Activation activation;
};

// out = x + activation(y). Each worker takes whole rows.
void add_activated(const AddActivatedArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
