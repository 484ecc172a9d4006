#include "gemm_points.h"

#include "gemm_points_walk.h"
#include "gemm_registers.h"

namespace penstock {
namespace {

// x in float32, or in bfloat16 where nothing multiplies that.
template <class X>
struct FloatFormat {
  using Packed = float;
  using Weights = f32x16;
  static constexpr int64_t kStep = 1;
  static constexpr int64_t kStepBytes = FloatPoints::kBytes;

  static PENSTOCK_INLINE Weights load(const std::byte* from) {
    return f32x16::load(reinterpret_cast<const float*>(from));
  }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const X* in = x.row<X>(row) + k;
    const int64_t there = std::clamp<int64_t>(x.cols - k, 0, steps);
    for (int64_t i = 0; i < there; ++i) to[i * stride] = to_f32(in[i]);
    for (int64_t i = there; i < steps; ++i) to[i * stride] = 0;
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, Packed a) {
    sum = fma(f32x16::broadcast(a), w, sum);
  }
};

template <class X>
using FloatWalk = PointsWalk<RegisterKernel<FloatFormat<X>>, FloatPoints>;

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

void linear_points(const PanelView& p, const InputRows& x, const Epilogue& e, int64_t rows,
                   std::byte* shared, const Worker& worker) {
  if (rows == 0) return;
  if (x.elem != Elem::bf16) return FloatWalk<float>::run(p, x, e, rows, shared, worker);
#if defined(__AMX_BF16__)
  linear_points_amx(p, x, e, rows, shared, worker);
#else
  Bf16Walk::run(p, x, e, rows, shared, worker);
#endif
}

void linear_points_units(const PanelView& p, const InputRows& x, const Epilogue& e, int64_t rows,
                         Range units, bool ready, std::byte* scratch) {
  if (x.elem != Elem::bf16)
    return FloatWalk<float>::run_units(p, x, e, rows, units, ready, scratch);
#if defined(__AMX_BF16__)
  linear_points_amx_units(p, x, e, rows, units, ready, scratch);
#else
  Bf16Walk::run_units(p, x, e, rows, units, ready, scratch);
#endif
}

int64_t points_units_scratch_bytes(const PanelView& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::units_scratch_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_units_scratch_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::units_scratch_bytes(p, rows));
#endif
}

int64_t points_scratch_bytes(const PanelView& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::scratch_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_scratch_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::scratch_bytes(p, rows));
#endif
}

int64_t points_shared_bytes(const PanelView& p, int64_t rows) {
  const int64_t wide = FloatWalk<float>::shared_bytes(p, rows);
#if defined(__AMX_BF16__)
  return std::max(wide, points_amx_shared_bytes(p, rows));
#else
  return std::max(wide, Bf16Walk::shared_bytes(p, rows));
#endif
}

}  // namespace penstock
