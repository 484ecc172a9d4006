// The blocks of integer products on AArch64.
#include "dots_neon.h"
#include "gemm_formats.h"
#include "gemm_int_blocks.h"

#if defined(__aarch64__)

namespace penstock {
namespace {

// A stream of weights is prefetched so far ahead.
constexpr int64_t kStreamAhead = 2 << 10;

template <class Format, int Rows>
void multiply(const PanelView& p, const IntRows& x, int64_t row, const std::byte* weights,
              int64_t ahead, float* sums) {
  constexpr int bits = Format::kBits;
  constexpr int64_t kStep = 16;  // k
  constexpr int64_t kStepBytes = kStep * kPanelColumns * bits / 8;
  f32x16 total[Rows];
  for (int r = 0; r < Rows; ++r) total[r] = f32x16::zero();

  const int8_t* codes = x.codes(row);
  const float* x_scales = x.scales(row);
  const int32_t* starts = x.starts(row);
  const int64_t row_floats = x.row_bytes / 4;
  const std::byte* const panel = weights;
  const i32x16 kept = i32x16::broadcast(kept_zero(bits, Format::kOffset) - Format::kOffset);
  for (int64_t g = 0; g < p.segments; ++g, weights += kScaleBytes) {
    const auto start = [&](int r) __attribute__((always_inline)) { return starts[r * row_floats + g]; };
    Dots<Rows> dots;
    if (p.zero_points) {
      const i32x16 zeros = i32x16::widen(p.zeros(panel, g)) + kept;
      dots = Dots<Rows>::of([&](int r) { return zeros.times_short(start(r)); });
    } else {
      dots = Dots<Rows>::of([&](int r) { return i32x16::broadcast(start(r)); });
    }
    const std::byte* end = weights + p.scales_at;
    for (; weights < end; weights += kStepBytes, codes += kStep) {
      if (ahead)
        for (int64_t at = 0; at < kStepBytes; at += 64)
          __builtin_prefetch(weights + kStreamAhead + at);
      dots.add(PlainCodes<bits>{weights}, codes, x.row_bytes);
    }
    const f32x16 scale = Format::scales(weights);
    for (int r = 0; r < Rows; ++r)
      total[r] = fma(f32x16::broadcast(x_scales[r * row_floats + g]) * scale,
                     dots.row(r).to_float(), total[r]);
  }
  for (int r = 0; r < Rows; ++r) total[r].store(sums + r * kPanelColumns);
}

template <class Format, int Rows = kIntNeonRows>
IntMultiply multiply_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_rows<Format, Rows - 1>(rows);
  return multiply<Format, Rows>;
}

}  // namespace

IntMultiply int_neon_multiply(WeightFormat format, int64_t rows) {
  return with_format(format, [&]<class Format>(Format) { return multiply_rows<Format>(rows); });
}

}  // namespace penstock

#endif  // AArch64
