// Integer products in vector registers: every instruction set, and the choice for few rows.
#include "gemm_formats.h"
#include "gemm_int_blocks.h"
#include "gemm_int_sparse.h"
#include "gemm_order.h"

namespace penstock {
namespace {

#if defined(__aarch64__)
constexpr int kIntRows = kIntNeonRows;
constexpr int kIntPanels = 1;

IntMultiply choose(WeightFormat format, int64_t rows, int) {
  return int_neon_multiply(format, rows);
}
#else

// Dots, their float sums and the weights must fit the registers: 2 * 6 * 2 + 4 of 32; of AVX2's 16
// half as wide, only the dots of 4 rows do.
#if defined(__AVX512F__)
constexpr int kIntRows = 6;
constexpr int kIntPanels = 2;
#else
constexpr int kIntRows = 4;
constexpr int kIntPanels = 1;
#endif

template <class Format, int Rows, int Panels>
void multiply(const PanelView& p, const IntRows& x, int64_t row, const std::byte* weights,
              int64_t ahead, float* sums) {
  constexpr int bits = Format::kBits;
  // Each dot waits for the one before it in its chain; lines, an even number, go to two in turn.
  constexpr int chains = Rows * Panels == 1 ? 2 : 1;
  f32x16 total[Panels][Rows];
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r] = f32x16::zero();

  const int8_t* codes = x.codes(row);
  const float* x_scales = x.scales(row);
  const int32_t* starts = x.starts(row);
  const int64_t row_floats = x.row_bytes / 4;
  const std::byte* const panel = weights;
  [[maybe_unused]] const i32x16 kept =
      i32x16::broadcast(kept_zero(bits, Format::kOffset) - Format::kOffset);
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
    const std::byte* next = weights + ahead;
    if (Panels == 1 && next - panel >= p.shifts_at) next += p.panel_bytes - p.shifts_at;
    const auto prefetch = [&](int64_t line) __attribute__((always_inline)) {
      if (ahead)
        for (int i = 0; i < Panels; ++i) __builtin_prefetch(next + i * p.panel_bytes + line);
    };
    for (int64_t at = 0; at < p.scales_at; at += chains * kLineBytes)
#pragma GCC unroll 2
      for (int c = 0; c < chains; ++c, codes += 4 * kQuads<bits>) {
        const int64_t line = at + c * kLineBytes;
        prefetch(line);
        Line<bits> lines[Panels];
        for (int i = 0; i < Panels; ++i)
          lines[i] = Format::load(weights + i * p.panel_bytes + line);
        for (int r = 0; r < Rows; ++r)
          for (int i = 0; i < Panels; ++i)
            dot<bits>(dots[c][i][r], lines[i], codes + r * x.row_bytes);
      }
    weights += p.scales_at;
    prefetch(p.scales_at);
    for (int i = 0; i < Panels; ++i) {
      const f32x16 scale = Format::scales(weights + i * p.panel_bytes);
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

template <class Format, int Panels, int Rows = kIntRows>
IntMultiply multiply_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_rows<Format, Panels, Rows - 1>(rows);
  return multiply<Format, Rows, Panels>;
}

IntMultiply choose(WeightFormat format, int64_t rows, int panels) {
  return with_format(format, [&]<class Format>(Format) {
    return panels == 1 ? multiply_rows<Format, 1>(rows) : multiply_rows<Format, kIntPanels>(rows);
  });
}

#endif

}  // namespace

// Sparse panels are expanded on the way by one band, and once into scratch for several.
void int_linear_registers(const PanelView& p, const IntRows& x, const Epilogue& e, int64_t rows,
                          Range units, std::byte* hot, std::byte* expanded) {
  float* sums = reinterpret_cast<float*>(hot);
  // One stream of memory is prefetched some way ahead; of panels side by side, the next ones are.
  const int side_by_side = rows <= p.tuning.streamed_rows ? 1 : kIntPanels;
  const Order order(units, p.per_unit, side_by_side);
  const int64_t row_blocks = ceil_div(rows, int_row_block(x.row_bytes, p.tuning));
  const PanelView dense = dense_of(p);
  for (int64_t index = 0; index < row_blocks; ++index) {
    const Range row_block = even_share(rows, index, row_blocks);
    const int64_t bands = ceil_div(row_block.size(), kIntRows);
    const bool expand = p.sparse && bands > 1;
    const PanelView& as = expand ? dense : p;
    for (Place at = order.first(); at.panels; at = order.after(at)) {
      const std::byte* weights = p.data + at.unit * p.per_unit * p.panel_bytes;
      if (expand) {
        for (int i = 0; i < at.panels; ++i)
          expand_sparse_panel(p, weights + i * p.panel_bytes, expanded + i * dense.panel_bytes);
        weights = expanded;
      }
      for (int64_t b = 0; b < bands; ++b) {
        const Range band = even_share(row_block.size(), b, bands);
        const int64_t first = row_block.first + band.first;
        const int64_t panel = band.size() * kPanelColumns;
        for (int i = 0, width; i < at.panels; i += width) {
          width = std::min(side_by_side, at.panels - i);
          const int64_t next = width == 1 ? p.tuning.stream_ahead : width * p.panel_bytes;
          const IntMultiply multiply = as.sparse
                                           ? int_sparse_multiply(p.bits, band.size(), width)
                                           : choose(p.format, band.size(), width);
          multiply(as, x, first, weights + i * as.panel_bytes, b == 0 && !expand ? next : 0,
                   sums + i * panel);
        }
        e.finish_block(at.unit, at.panels, first, band.size(),
                       [&](int i) { return FloatSums{sums + i * panel, panel}; });
      }
    }
  }
}

int64_t int_registers_hot_bytes() {
  return 2 * kIntRows * kPanelColumns * int64_t(sizeof(float));
}

}  // namespace penstock
