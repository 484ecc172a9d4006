// The kernel of integer products in vector registers: of lines as dense panels have them, and of those
// that sparse ones are expanded to. Dots are exact, and sums of floats in one order, whatever they are.
//
// A Source says
//   kBits
//   kLoads, kRunBytes      Lines of a run, and its bytes
//   Zero, zero(p, panel, g)   what codes of group g become that are not held
//   load(run, i, zero)     Line i of a run
#pragma once

#include "gemm_int_blocks.h"

#if !defined(__aarch64__)

namespace penstock {

// Dots, their float sums and the weights must fit the registers: 2 * 6 * 2 + 4 of 32; of AVX2's 16
// half as wide, only the dots of 4 rows do.
#if defined(__AVX512F__)
constexpr int kIntRows = 6;
constexpr int kIntPanels = 2;
#else
constexpr int kIntRows = 4;
constexpr int kIntPanels = 1;
#endif

template <int Bits>
struct DenseLines {
  static constexpr int kBits = Bits, kLoads = 1;
  static constexpr int64_t kRunBytes = kLineBytes;
  struct Zero {};
  static PENSTOCK_INLINE Zero zero(const PanelView&, const std::byte*, int64_t) { return {}; }
  static PENSTOCK_INLINE Line<Bits> load(const std::byte* run, int, Zero) {
    return Line<Bits>::load(run);
  }
};

template <class Source, int Rows, int Panels>
void multiply_int(const PanelView& p, const IntRows& x, int64_t row, const std::byte* weights,
                  int64_t ahead, float* sums) {
  constexpr int bits = Source::kBits;
  // Each dot waits for the one before it in its chain; lines, an even number, go to two in turn.
  constexpr int chains = Rows * Panels == 1 ? 2 : 1;
  constexpr int runs = std::max(1, chains / Source::kLoads), loads = runs * Source::kLoads;
  constexpr int64_t run_bytes = runs * Source::kRunBytes;
  static_assert(run_bytes <= loads * kLineBytes);  // each load has a line to fetch at most
  f32x16 total[Panels][Rows];
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r] = f32x16::zero();

  const int8_t* codes = x.codes(row);
  const float* x_scales = x.scales(row);
  const int32_t* starts = x.starts(row);
  const int64_t row_floats = x.row_bytes / 4;
  const std::byte* const panel = weights;
  [[maybe_unused]] const i32x16 kept =
      i32x16::broadcast(kept_zero(bits, code_offset(bits)) - code_offset(bits));
  for (int64_t g = 0; g < p.segments; ++g) {
    i32x16 dots[chains][Panels][Rows];
    for (int c = 0; c < chains; ++c)
      for (int r = 0; r < Rows; ++r)
        for (int i = 0; i < Panels; ++i)
          dots[c][i][r] = i32x16::broadcast(c ? 0 : starts[r * row_floats + g]);
    if (p.zero_points)
      for (int i = 0; i < Panels; ++i) {
        const std::byte* from = p.zeros(panel, g) + i * p.panel_bytes;
        const i32x16 zero = i32x16::widen(from) + kept;
        // Of the next panels: zeros lie behind all groups, far from what is streamed.
        if (ahead && g % 4 == 0) __builtin_prefetch(from + Panels * p.panel_bytes);
        for (int r = 0; r < Rows; ++r) dots[0][i][r] = dots[0][i][r] * zero;
      }
    typename Source::Zero left_out[Panels];
    for (int i = 0; i < Panels; ++i)
      left_out[i] = Source::zero(p, panel + i * p.panel_bytes, g);
    // Two panels are more than L1 holds. (Zen 4, the next two into L1 and into L2, GB/s of one thread: int4 by 128,
    // 4 and 8 rows, 14.7 and 23.9, 9.6 and 12.5; 2:4 int8, 4 rows, 16.9 and 21.3; int8, 8 rows, 14.7 and 15.4.)
    const std::byte* next = weights + ahead;
    if (Panels == 1 && next - panel >= p.shifts_at) next += p.panel_bytes - p.shifts_at;
    const auto prefetch = [&](int64_t line) __attribute__((always_inline)) {
      if (ahead)
        for (int i = 0; i < Panels; ++i)
          __builtin_prefetch(next + i * p.panel_bytes + line, 0, Panels > 1 ? 2 : 3);
    };
    for (int64_t at = 0; at < p.scales_at; at += run_bytes)
#pragma GCC unroll 8
      for (int l = 0; l < loads; ++l, codes += 4 * kQuads<bits>) {
        if (l * kLineBytes < run_bytes) prefetch(at + l * kLineBytes);
        const std::byte* const run =
            weights + at + l / Source::kLoads * Source::kRunBytes;
        Line<bits> lines[Panels];
        for (int i = 0; i < Panels; ++i)
          lines[i] = Source::load(run + i * p.panel_bytes, l % Source::kLoads, left_out[i]);
        for (int r = 0; r < Rows; ++r)
          for (int i = 0; i < Panels; ++i)
            dot<bits>(dots[l % chains][i][r], lines[i], codes + r * x.row_bytes);
      }
    weights += p.scales_at;
    prefetch(p.scales_at);
    for (int i = 0; i < Panels; ++i) {
      const f32x16 scale =
          f32x16::load(reinterpret_cast<const float*>(weights + i * p.panel_bytes));
      for (int r = 0; r < Rows; ++r) {
        i32x16 dot = dots[0][i][r];
        for (int c = 1; c < chains; ++c) dot = dot + dots[c][i][r];
        total[i][r] = fma(f32x16::broadcast(x_scales[r * row_floats + g]) * scale, dot.to_float(),
                          total[i][r]);
      }
    }
    weights += kScaleBytes;
  }

  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r].store(sums + (i * Rows + r) * kPanelColumns);
}

// Of so many rows, up to kIntRows.
template <class Source, int Panels, int Rows = kIntRows>
IntMultiply multiply_int_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_int_rows<Source, Panels, Rows - 1>(rows);
  return multiply_int<Source, Rows, Panels>;
}

// By one panel or kIntPanels.
template <class Source>
IntMultiply multiply_int_panels(int64_t rows, int panels) {
  return panels == 1 ? multiply_int_rows<Source, 1>(rows)
                     : multiply_int_rows<Source, kIntPanels>(rows);
}

}  // namespace penstock

#endif
