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

#include "gemm_blocks.h"
#include "gemm_epilogue.h"
#include "gemm_grid.h"
#include "gemm_int.h"

namespace penstock {

// What a code u stands for: u - 128 or u - 8; u - zero; a window's step * (u - origin).
enum class PointKind : uint8_t { offset, zeros, windows };

// Panels of gemm_int.h and gemm_grid.h, as far as this needs to know them.
struct PointPanels {
  const std::byte* data;
  int bits;
  PointKind kind;
  int64_t depth;         // as stored, a multiple of 32
  int segment_bits;      // 2^segment_bits k, a segment, have their codes together
  int64_t segment_bytes; // from one segment to the next
  int64_t scaled;        // k of a group, which is a segment; 0: one scale for all of them
  int64_t scales_at;     // of the first
  int64_t shifts_at;     // of the first zeros or windows
  int64_t panel_bytes;
  int64_t units;
  int per_unit;

  explicit PointPanels(const IntMatrix& w);  // of a group that has_points()
  explicit PointPanels(const GridMatrix& w);

  // Offsets in a panel of what belongs to the 32 k from k on.
  int64_t codes_at(int64_t k) const {
    return (k >> segment_bits) * segment_bytes + in_segment(k) * 2 * bits;  // 16 columns
  }
  int64_t shifts(int64_t k) const {
    if (kind == PointKind::zeros) return shifts_at + (k >> segment_bits) * kPanelColumns;
    return shifts_at + (k >> segment_bits) * segment_bytes +
           in_segment(k) / kGridGroup * kPanelColumns;
  }
  int64_t scales(int64_t k) const {
    return scales_at + (scaled ? (k >> segment_bits) * segment_bytes : 0);
  }
  int64_t in_segment(int64_t k) const { return k & ((int64_t(1) << segment_bits) - 1); }
  const std::byte* panel(int64_t unit) const { return data + unit * per_unit * panel_bytes; }
};

// Whether codes in groups of so many k can be multiplied so: slices must be of whole groups.
constexpr bool has_points(int64_t group) {
  return group == 0 || group == 32 || group == 64 || group == 128;
}

// As linear(), linear_scratch_bytes() and linear_shared_bytes() of the matrices.
void linear_points(const PointPanels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                   std::byte* shared, const Worker& worker);
int64_t points_scratch_bytes(const PointPanels& p, int64_t rows);
int64_t points_shared_bytes(const PointPanels& p, int64_t rows);

// As linear_units() of the matrices (gemm_units.h).
void linear_points_units(const PointPanels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                         Range units, bool ready, std::byte* scratch);
int64_t points_units_scratch_bytes(const PointPanels& p, int64_t rows);

// x in bfloat16 on tile registers.
void linear_points_amx(const PointPanels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                       std::byte* shared, const Worker& worker);
int64_t points_amx_scratch_bytes(const PointPanels& p, int64_t rows);
int64_t points_amx_shared_bytes(const PointPanels& p, int64_t rows);
void linear_points_amx_units(const PointPanels& p, const InputRows& x, const Epilogue& e,
                             int64_t rows, Range units, bool ready, std::byte* scratch);
int64_t points_amx_units_scratch_bytes(const PointPanels& p, int64_t rows);

}  // namespace penstock
