// The blocks of products on the 8-bit grid on AArch64.
#include "dots_neon.h"
#include "gemm_grid_line.h"

#if defined(__aarch64__)

namespace penstock {
namespace {

// Two quads of a group of codes of 4 bits, on the grid.
struct WindowCodes {
  const std::byte* codes;
  Window window;

  PENSTOCK_INLINE void quads(int eight, uint8x16_t (&first)[4], uint8x16_t (&second)[4]) const {
    Line<8> one, two;
    window.expand(codes + eight * kLineBytes, one, two);
    for (int c = 0; c < 4; ++c) first[c] = one.quads[0][c], second[c] = two.quads[0][c];
  }
};

// dots: [Rows][16]
template <int Bits, int Rows>
void multiply(const GridPanels& p, const QuantizedRows& x, int64_t row, const std::byte* panel,
              int64_t ahead, std::byte*, int32_t* dots) {
  constexpr int64_t kGroupBytes = kGridGroup * kPanelColumns * Bits / 8;
  auto sums = Dots<Rows>::of([](int) { return i32x16::broadcast(0); });
  const int8_t* x_codes = x.codes_at(row, 0);
  for (int64_t s = 0; s < p.steps; ++s, x_codes += x.row_step()) {
    const std::byte* codes = panel + p.step_at(s);
    const std::byte* const windows = panel + p.windows_at(s);
    if (ahead && Bits == 4) __builtin_prefetch(windows + ahead);
#pragma GCC unroll 1
    for (int64_t g = 0; g < kStepGroups; ++g, codes += kGroupBytes) {
      if (ahead)
        for (int64_t line = 0; line < kGroupBytes; line += kLineBytes)
          __builtin_prefetch(codes + line + ahead);
      const int8_t* const k = x_codes + g * kGridGroup;
      if constexpr (Bits == 8)
        sums.add(PlainCodes<8>{codes}, k, kGridStep);
      else
        sums.add(WindowCodes{codes, Window::load(windows + g * kPanelColumns)}, k, kGridStep);
    }
  }
  for (int r = 0; r < Rows; ++r) sums.row(r).store(dots + r * kPanelColumns);
}

template <int Bits, int Rows = kGridNeonRows>
GridMultiply multiply_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_rows<Bits, Rows - 1>(rows);
  return multiply<Bits, Rows>;
}

}  // namespace

GridMultiply grid_neon_multiply(int bits, int64_t rows) {
  return bits == 8 ? multiply_rows<8>(rows) : multiply_rows<4>(rows);
}

}  // namespace penstock

#endif  // AArch64
