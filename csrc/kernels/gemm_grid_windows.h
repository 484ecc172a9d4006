// Products of codes of half a byte as they are, for few rows: a group's dots with its codes, and its
// step and origin taken in once at its end. Half the instructions of codes expanded to the grid, so
// that memory is waited for and nothing else.
#pragma once

#include "gemm_grid_blocks.h"
#include "gemm_int_simd.h"

namespace penstock {

constexpr int kGroupQuads = int(kGridGroup / 4);  // of a group

#if defined(__AVX2__)

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// A group's steps and origins, and its dots, which begin at minus the origin times the row's sum.
struct GroupWindows {
  using Dots = i32x16;
  i32x16 step, origin;

  static PENSTOCK_INLINE GroupWindows load(const std::byte* from) {
    const i32x16 both = i32x16::widen(from);
    return {both.masked(15) + i32x16::broadcast(1), both.right(4)};
  }
  PENSTOCK_INLINE Dots begin(int32_t minus_sum) const { return origin.times_short(minus_sum); }
  PENSTOCK_INLINE void end(i32x16& sum, const Dots& dots, int32_t) const { sum = sum + dots * step; }
};

#else

// The same where a dot of bytes is several instructions: 16 bits hold what 8 k add to a lane, at most
// 8 * 15 * 127, so a group's pairs are added up once, as they are multiplied by the step.
struct GroupWindows {
  struct Dots {
    __m256i lo, hi;  // columns 0-7 and 8-15, two lanes each
  };
  i32x16 steps;   // in both halves of each lane
  i32x16 origin;  // times the step

  static PENSTOCK_INLINE GroupWindows load(const std::byte* from) {
    const i32x16 both = i32x16::widen(from);
    const i32x16 step = both.masked(15) + i32x16::broadcast(1), origin = both.right(4);
    return {{_mm256_or_si256(step.lo, _mm256_slli_epi32(step.lo, 16)),
             _mm256_or_si256(step.hi, _mm256_slli_epi32(step.hi, 16))},
            {_mm256_mullo_epi16(origin.lo, step.lo), _mm256_mullo_epi16(origin.hi, step.hi)}};
  }
  PENSTOCK_INLINE Dots begin(int32_t) const { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  PENSTOCK_INLINE void end(i32x16& sum, const Dots& dots, int32_t minus_sum) const {
    sum = sum + origin.times_short(minus_sum) +
          i32x16{_mm256_madd_epi16(dots.lo, steps.lo), _mm256_madd_epi16(dots.hi, steps.hi)};
  }
};

template <int Bits>
PENSTOCK_INLINE void dot(GroupWindows::Dots& sum, const Line<4>& w, const int8_t* x) {
  const __m256i a = _mm256_set1_epi32(load_quad(x)), b = _mm256_set1_epi32(load_quad(x + 4));
  sum.lo = _mm256_add_epi16(sum.lo, _mm256_add_epi16(_mm256_maddubs_epi16(w.lo[0], a),
                                                     _mm256_maddubs_epi16(w.lo[1], b)));
  sum.hi = _mm256_add_epi16(sum.hi, _mm256_add_epi16(_mm256_maddubs_epi16(w.hi[0], a),
                                                     _mm256_maddubs_epi16(w.hi[1], b)));
}

#endif

// A GridMultiply.
template <int Rows, int Panels>
void multiply_windows(const GridPanels& p, const QuantizedRows& x, int64_t row,
                      const std::byte* panel, int64_t ahead, std::byte*, int32_t* dots) {
  i32x16 sums[Panels][Rows];
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) sums[i][r] = i32x16::broadcast(0);
  const int8_t* x_codes = x.codes_at(row, 0);
  const int32_t* minus_sums = x.minus_sums(row);
  for (int64_t s = 0; s < p.steps; ++s, x_codes += x.row_step(), minus_sums += kStepGroups) {
    const std::byte* const codes = panel + p.step_at(s);
    const std::byte* const windows = panel + p.windows_at(s);
#pragma GCC unroll 4
    for (int g = 0; g < kStepGroups; ++g) {
      GroupWindows window[Panels];
      GroupWindows::Dots group[Panels][Rows];
      const auto minus_sum = [&](int r) __attribute__((always_inline)) {
        return minus_sums[r * x.groups_stride() + g];
      };
      for (int i = 0; i < Panels; ++i) {
        window[i] = GroupWindows::load(windows + i * p.panel_bytes + g * kPanelColumns);
        for (int r = 0; r < Rows; ++r) group[i][r] = window[i].begin(minus_sum(r));
      }
      for (int quad = kGroupQuads * g; quad < kGroupQuads * g + kGroupQuads; quad += 2) {
        const std::byte* const at = codes + quad / 2 * kLineBytes;
        if (ahead)
          for (int i = 0; i < Panels; ++i) __builtin_prefetch(at + i * p.panel_bytes + ahead);
        for (int i = 0; i < Panels; ++i) {
          const Line<4> line = Line<4>::load(at + i * p.panel_bytes);
          for (int r = 0; r < Rows; ++r)
            dot<4>(group[i][r], line, x_codes + r * kGridStep + 4 * quad);
        }
      }
      for (int i = 0; i < Panels; ++i)
        for (int r = 0; r < Rows; ++r) window[i].end(sums[i][r], group[i][r], minus_sum(r));
    }
    if (ahead)
      for (int i = 0; i < Panels; ++i) __builtin_prefetch(windows + i * p.panel_bytes + ahead);
  }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) {
      // The epilogue expects weights plus 128.
      const i32x16 offset = i32x16::broadcast(-x.starts[row + r]);
      (sums[i][r] + offset).store(dots + (i * Rows + r) * kPanelColumns);
    }
}

#endif

}  // namespace penstock
