// bfloat16 products by VDPBF16PS: sixteen columns by a pair of k per instruction.
#include "gemm_registers.h"

#if defined(__AVX512BF16__)

namespace penstock {

struct DotFormat {
  using Packed = uint32_t;  // a pair of k
  using Weights = __m512i;
  static constexpr int kFewPanels = 1;
  static constexpr int64_t kStep = 2;
  static constexpr int64_t kStepBytes = kPanelColumns * 4;

  static PENSTOCK_INLINE Weights load(const std::byte* from) { return _mm512_load_si512(from); }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const int64_t there = std::clamp<int64_t>(x.cols - k, 0, 2 * steps);
    const bf16* in = x.row<bf16>(row) + k;
    for (int64_t s = 0; s < there / 2; ++s) std::memcpy(to + s * stride, in + 2 * s, sizeof(Packed));
    for (int64_t s = there / 2; s < steps; ++s)
      to[s * stride] = 2 * s < there ? in[2 * s].bits : Packed(0);
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, Packed a) {
    sum = dpbf16(sum, w, a);
  }
};

struct DotPath : Walk<RegisterKernel<DotFormat>> {
  using Walk::Walk;
};
template struct Product<DotPath, Panels>;

}  // namespace penstock

#endif
