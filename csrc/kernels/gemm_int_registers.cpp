// Integer products in vector registers: every instruction set, and the choice for few rows.
#include "gemm_formats.h"
#include "gemm_int_kernel.h"
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

IntMultiply choose(WeightFormat format, int64_t rows, int panels) {
  return with_format(format, [&]<class Format>(Format) {
    return multiply_int_panels<DenseLines<Format::kBits>>(rows, panels);
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
                                           ? int_sparse_multiply(p, band.size(), width)
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
