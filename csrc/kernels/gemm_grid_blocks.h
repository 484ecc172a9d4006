// What the kernels of products on the 8-bit grid share: how panels and rows of x lie in memory.
#pragma once

#include "gemm_epilogue.h"
#include "gemm_panels.h"

namespace penstock {

constexpr int64_t kGridStep = 64;        // k of 16 lines, and of an AMX tile
constexpr int64_t kGridTileBytes = kGridStep * kPanelColumns;
constexpr int64_t kWindowedK = 128;      // with 4 bits: k whose windows lie together
constexpr int64_t kWindowsBytes = kWindowedK / kGridGroup * kPanelColumns;
constexpr int64_t kWindowedBytes = kWindowedK * kPanelColumns / 2 + kWindowsBytes;
constexpr int64_t kStepGroups = kGridStep / kGridGroup;

// Whether few rows are multiplied by codes as they are (gemm_grid_registers.cpp).
#if defined(__AVX2__)
constexpr bool kTakesWindows = true;
#else
constexpr bool kTakesWindows = false;
#endif

// Whether more rows are by codes less their origin (gemm_grid_centered_avx2.h), and so are themselves plus 128.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool kCentersCodes = true;
#else
constexpr bool kCentersCodes = false;
#endif

// Panels seen as steps, 64 k each. What a window calls its step is a distance between points and has
// nothing to do with these.
struct GridPanels : PanelView {
  int64_t steps;

  explicit GridPanels(const PanelView& p) : PanelView(p), steps(p.depth / kGridStep) {}

  // Where a step's codes begin in a panel.
  int64_t step_at(int64_t s) const {
    return bits == 8 ? s * kGridTileBytes
                     : s / 2 * kWindowedBytes + s % 2 * (kGridStep * kPanelColumns / 2);
  }
  // Where the windows of its groups begin.
  int64_t windows_at(int64_t s) const {
    return (s / 2 + 1) * kWindowedBytes - kWindowsBytes + s % 2 * kStepGroups * kPanelColumns;
  }
  const float* scales(int64_t panel) const {
    return reinterpret_cast<const float*>(data + panel * panel_bytes + scales_at);
  }
};

// Rows of x, quantized: [slice][row tile][step][row][64 k], so that a kernel's operands lie
// together; beside them each row's scale and what its dots start from.
struct QuantizedRows {
  static constexpr int64_t kSummedRows = 4;  // that products of windows as they are take, at most

  std::byte* codes;
  float* scales;
  int32_t* starts;   // -128 * (sum of the row): takes the weights' offset away
  int32_t* group_sums;  // of up to kSummedRows rows, [row][group]: minus the group's sum
  bool shifted;       // codes are plus 128
  int64_t tile_rows;  // an AMX tile's, or a band's of the kernel for registers
  int64_t tiles;
  int64_t steps;
  int64_t slice_steps;

  // windows: whether they are for codes with windows, which are taken as they are or less their origin.
  QuantizedRows(std::byte* memory, int64_t rows, int64_t per_tile, int64_t all_steps,
                int64_t steps_per_slice, bool windows)
      : codes(memory),
        scales(reinterpret_cast<float*>(memory + ceil_div(rows, per_tile) * per_tile * all_steps *
                                                     kGridStep)),
        starts(reinterpret_cast<int32_t*>(scales + round_up(rows, 16))),
        group_sums(windows && rows <= kSummedRows ? starts + round_up(rows, 16) : nullptr),
        shifted(kCentersCodes && windows && rows > kSummedRows),
        tile_rows(per_tile),
        tiles(ceil_div(rows, per_tile)),
        steps(all_steps),
        slice_steps(steps_per_slice) {}

