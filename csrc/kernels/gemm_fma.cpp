// Products in float32: every pair of element types, on every instruction set.
#include "gemm_registers.h"

namespace penstock {

// bf16 weights, two k a step: a line of a panel interleaves them.
template <class X>
struct PairFormat {
  struct Packed {
    float even, odd;
  };
  struct Weights {
    f32x16 even, odd;
  };
  static constexpr int kFewPanels = 2;
  static constexpr int64_t kStep = 2;
  static constexpr int64_t kStepBytes = kPanelColumns * 4;

  static PENSTOCK_INLINE Weights load(const std::byte* from) {
#if defined(__AVX512F__)
    const __m512i pairs = _mm512_load_si512(from);
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))))}};
#elif defined(__AVX2__)
    const __m256i lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(from) + 1);
    const __m256i high_half = _mm256_set1_epi32(int(0xffff0000));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(lo, high_half)),
             _mm256_castsi256_ps(_mm256_and_si256(hi, high_half))}};
#elif defined(__aarch64__)
    const f32x16 pairs = f32x16::load(reinterpret_cast<const float*>(from));  // words, not numbers
    return {low_bf16(pairs), high_bf16(pairs)};
#else
    alignas(64) float even[kPanelColumns], odd[kPanelColumns];
    const bf16* pairs = reinterpret_cast<const bf16*>(from);
    for (int c = 0; c < kPanelColumns; ++c) {
      even[c] = to_f32(pairs[2 * c]);
      odd[c] = to_f32(pairs[2 * c + 1]);
    }
    return {f32x16::load(even), f32x16::load(odd)};
#endif
  }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const int64_t there = std::clamp<int64_t>(x.cols - k, 0, 2 * steps);
    const X* in = x.row<X>(row) + k;
    for (int64_t s = 0; s < there / 2; ++s)
      to[s * stride] = {to_f32(in[2 * s]), to_f32(in[2 * s + 1])};
    for (int64_t s = there / 2; s < steps; ++s)
      to[s * stride] = {2 * s < there ? to_f32(in[2 * s]) : 0.0f, 0.0f};
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, const Packed& a) {
    sum = fma(f32x16::broadcast(a.even), w.even, sum);
    sum = fma(f32x16::broadcast(a.odd), w.odd, sum);
  }
};

template <class Weight, class X>
struct FormatOf {
  using Format = SingleFormat<Weight, X>;
};
template <class X>
struct FormatOf<bf16, X> {
  using Format = PairFormat<X>;
};

template <class Weight, class X>
struct FmaPath : Walk<RegisterKernel<typename FormatOf<Weight, X>::Format>> {
  using Walk<RegisterKernel<typename FormatOf<Weight, X>::Format>>::Walk;
};
template struct Product<FmaPath<float, float>, Panels>;
template struct Product<FmaPath<float, bf16>, Panels>;
template struct Product<FmaPath<f16, float>, Panels>;
template struct Product<FmaPath<f16, bf16>, Panels>;
template struct Product<FmaPath<bf16, float>, Panels>;
template struct Product<FmaPath<bf16, bf16>, Panels>;

}  // namespace penstock
