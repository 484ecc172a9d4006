// bfloat16 products by instructions for dots of pairs: VDPBF16PS, sixteen columns by a pair of k each;
// BFDOT and BFMMLA, two lines of a panel at a time.
#include "../bf16_dots.h"
#include "gemm_registers.h"

#if defined(__aarch64__)
#include "dots_neon.h"
#endif

#if defined(PENSTOCK_BF16_DOTS)

namespace penstock {

#if defined(__AVX512BF16__)

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

#else

struct DotFormat {
  using Packed = bfloat16x4_t;  // two pairs of k
  struct Weights {
    uint8x16_t first[4], second[4];
  };
  static constexpr int kFewPanels = 2;
  static constexpr int64_t kStep = 4;
  static constexpr int64_t kStepBytes = kPanelColumns * 8;

  static PENSTOCK_INLINE Weights load(const std::byte* from) {
    Weights w;
    for (int c = 0; c < 4; ++c) {
      w.first[c] = load_bytes(from + 16 * c);
      w.second[c] = load_bytes(from + kLineBytes + 16 * c);
    }
    return w;
  }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const int64_t there = std::clamp<int64_t>(x.cols - k, 0, kStep * steps);
    const bf16* const in = x.row<bf16>(row) + k;
    for (int64_t s = 0; s < steps; ++s) {
      bf16 four[kStep] = {};
      const int64_t some = std::clamp<int64_t>(there - kStep * s, 0, kStep);
      std::memcpy(four, in + kStep * s, size_t(some) * sizeof(bf16));
      std::memcpy(to + s * stride, four, sizeof(Packed));
    }
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, Packed a) {
    for (int c = 0; c < 4; ++c) {
      sum.v[c] = vbfdotq_lane_f32(sum.v[c], vreinterpretq_bf16_u8(w.first[c]), a, 0);
      sum.v[c] = vbfdotq_lane_f32(sum.v[c], vreinterpretq_bf16_u8(w.second[c]), a, 1);
    }
  }
};

template <int Rows, int Panels>
  requires(Rows > 1)
struct RegisterSums<DotFormat, Rows, Panels> {
  Squares<f32x16, Rows> sums[Panels];

  PENSTOCK_INLINE explicit RegisterSums(const float* before) {
    for (int p = 0; p < Panels; ++p)
      sums[p] = Squares<f32x16, Rows>::of([&](int r) {
        return before ? f32x16::load(before + (p * Rows + r) * kPanelColumns) : f32x16::zero();
      });
  }
  PENSTOCK_INLINE void step(const std::byte* at, int64_t panel_bytes, const DotFormat::Packed* a) {
    const auto pair = [&](int i) __attribute__((always_inline)) {
      const uint8_t* const rows = reinterpret_cast<const uint8_t*>(a + 2 * i);
      if (2 * i + 1 < Rows) return vld1q_u8(rows);
      return vcombine_u8(vld1_u8(rows), vld1_u8(rows));
    };
    for (int p = 0; p < Panels; ++p) {
      const DotFormat::Weights weights = DotFormat::load(at + p * panel_bytes);
      sums[p].add_pairs(weights.first, weights.second, pair);
    }
  }
  PENSTOCK_INLINE void store(float* after) const {
    for (int p = 0; p < Panels; ++p)
      for (int r = 0; r < Rows; ++r)
        sums[p].row(r).store(after + (p * Rows + r) * kPanelColumns);
  }
};

#endif

struct DotPath : Walk<RegisterKernel<DotFormat>> {
  using Walk::Walk;
};
template struct Product<DotPath, Panels>;

}  // namespace penstock

#endif