  static int64_t bytes(int64_t rows, int64_t per_tile, int64_t all_steps) {
    const int64_t sums =
        std::min(rows, kSummedRows) * kStepGroups * all_steps * int64_t(sizeof(int32_t));
    return round_up(rows, per_tile) * all_steps * kGridStep + 8 * round_up(rows, 16) +
           round_up(sums, 64);
  }
  int64_t groups_stride() const { return kStepGroups * steps; }
  int32_t* minus_sums(int64_t row) const { return group_sums + row * groups_stride(); }

  int64_t row_step() const { return tile_rows * kGridStep; }  // bytes from step to step
  // The first row of a row tile at a slice's first step.
  std::byte* tile(int64_t t, int64_t slice) const {
    const int64_t first = slice * slice_steps;
    const int64_t here = std::min(slice_steps, steps - first);
    return codes + (first * tiles + t * here) * row_step();
  }
  int8_t* codes_at(int64_t row, int64_t step) const {
    return reinterpret_cast<int8_t*>(tile(row / tile_rows, step / slice_steps) +
                                     step % slice_steps * row_step() +
                                     row % tile_rows * kGridStep);
  }
};

// Dots of 16 columns as stored by a kernel, for Epilogue::finish: [part][rows][16].
struct GridSums {
  const int32_t* dots;
  int64_t part_ints;  // from gate to up
  const float* x_scales;
  const int32_t* starts;
  const float* w_scales;  // of the first panel
  int64_t scale_floats;   // from one panel's to the next's

  PENSTOCK_INLINE f32x16 get(int part, int64_t row) const {
    alignas(64) int32_t sums[f32x16::lanes];
    const int32_t* from = dots + part * part_ints + row * kPanelColumns;
#if defined(__AVX512F__)
    (void)sums;
    const __m512i sum = _mm512_add_epi32(_mm512_load_si512(from), _mm512_set1_epi32(starts[row]));
    const f32x16 dot{_mm512_cvtepi32_ps(sum)};
#elif defined(__aarch64__)
    (void)sums;
    const f32x16 dot = f32x16::each([&](int c) {
      return vcvtq_f32_s32(vaddq_s32(vld1q_s32(from + 4 * c), vdupq_n_s32(starts[row])));
    });
#else
    alignas(64) float floats[f32x16::lanes];
    for (int i = 0; i < f32x16::lanes; ++i) sums[i] = from[i] + starts[row];
    for (int i = 0; i < f32x16::lanes; ++i) floats[i] = float(sums[i]);
    const f32x16 dot = f32x16::load(floats);
#endif
    return dot * (f32x16::broadcast(x_scales[row]) * f32x16::load(w_scales + part * scale_floats));
  }
};

// A block in vector registers: so many rows of x from `row` on by panels from `panel` on. ahead: how far
// weights are prefetched, or 0. grid: where a block that leaves codes of half a byte expanded puts them.
// dots: [panel][row][16].
using GridMultiply = void (*)(const GridPanels& p, const QuantizedRows& x, int64_t row, const std::byte* panel,
                              int64_t ahead, std::byte* grid, int32_t* dots);

#if defined(__aarch64__)
constexpr int kGridNeonRows = 4;  // as kIntNeonRows
// Up to so many rows by one panel.
GridMultiply grid_neon_multiply(int bits, int64_t rows);
#endif

// The kernels. Rows [0, rows) of x, output columns of `units`.
void grid_linear_registers(const GridPanels& p, const QuantizedRows& x, const Epilogue& e,
                           int64_t rows, Range units, std::byte* scratch);
int64_t grid_registers_scratch_bytes(const GridPanels& p);
int64_t grid_register_rows(int bits);  // of x that the kernel takes at once

void grid_linear_amx(const GridPanels& p, const QuantizedRows& x, const Epilogue& e, int64_t rows,
                     Range units, std::byte* scratch);
int64_t grid_amx_scratch_bytes(const GridPanels& p, int64_t rows);
// Of the depth, for so many rows, at once.
int64_t grid_amx_slice_steps(const GridPanels& p, int64_t rows);

}  // namespace penstock
