// Points of quantized weights in vector registers.
#include "gemm_points_walk.h"
#include "gemm_registers.h"

namespace penstock {
namespace {

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

#endif

}  // namespace

template <class X>
struct PointsPath : PointsWalk<RegisterKernel<FloatFormat<float, X>>, FloatPoints> {
  using PointsWalk<RegisterKernel<FloatFormat<float, X>>, FloatPoints>::PointsWalk;
};
template struct Product<PointsPath<float>>;

#if !defined(__AMX_BF16__)
#if defined(__AVX512BF16__)
template <>
struct PointsPath<bf16> : PointsWalk<RegisterKernel<PairFormat>, PairPoints> {
  using PointsWalk::PointsWalk;
};
#endif
template struct Product<PointsPath<bf16>>;
#endif

}  // namespace penstock
