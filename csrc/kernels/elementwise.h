// Element by element: the `Activate`, `Add`, `AddActivated`, `Clamp`, `Gate`, `Scale`,
// `ScaleByPosition`, `SoftCap` and `Xielu` ops of plan/ops. All arrays are [rows, cols] f32, of outputs also bf16; an f32 output may be an input.
#pragma once

#include "../types.h"
#include "gemm.h"

namespace penstock {

struct AddActivatedArgs {
  Array x;  // null data: nothing to add to
  Array y;
  Array out;
  Activation activation;
};

// out = x + activation(y).
void add_activated(const AddActivatedArgs& args, int64_t rows, const Worker& worker);

struct GateArgs {
  Array gate;
  Array up;
  Array out;
  Gating gating;
};

// out = what becomes of gate and up.
void gate(const GateArgs& args, int64_t rows, const Worker& worker);

struct ScaleArgs {
  Array x;
  Array out;
  float factor;
  const float* learned = nullptr;  // the factor instead, where there is one
};

// out = x * factor: the `Scale` and `ScaleBy` ops.
void scale(const ScaleArgs& args, int64_t rows, const Worker& worker);

struct SoftCapArgs {
  Array x;
  Array out;
  float cap;
};

// out = cap * tanh(x / cap).
void soft_cap(const SoftCapArgs& args, int64_t rows, const Worker& worker);

struct XieluArgs {
  Array x;
  Array out;
  const float* p;
  const float* n;
  const float* beta;
  const float* eps;
};

// out = xIELU(x).
void xielu(const XieluArgs& args, int64_t rows, const Worker& worker);

struct ClampArgs {
  Array x;
  Array out;
  float limit;
};

// out = x, or what of -limit and limit is nearer where it lies beyond; NaN stays NaN.
void clamp(const ClampArgs& args, int64_t rows, const Worker& worker);

struct ScaleByPositionArgs {
  Array x;
  Array out;
  const float* factors;
  int64_t period;
  int64_t offset;
};

// out[t] = x[t] * factors[(positions[t] + offset) / period].
void scale_by_position(const ScaleByPositionArgs& args, const StepView& step,
                       const Worker& worker);

// Into so many pieces of at most this many columns workers share a row: logits may be the one row
// of a step and have a hundred thousand columns.
constexpr int64_t kPieceColumns = 4096;
constexpr int64_t pieces_of_row(int64_t cols) { return (cols + kPieceColumns - 1) / kPieceColumns; }

}  // namespace penstock
