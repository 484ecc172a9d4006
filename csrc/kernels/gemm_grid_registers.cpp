// Products on the 8-bit grid in vector registers: every instruction set, and the choice for few
// rows.
#include "gemm_grid_centered_avx2.h"
#include "gemm_grid_line.h"
#include "gemm_grid_windows.h"
#include "gemm_order.h"

namespace penstock {
namespace {

// Dots, a row of each panel and a quad of x must fit the registers: 2 * 12 + 3 of 32; of 16
// half as wide, those of 6 rows by VPDPBUSD, of 4 by the instructions of AVX2.
#if defined(__AVX512F__)
constexpr int kGridRows = 12;
constexpr int kGridBlockPanels = 2;
#elif defined(__AVXVNNI__)
constexpr int kGridRows = 6;
constexpr int kGridBlockPanels = 1;
#elif defined(__aarch64__)
constexpr int kGridRows = kGridNeonRows;
constexpr int kGridBlockPanels = 1;
#else
constexpr int kGridRows = 4;
constexpr int kGridBlockPanels = 1;
#endif

#if defined(__aarch64__)

constexpr bool kBlocksLeave = false;

GridMultiply choose(int bits, int64_t rows, int, bool, bool, bool) { return grid_neon_multiply(bits, rows); }

#else

constexpr bool kBlocksLeave = true;  // codes expanded, where they are asked to

// So many quads are expanded before the first of them is multiplied. (Zen 5, avx512, 10, 12 and 24 rows: two
// 0.66, 0.67 and 0.66 TOP/s, four 0.71, 0.70 and 0.75; 8 rows 0.68 and 0.66.)
constexpr int expanded_quads([[maybe_unused]] int rows) {
#if defined(__AVX512F__)
  return rows > 8 ? 4 : 2;
#else
  return 2;
#endif
}

// A block: some rows by panels side by side. dots: [Panels][Rows][16]. Weights are prefetched into L1 or, with
// Level 2, into L2. With `Leaves`, panels of codes of half a byte are left in `grid`, expanded, for other rows.
template <int Bits, int Rows, int Panels, int Level, bool Leaves = false>
void multiply(const GridPanels& p, const QuantizedRows& x, int64_t row, const std::byte* panel,
              int64_t ahead, [[maybe_unused]] std::byte* grid, int32_t* dots) {
  // Each dot waits for the one before it in its chain, which takes less time than memory but of codes of
  // half a byte. (GCC 12 keeps several sums of 3 and 4 rows in memory.)
  constexpr int chains = Bits == 4 && Rows * Panels <= 2 ? 2 : 1;
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
        for (int i = 0; i < Panels; ++i)
          __builtin_prefetch(line + i * p.panel_bytes + ahead, 0, Level == 2 ? 2 : 3);
    };
    if constexpr (Bits == 8) {
#pragma GCC unroll 4
      for (int quad = 0; quad < 16; ++quad) {
        Line<8> line[Panels];
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
        constexpr int kExpanded = expanded_quads(Rows);
        Line<8> lines[kExpanded][Panels];
#pragma GCC unroll 4
        for (int quad = 0; quad < kGroupQuads; ++quad) {
          const int at = kGroupQuads * g + quad;
          if (quad % 2 == 0) prefetch(codes + at / 2 * kLineBytes);
          if (quad % kExpanded == 0)
            for (int half = 0; half < kExpanded / 2; ++half)
              for (int i = 0; i < Panels; ++i)
                expand_lines(window[i],
                             codes + i * p.panel_bytes + (at / 2 + half) * kLineBytes,
                             Leaves ? grid + (i * p.steps + s) * kGridTileBytes +
                                          (at + 2 * half) * kLineBytes
                                    : nullptr,
                             lines[2 * half][i], lines[2 * half + 1][i]);
          add(lines[quad % kExpanded], at);
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

template <int Bits, int Panels, int Level, int Rows = kGridRows>
GridMultiply multiply_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_rows<Bits, Panels, Level, Rows - 1>(rows);
  return multiply<Bits, Rows, Panels, Level>;
}

// Of several tiles of even height, which have more than half of the most rows.
template <int Panels, int Rows = kGridRows>
GridMultiply multiply_first(int64_t rows) {
  if constexpr (Rows > kGridRows / 2 + 1)
    if (rows < Rows) return multiply_first<Panels, Rows - 1>(rows);
  return multiply<4, Rows, Panels, 1, true>;
}

// windows: whether the rows have what products of windows as they are take. leaves: whether other rows take
// the codes of half a byte expanded. into_l2: Tuning::shared_into_l2.
GridMultiply choose(int bits, int64_t rows, int panels, [[maybe_unused]] bool windows, bool leaves,
                    [[maybe_unused]] bool into_l2) {
#if defined(__AVX512F__)
  // Weights of half a byte take so many instructions that more rows than these gain nothing. (Zen 4, one thread,
  // 3072x1024 and 1024x3072, best of two alternating runs, into L1 and into L2, Gop/s: 8 bits, 10 rows 264 and 287, 359
  // and 372, 16 rows 346 and 356, 382 and 391; 4 bits, 5 rows 206 and 213, 262 and 256, 8 rows 294 and 306, 292 and 282.)
  constexpr int most = 7;
  if (panels > 1 && into_l2) {
    if (bits == 8) return multiply_rows<8, kGridBlockPanels, 2>(rows);
    if (rows > 2 && rows <= most && !leaves) return multiply_rows<4, kGridBlockPanels, 2, most>(rows);
  }
#endif
  if (leaves) return panels == 1 ? multiply_first<1>(rows) : multiply_first<kGridBlockPanels>(rows);
  if (bits == 8)
    return panels == 1 ? multiply_rows<8, 1, 1>(rows) : multiply_rows<8, kGridBlockPanels, 1>(rows);
#if defined(__AVX2__)
  if (windows && rows == 1)
    return panels == 1 ? multiply_windows<1, 1> : multiply_windows<1, kGridBlockPanels>;
  if (windows && rows == 2)
    return panels == 1 ? multiply_windows<2, 1> : multiply_windows<2, kGridBlockPanels>;
  if (windows && rows == 3 && panels == 1) return multiply_windows<3, 1>;
  if (windows && rows == 4 && panels == 1) return multiply_windows<4, 1>;
#endif
  return panels == 1 ? multiply_rows<4, 1, 1>(rows) : multiply_rows<4, kGridBlockPanels, 1>(rows);
}

#endif

// To lines of the grid.
void expand_panel(const GridPanels& p, const std::byte* panel, std::byte* to) {
  constexpr int64_t half = kGridTileBytes / 2;
  for (int64_t s = 0; s < p.steps; ++s, to += kGridTileBytes) {
    const std::byte* const codes = panel + p.step_at(s);
    const std::byte* const windows = panel + p.windows_at(s);
    for (int64_t line = 0; line < 8; ++line)
      __builtin_prefetch(codes + p.tuning.stream_ahead + line * kLineBytes);
    expand_half(codes, windows, to);
    expand_half(codes + half / 2, windows + kStepGroups / 2 * kPanelColumns, to + half);
  }
}

// Whether so many rows take windows as they are where panels are read one by one, and are faster so
// than with weights expanded to the grid. (One thread of a Zen 4, K = 2048, 3 and 4 rows: 18.6 and
// 16.9 GB/s of weights, expanded 13.2 and 12.7.)
bool has_windows_to_stream(const GridPanels& p, int64_t rows) {
  return kTakesWindows && p.bits == 4 && rows > 2 && rows <= QuantizedRows::kSummedRows;
}

constexpr int kWindowedRows = kCentersCodes ? kCenteredRows : kGridRows;
constexpr int64_t kDotsBytes = 2 * std::max(kGridRows, kWindowedRows) * kPanelColumns * int64_t(sizeof(int32_t));

// Of a panel of codes of half a byte, made ready for several tiles.
int64_t ready_bytes(const GridPanels& p) {
  return kCentersCodes ? centered_bytes(p) : p.steps * kGridTileBytes;
}

GridSums sums_of(const GridPanels& p, const QuantizedRows& x, int64_t row, int64_t panel, const int32_t* dots,
                 int64_t panel_ints) {
  return {dots, panel_ints, x.scales + row, x.starts + row, p.scales(panel), p.panel_bytes / 4};
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
void linear_centered(const GridPanels& p, const QuantizedRows& x, const Epilogue& e, int64_t rows, Range units,
                     std::byte* ready, int32_t* dots) {
  const int64_t bytes = centered_bytes(p);
  const Order order(units, p.per_unit, 1);
  for (Place at = order.first(); at.panels; at = order.after(at)) {
    const int64_t first_panel = at.unit * p.per_unit;
    const std::byte* const panels = p.data + first_panel * p.panel_bytes;
    for (int i = 0; i < at.panels; ++i) center_panel(p, panels + i * p.panel_bytes, ready + i * bytes);
    for (int64_t row = 0; row < rows; row += x.tile_rows) {
      const int64_t some = std::min(x.tile_rows, rows - row), panel = some * kPanelColumns;
      const int64_t ahead = row == 0 ? at.panels * p.panel_bytes : 0;
      for (int i = 0; i < at.panels; ++i)
        centered_rows(some)(p, x, row, panels + i * p.panel_bytes, ahead, ready + i * bytes, dots + i * panel);
      e.finish_block(at.unit, at.panels, row, some,
                     [&](int i) { return sums_of(p, x, row, first_panel + i, dots + i * panel, panel); });
    }
  }
}
#endif

}  // namespace

int64_t grid_register_rows(int bits) { return bits == 4 ? kWindowedRows : kGridRows; }

int64_t grid_registers_scratch_bytes(const GridPanels& p) {
  return kDotsBytes + (p.bits == 4 ? 2 * ready_bytes(p) : 0);
}

void grid_linear_registers(const GridPanels& p, const QuantizedRows& x, const Epilogue& e,
                           int64_t rows, Range units, std::byte* scratch) {
  int32_t* const dots = reinterpret_cast<int32_t*>(scratch);
  std::byte* const grid = scratch + kDotsBytes;
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
  if (x.shifted) return linear_centered(p, x, e, rows, units, grid, dots);
#endif
  // Codes of half a byte are expanded once for several tiles, which the first does where its blocks can.
  GridPanels expanded = p;
  if (p.bits == 4) {
    expanded.bits = 8;
    expanded.panel_bytes = p.steps * kGridTileBytes;
  }
  const bool expands = p.bits == 4 && x.tiles > 1 && !x.group_sums;
  const bool streams = rows <= p.tuning.streamed_rows || has_windows_to_stream(p, rows);
  const int side_by_side = streams ? 1 : kGridBlockPanels;
  const Order order(units, p.per_unit, side_by_side);
  for (Place at = order.first(); at.panels; at = order.after(at)) {
    const int64_t first_panel = at.unit * p.per_unit;
    const std::byte* const panels = p.data + first_panel * p.panel_bytes;
    if (expands && !kBlocksLeave)
      for (int i = 0; i < at.panels; ++i)
        expand_panel(p, panels + i * p.panel_bytes, grid + i * expanded.panel_bytes);
    for (int64_t tile = 0; tile < x.tiles; ++tile) {
      const bool leaves = expands && kBlocksLeave && tile == 0;
      const bool reads_grid = expands && !leaves;
      const GridPanels& read = reads_grid ? expanded : p;
      const std::byte* const weights = reads_grid ? grid : panels;
      const int64_t row = tile * x.tile_rows;
      const int64_t some = std::min(x.tile_rows, rows - row);
      const int64_t panel = some * kPanelColumns;
      for (int i = 0, width; i < at.panels; i += width) {
        width = std::min(side_by_side, at.panels - i);
        const int64_t next = width == 1 ? p.tuning.stream_ahead : width * p.panel_bytes;
        choose(read.bits, some, width, x.group_sums, leaves, p.tuning.shared_into_l2)(
            read, x, row, weights + i * read.panel_bytes, tile == 0 && !reads_grid ? next : 0,
            grid + i * expanded.panel_bytes, dots + i * panel);
      }
      e.finish_block(at.unit, at.panels, row, some,
                     [&](int i) { return sums_of(p, x, row, first_panel + i, dots + i * panel, panel); });
    }
  }
}

}  // namespace penstock
