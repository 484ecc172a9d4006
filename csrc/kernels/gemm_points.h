// Products of quantized weights with activations as they are: out = x @ W^T + bias, optionally gated.
//
// W's codes stand for whole numbers, its points, which bfloat16 holds exactly. They are expanded a
// slice of the depth at a time, to where the first cache holds it, and multiplied like weights of
// their own: x in bfloat16 as gemm.h multiplies bfloat16, on tiles or by dots of pairs; else in
// float32. The weights' scales come last. With one for a row,
//   out = (sum over k of x * point) * w_scale[n];
// with one for a group g of k,
//   out = sum over ascending groups g of w_scale[n, g] * (sum over the k of g of x * point),
// one fused multiply-add a group. Each sum is one chain of additions from zero, whose order depends
// on the instruction set and k alone; so the promise of gemm.h holds.
#pragma once

#include "gemm_epilogue.h"
#include "gemm_panels.h"

namespace penstock {

// Whether codes in groups of so many k can be multiplied so: slices must be of whole groups.
constexpr bool has_points(int64_t group) {
  return group == 0 || group == 32 || group == 64 || group == 128;
}

// As linear(), linear_scratch_bytes() and linear_shared_bytes() of the matrices.
void linear_points(const PanelView& p, const InputRows& x, const Epilogue& e, int64_t rows,
                   std::byte* shared, const Worker& worker);
int64_t points_scratch_bytes(const PanelView& p, int64_t rows);
int64_t points_shared_bytes(const PanelView& p, int64_t rows);

// As linear_units() of the matrices (gemm_units.h).
void linear_points_units(const PanelView& p, const InputRows& x, const Epilogue& e, int64_t rows,
                         Range units, bool ready, std::byte* scratch);
int64_t points_units_scratch_bytes(const PanelView& p, int64_t rows);

// x in bfloat16 on tile registers.
void linear_points_amx(const PanelView& p, const InputRows& x, const Epilogue& e, int64_t rows,
                       std::byte* shared, const Worker& worker);
int64_t points_amx_scratch_bytes(const PanelView& p, int64_t rows);
int64_t points_amx_shared_bytes(const PanelView& p, int64_t rows);
void linear_points_amx_units(const PanelView& p, const InputRows& x, const Epilogue& e,
                             int64_t rows, Range units, bool ready, std::byte* scratch);
int64_t points_amx_units_scratch_bytes(const PanelView& p, int64_t rows);

}  // namespace penstock
