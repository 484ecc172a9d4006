// The blocks of integer products on AArch64: SDOT where the CPU has it, else widening
// multiplications.
//
// A line of a panel is four registers of four columns, each four k: what SDOT multiplies by
// four k of x. Both operands are signed to it: bytes are taken back from their offset of 128 as they
// are loaded, so their dots start from zero; nibbles keep theirs, as everywhere.
#include "gemm_formats.h"
#include "gemm_int_blocks.h"

#if defined(__aarch64__)

namespace penstock {
namespace {

// A stream of weights is prefetched so far ahead.
constexpr int64_t kStreamAhead = 2 << 10;

// Four columns' dots.
#if defined(__ARM_FEATURE_DOTPROD)
struct Dots {
  int32x4_t sum;

  static PENSTOCK_INLINE Dots broadcast(int32_t x) { return {vdupq_n_s32(x)}; }
  template <int Quad>
  PENSTOCK_INLINE void add(int8x16_t w, int8x16_t x) {
    sum = vdotq_laneq_s32(sum, w, x, Quad);
  }
  PENSTOCK_INLINE int32x4_t total() const { return sum; }
};
#else
struct Dots {
  int32x4_t low, high;  // two lanes a column, to be added

  static PENSTOCK_INLINE Dots broadcast(int32_t x) {
    const int32x4_t start = {x, 0, x, 0};
    return {start, start};
  }
  template <int Quad>
  PENSTOCK_INLINE void add(int8x16_t w, int8x16_t x) {
    const int8x8_t quads =
        vreinterpret_s8_s32(vdup_laneq_s32(vreinterpretq_s32_s8(x), Quad));
    low = vpadalq_s16(low, vmull_s8(vget_low_s8(w), quads));
    high = vpadalq_s16(high, vmull_s8(vget_high_s8(w), quads));
  }
  PENSTOCK_INLINE int32x4_t total() const { return vpaddq_s32(low, high); }
};
#endif

PENSTOCK_INLINE uint8x16_t load_codes(const std::byte* from) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(from));
}

// Adds 16 k of `Rows` rows of x, `stride` bytes apart, to the dots of 16 columns: four lines of a
// panel of bytes, two of nibbles. Quad: of x, for the first of them.
template <class Format, int Quad, int Rows>
PENSTOCK_INLINE void add_rows(Dots (&dots)[Rows][4], const std::byte* weights,
                              const int8x16_t (&x)[Rows]) {
  if constexpr (Quad < 4) {
    for (int c = 0; c < 4; ++c) {
      const uint8x16_t codes = load_codes(weights + 16 * c);
      if constexpr (Format::kBits == 8) {
        const int8x16_t w = vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80)));
        for (int r = 0; r < Rows; ++r) dots[r][c].template add<Quad>(w, x[r]);
      } else {
        const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15)));
        const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(codes, 4));
        for (int r = 0; r < Rows; ++r) {
          dots[r][c].template add<Quad>(low, x[r]);
          dots[r][c].template add<Quad + 1>(high, x[r]);
        }
      }
    }
    add_rows<Format, Quad + 8 / Format::kBits, Rows>(dots, weights + kLineBytes, x);
  }
}

// Sixteen zero points, as the kernel has codes: bytes signed, nibbles not.
template <int Bits>
PENSTOCK_INLINE void load_zeros(const std::byte* from, int32x4_t (&zeros)[4]) {
  uint8x16_t bytes = load_codes(from);
  if constexpr (Bits == 8) bytes = veorq_u8(bytes, vdupq_n_u8(0x80));
  const int8x16_t codes = vreinterpretq_s8_u8(bytes);
  const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
  zeros[0] = vmovl_s16(vget_low_s16(low));
  zeros[1] = vmovl_s16(vget_high_s16(low));
  zeros[2] = vmovl_s16(vget_low_s16(high));
  zeros[3] = vmovl_s16(vget_high_s16(high));
}

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
  const bool starts_at_zero = bits == 8 || p.zero_points;
  for (int64_t g = 0; g < p.segments; ++g, weights += kScaleBytes) {
    Dots dots[Rows][4];
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < 4; ++c)
        dots[r][c] = Dots::broadcast(starts_at_zero ? 0 : starts[r * row_floats + g]);
    const std::byte* end = weights + p.scales_at;
    for (; weights < end; weights += kStepBytes, codes += kStep) {
      if (ahead)
        for (int64_t at = 0; at < kStepBytes; at += 64)
          __builtin_prefetch(weights + kStreamAhead + at);
      int8x16_t k16[Rows];
      for (int r = 0; r < Rows; ++r) k16[r] = vld1q_s8(codes + r * x.row_bytes);
      add_rows<Format, 0, Rows>(dots, weights, k16);
    }
    const f32x16 scale = Format::scales(weights);
    int32x4_t zeros[4] = {};
    if (p.zero_points) load_zeros<bits>(p.zeros(panel, g), zeros);
    for (int r = 0; r < Rows; ++r) {
      const int32_t start = starts[r * row_floats + g];
      const f32x16 whole = f32x16::each([&](int c) {
        const int32x4_t dot = dots[r][c].total();
        return vcvtq_f32_s32(p.zero_points ? vmlaq_n_s32(dot, zeros[c], start) : dot);
      });
      total[r] = fma(f32x16::broadcast(x_scales[r * row_floats + g]) * scale, whole, total[r]);
    }
  }
  for (int r = 0; r < Rows; ++r) total[r].store(sums + r * kPanelColumns);
}

template <class Format>
constexpr IntMultiply kMultiply[kIntNeonRows] = {multiply<Format, 1>, multiply<Format, 2>,
                                                 multiply<Format, 3>, multiply<Format, 4>};

}  // namespace

IntMultiply int_neon_multiply(WeightFormat format, int64_t rows) {
  return with_format(format, [&]<class Format>(Format) { return kMultiply<Format>[rows - 1]; });
}

}  // namespace penstock

#endif  // AArch64
