// Products on the 8-bit grid in vector registers: every instruction set, and the choice for few
// rows.
#include "gemm_grid_line.h"
#include "gemm_order.h"

namespace penstock {
namespace {

// Dots, a row of each panel and a quad of x must fit the registers: 2 * 12 + 3 of 32; of AVX2's 16
// half as wide, those of 4 rows do.
#if defined(__AVX512F__)
constexpr int kGridRows = 12;
constexpr int kGridBlockPanels = 2;
#elif defined(__aarch64__)
constexpr int kGridRows = kGridNeonRows;
constexpr int kGridBlockPanels = 1;
#else
constexpr int kGridRows = 4;
constexpr int kGridBlockPanels = 1;
#endif

// Windows are expanded in registers, again for so many tiles of rows, rather than once into L1 for all.
// (Zen 5, avx512, one thread, K = 2048: 16 rows 0.48 TOP/s expanded, and two tiles of 8 0.69; 32 rows
// 0.61 and 0.69; 64 rows 0.74.)
#if defined(__AVX512F__)
constexpr int64_t kWindowTiles = 3;
#else
constexpr int64_t kWindowTiles = 1;
#endif

#if defined(__aarch64__)
GridMultiply choose(int bits, int64_t rows, int) { return grid_neon_multiply(bits, rows); }
#else

constexpr int kGroupQuads = int(kGridGroup / 4);  // of a group

// dots: [Panels][Rows][16]
template <int Bits, int Rows, int Panels>
void multiply(const GridPanels& p, const QuantizedRows& x, int64_t row, const std::byte* panel,
              int64_t ahead, int32_t* dots) {
  // Each dot waits for the one before it in its chain, so few rows take several chains.
  constexpr int chains = Rows * Panels <= 2 ? 4 : Rows * Panels <= 4 ? 2 : 1;
  i32x16 sums[chains][Panels][Rows];
  for (int c = 0; c < chains; ++c)
    for (int i = 0; i < Panels; ++i)
      for (int r = 0; r < Rows; ++r) sums[c][i][r] = i32x16::broadcast(0);
  const int8_t* x_codes = x.codes_at(row, 0);
  const auto add = [&](const Line<8>* line, int quad) __attribute__((always_inline)) {
    for (int r = 0; r < Rows; ++r)
      for (int i = 0; i < Panels; ++i)
        dot<8>(sums[quad % chains][i][r], line[i], x_codes + r * kGridStep + 4 * quad);
  };
  for (int64_t s = 0; s < p.steps; ++s, x_codes += x.row_step()) {
    const std::byte* const codes = panel + p.step_at(s);
    const auto prefetch = [&](const std::byte* line) __attribute__((always_inline)) {
      if (ahead)
        for (int i = 0; i < Panels; ++i) __builtin_prefetch(line + i * p.panel_bytes + ahead);
    };
    Line<8> line[Panels], second[Panels];
    if constexpr (Bits == 8) {
#pragma GCC unroll 4
      for (int quad = 0; quad < 16; ++quad) {
        prefetch(codes + quad * kLineBytes);
        for (int i = 0; i < Panels; ++i)
          line[i] = Line<8>::load(codes + i * p.panel_bytes + quad * kLineBytes);
        add(line, quad);
      }
    } else {
      const std::byte* const windows = panel + p.windows_at(s);
      prefetch(windows);
#pragma GCC unroll 1
      for (int g = 0; g < kStepGroups; ++g) {
        Window window[Panels];
        for (int i = 0; i < Panels; ++i)
          window[i] = Window::load(windows + i * p.panel_bytes + g * kPanelColumns);
#pragma GCC unroll 4
        for (int quad = kGroupQuads * g; quad < kGroupQuads * g + kGroupQuads; quad += 2) {
          prefetch(codes + quad / 2 * kLineBytes);
          for (int i = 0; i < Panels; ++i)
            expand_lines(window[i], codes + i * p.panel_bytes + quad / 2 * kLineBytes, line[i],
                         second[i]);
          add(line, quad);
          add(second, quad + 1);
        }
      }
    }
  }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) {
      i32x16 sum = sums[0][i][r];
      for (int c = 1; c < chains; ++c) sum = sum + sums[c][i][r];
      sum.store(dots + (i * Rows + r) * kPanelColumns);
    }
}

#if defined(__AVX2__)
// As multiply<4>, for few rows: a group's dots with the codes as they are, its step and origin
// taken in once at its end. Half the instructions, so that memory is waited for and nothing else.
template <int Rows, int Panels>
void multiply_windows(const GridPanels& p, const QuantizedRows& x, int64_t row,
                      const std::byte* panel, int64_t ahead, int32_t* dots) {
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
      i32x16 step[Panels], group[Panels][Rows];
      for (int i = 0; i < Panels; ++i) {
        const i32x16 both = i32x16::widen(windows + i * p.panel_bytes + g * kPanelColumns);
        step[i] = both.masked(15) + i32x16::broadcast(1);
        const i32x16 origin = both.right(4);
        for (int r = 0; r < Rows; ++r)
          group[i][r] = origin.times_short(minus_sums[r * x.groups_stride() + g]);
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
        for (int r = 0; r < Rows; ++r) sums[i][r] = sums[i][r] + group[i][r] * step[i];
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

template <int Bits, int Panels, int Rows = kGridRows>
GridMultiply multiply_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_rows<Bits, Panels, Rows - 1>(rows);
  return multiply<Bits, Rows, Panels>;
}

GridMultiply choose(int bits, int64_t rows, int panels) {
  if (bits == 8)
    return panels == 1 ? multiply_rows<8, 1>(rows) : multiply_rows<8, kGridBlockPanels>(rows);
#if defined(__AVX2__)
  if (rows == 1) return panels == 1 ? multiply_windows<1, 1> : multiply_windows<1, kGridBlockPanels>;
  if (rows == 2) return panels == 1 ? multiply_windows<2, 1> : multiply_windows<2, kGridBlockPanels>;
  if (rows == 3 && panels == 1) return multiply_windows<3, 1>;
  if (rows == 4 && panels == 1) return multiply_windows<4, 1>;
#endif
  return panels == 1 ? multiply_rows<4, 1>(rows) : multiply_rows<4, kGridBlockPanels>(rows);
}

#endif

// Whether so many rows take windows as they are where panels are read one by one, and are faster so
// than with weights expanded to the grid. (One thread of a Zen 4, K = 2048, 3 and 4 rows: 18.6 and
// 16.9 GB/s of weights, expanded 13.2 and 12.7.)
bool has_windows_to_stream(const GridPanels& p, int64_t rows) {
  return kTakesWindows && p.bits == 4 && rows > 2 && rows <= QuantizedRows::kSummedRows;
}

void expand_step(const GridPanels& p, const std::byte* panel, int64_t s, std::byte* to) {
  const std::byte* codes = panel + p.step_at(s);
  const std::byte* windows = panel + p.windows_at(s);
  constexpr int64_t half = kGridTileBytes / 2;
  expand_half(codes, windows, to);
  expand_half(codes + half / 2, windows + kStepGroups / 2 * kPanelColumns, to + half);
}

constexpr int64_t kDotsBytes = 2 * kGridRows * kPanelColumns * int64_t(sizeof(int32_t));

}  // namespace

const int64_t kGridRegisterRows = kGridRows;

int64_t grid_registers_scratch_bytes(const GridPanels& p) {
  return kDotsBytes + (p.bits == 4 ? 2 * p.steps * kGridTileBytes : 0);
}

void grid_linear_registers(const GridPanels& p, const QuantizedRows& x, const Epilogue& e,
                           int64_t rows, Range units, std::byte* scratch) {
  int32_t* const dots = reinterpret_cast<int32_t*>(scratch);
  std::byte* const grid = scratch + kDotsBytes;
  const bool expands = p.bits == 4 && x.tiles > kWindowTiles;  // once for all rows
  GridPanels expanded = p;
  if (expands) {
    expanded.bits = 8;
    expanded.panel_bytes = p.steps * kGridTileBytes;
  }
  const GridPanels& read = expands ? expanded : p;
  const bool streams = rows <= p.tuning.streamed_rows || has_windows_to_stream(p, rows);
  const int side_by_side = streams ? 1 : kGridBlockPanels;
  const Order order(units, p.per_unit, side_by_side);
  for (Place at = order.first(); at.panels; at = order.after(at)) {
    const int64_t first_panel = at.unit * p.per_unit;
    const std::byte* weights = p.data + first_panel * p.panel_bytes;
    if (expands) {
      for (int i = 0; i < at.panels; ++i)
        for (int64_t s = 0; s < p.steps; ++s) {
          for (int64_t line = 0; line < 8; ++line)
            __builtin_prefetch(weights + i * p.panel_bytes + p.step_at(s) + p.tuning.stream_ahead +
                               line * kLineBytes);
          expand_step(p, weights + i * p.panel_bytes, s,
                      grid + (i * p.steps + s) * kGridTileBytes);
        }
      weights = grid;
    }
    for (int64_t tile = 0; tile < x.tiles; ++tile) {
      const int64_t row = tile * x.tile_rows;
      const int64_t some = std::min(x.tile_rows, rows - row);
      const int64_t panel = some * kPanelColumns;
      for (int i = 0, width; i < at.panels; i += width) {
        width = std::min(side_by_side, at.panels - i);
        const int64_t next = width == 1 ? p.tuning.stream_ahead : width * read.panel_bytes;
        choose(read.bits, some, width)(read, x, row, weights + i * read.panel_bytes,
                                       tile == 0 && !expands ? next : 0,
                                       dots + i * panel);
      }
      e.finish_block(at.unit, at.panels, row, some, [&](int i) {
        return GridSums{dots + i * panel,  panel, x.scales + row, x.starts + row,
                        p.scales(first_panel + i), p.panel_bytes / 4};
      });
    }
  }
}

}  // namespace penstock
