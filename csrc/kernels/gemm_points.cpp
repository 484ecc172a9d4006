#include "gemm_points.h"

#include <bit>

#include "gemm_grid_blocks.h"
#include "gemm_int_blocks.h"
#include "gemm_points_walk.h"
#include "gemm_registers.h"

namespace penstock {
namespace {

// x in float32, or in bfloat16 where nothing multiplies that.
template <class X>
using FloatWalk = PointsWalk<RegisterKernel<FloatFormat<float, X>>, FloatPoints>;

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
// x in bfloat16 by VDPBF16PS, in PairPoints' order.
struct PairFormat {
  using Packed = uint32_t;
  using Weights = __m512i;
  static constexpr int64_t kStep = 2;
  static constexpr int64_t kStepBytes = 2 * PairPoints::kBytes;

  static PENSTOCK_INLINE Weights load(const std::byte* from) { return _mm512_load_si512(from); }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const bf16* in = x.row<bf16>(row);
    const auto value = [&](int64_t i) { return i < x.cols ? uint32_t(in[i].bits) : 0u; };
    const int64_t whole = std::clamp<int64_t>((x.cols - k) / 4 * 2, 0, steps);
    for (int64_t s = 0; s < whole; s += 2) {
      uint64_t four;
      std::memcpy(&four, in + k + 2 * s, sizeof(four));
      to[s * stride] = uint32_t(four & 0xffff) | (uint32_t(four >> 32) & 0xffff) << 16;
      to[(s + 1) * stride] = uint32_t(four >> 16 & 0xffff) | uint32_t(four >> 48) << 16;
    }
    for (int64_t s = whole; s < steps; ++s) {
      const int64_t first = k + s / 2 * 4 + s % 2;
      to[s * stride] = value(first) | value(first + 2) << 16;
    }
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, Packed a) {
    sum = dpbf16(sum, w, a);
  }
};

using Bf16Walk = PointsWalk<RegisterKernel<PairFormat>, PairPoints>;
#else
using Bf16Walk = FloatWalk<bf16>;
#endif

}  // namespace

PointPanels::PointPanels(const IntMatrix& w) {
  const IntPanels p(w);
  data = p.data;
  bits = p.bits;
  kind = p.zero_points ? PointKind::zeros : PointKind::offset;
  depth = p.depth();
  segment_bits = w.group ? std::countr_zero(uint64_t(p.group)) : 62;  // a whole row is one segment
  segment_bytes = p.group_bytes;
  scaled = p.groups > 1 ? p.group : 0;
  scales_at = p.code_bytes;
  shifts_at = p.zeros_at;
  panel_bytes = p.panel_bytes;
  units = p.units;
  per_unit = p.per_unit;
}

PointPanels::PointPanels(const GridMatrix& w) {
  const GridPanels p(w);
  data = p.data;
  bits = p.bits;
  kind = p.bits == 8 ? PointKind::offset : PointKind::windows;
  depth = p.steps * kGridStep;
  segment_bits = std::countr_zero(uint64_t(p.bits == 8 ? kGridStep : kWindowedK));
  segment_bytes = p.bits == 8 ? kGridTileBytes : kWindowedBytes;
  scaled = 0;
  scales_at = p.weight_bytes();
  shifts_at = p.bits == 8 ? 0 : kWindowedBytes - kLineBytes;
  panel_bytes = p.panel_bytes;
  units = p.units;
  per_unit = p.per_unit;
}

void linear_points(const PointPanels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                   std::byte* shared, const Worker& worker) {
  if (rows == 0) return;
  if (x.elem != Elem::bf16) return FloatWalk<float>::run(p, x, e, rows, shared, worker);
#if defined(__AMX_BF16__)
  linear_points_amx(p, x, e, rows, shared, worker);
#else
  Bf16Walk::run(p, x, e, rows, shared, worker);
#endif
}

void linear_points_units(const PointPanels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                         Range units, bool ready, std::byte* scratch) {
  if (x.elem != Elem::bf16)
    return FloatWalk<float>::run_units(p, x, e, rows, units, ready, scratch);
#if defined(__AMX_BF16__)
  linear_points_amx_units(p, x, e, rows, units, ready, scratch);
#else
  Bf16Walk::run_units(p, x, e, rows, units, ready, scratch);
#endif
}

int64_t points_units_scratch_bytes(const PointPanels& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::units_scratch_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_units_scratch_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::units_scratch_bytes(p, rows));
#endif
}

int64_t points_scratch_bytes(const PointPanels& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::scratch_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_scratch_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::scratch_bytes(p, rows));
#endif
}

int64_t points_shared_bytes(const PointPanels& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::shared_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_shared_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::shared_bytes(p, rows));
#endif
}

}  // namespace penstock
