#include "gemm_grid.h"

#include <bit>
#include <cstring>

#include "../simd.h"
#include "gemm_grid_blocks.h"
#include "gemm_int_blocks.h"
#include "gemm_int_simd.h"
#include "gemm_product.h"
#include "hadamard.h"

namespace penstock {
namespace {

constexpr bool takes_tiles([[maybe_unused]] const GridPanels& p, [[maybe_unused]] int64_t rows) {
#if defined(__AMX_INT8__)
  return rows >= p.tuning.tile_rows_from;
#else
  return false;
#endif
}

QuantizedRows rows_in(std::byte* memory, const GridPanels& p, int64_t rows) {
#if defined(__AMX_INT8__)
  if (takes_tiles(p, rows))
    return {memory, rows, std::min<int64_t>(rows, 16), p.steps, grid_amx_slice_steps(p, rows), false};
#endif
  // Bands of even height: one of a single row takes nearly as long as one of six. Where arithmetic takes
  // less time than memory, the first has as much of it as can be. (Zen 5, avx512, 8 bits, 13, 16 and 24 rows,
  // even 0.57, 0.64 and 0.83 TOP/s, full 0.68, 0.78 and 0.84.)
#if defined(__AVX512F__) || defined(__aarch64__)
  const int64_t bands = p.bits == 4 ? ceil_div(rows, grid_register_rows(4)) : 1;
#else
  const int64_t bands = ceil_div(rows, grid_register_rows(p.bits));
#endif
  return {memory, rows, std::min(ceil_div(rows, bands), grid_register_rows(p.bits)), p.steps, p.steps,
          kTakesWindows && p.bits == 4};
}

// Smaller than any activation that matters, and its reciprocal is finite.
constexpr float kLeastMagnitude = 1e-30f;

void quantize_row(const float* x, int64_t k, const QuantizedRows& to, int64_t row) {
  constexpr int64_t lanes = f32x16::lanes;
  f32x16 most = f32x16::zero(), nothing = f32x16::zero();
  const int64_t whole = k / lanes * lanes;
  for (int64_t i = 0; i < k; i += lanes) {
    const f32x16 v = i < whole ? f32x16::load(x + i) : f32x16::load_n(x + i, int(k - i));
    most = max(abs(v), most);
    nothing = fma(v, f32x16::zero(), nothing);  // NaN if v is NaN or infinite
  }
  // A value that is not finite makes the scale NaN, and so the row's results.
  const float largest = hmax(most) + hsum(nothing);
  to.scales[row] = largest / 127.0f;
  to.starts[row] = 0;
  const bool nil = !(largest >= kLeastMagnitude);
  if (nil && largest == largest) to.scales[row] = 0;
  int32_t* const sums = to.group_sums ? to.minus_sums(row) : nullptr;
  if (sums) std::fill(sums, sums + to.groups_stride(), 0);
  const f32x16 by = f32x16::broadcast(nil ? 0.0f : 127.0f / largest);
  const f32x16 limit = f32x16::broadcast(127.0f), low = f32x16::broadcast(-127.0f);
  f32x16 total = f32x16::zero();
  const int nought = to.shifted ? 128 : 0;
  int8_t* codes = nullptr;
  int64_t next_slice = 0;
  for (int64_t s = 0; s < to.steps; ++s) {
    if (s == next_slice) {
      codes = to.codes_at(row, s);
      next_slice += to.slice_steps;
    } else {
      codes += to.row_step();
    }
    const int64_t first = s * kGridStep;
    if (nil || first >= k) {
      std::memset(codes, nought, kGridStep);
      continue;
    }
    for (int64_t i = 0; i < kGridStep; i += lanes) {
      f32x16 q = f32x16::zero();
      if (const int64_t left = k - first - i; left > 0) {
        const f32x16 v = left >= lanes ? f32x16::load(x + first + i)
                                       : f32x16::load_n(x + first + i, int(left));
        q = max(low, min(limit, round_even(v * by)));
      }
      total += q;
      store_codes(q, codes + i);
      static_assert(kGridGroup == lanes);
      if (sums) sums[kStepGroups * s + i / lanes] = -int32_t(hsum(q));
    }
    if (nought)
      for (int64_t i = 0; i < kGridStep; ++i) codes[i] = int8_t(codes[i] ^ -128);
  }
  // Below 2^24 in every lane, hence exact.
  to.starts[row] = -kept_zero(8, code_offset(8)) * int32_t(hsum(total));
}

// `transformed` has room for a row.
void quantize_rows(const InputRows& x, Range rows, const QuantizedRows& to, float* transformed) {
  const float by = 1.0f / float(hadamard_block(x.cols));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    if (x.elem == Elem::bf16) hadamard_row(x.row<bf16>(r), x.cols, by, transformed);
    else hadamard_row(x.row<float>(r), x.cols, by, transformed);
    quantize_row(transformed, x.cols, to, r);
  }
}

// Column `lane` of a panel from row `row`; zeros and scale 0 without rows.
void pack_column(const GridPanels& p, const GridRows* rows, int64_t row, int64_t k, int lane,
                 std::byte* panel) {
  const int8_t* codes = rows ? rows->codes + row * k : nullptr;
  if (!rows) k = 0;
  const int per_line = p.bits == 8 ? 4 : 8;
  for (int64_t s = 0; s < p.steps; ++s) {
    const int64_t first = s * kGridStep;
    std::byte* line = panel + p.step_at(s) + lane * 4;
    for (int64_t i = first; i < first + kGridStep; i += per_line, line += kLineBytes) {
      uint8_t code[8];
      for (int j = 0; j < per_line; ++j)
        code[j] = uint8_t((i + j < k ? codes[i + j] : 0) + (p.bits == 8 ? 128 : 0));
      if (p.bits == 4)
        for (int j = 0; j < 4; ++j) code[j] = uint8_t(code[j] | code[j + 4] << 4);
      std::memcpy(line, code, 4);
    }
    if (p.bits == 8) continue;
    const int64_t groups = ceil_div(k, kGridGroup);
    for (int64_t g = 0; g < kStepGroups; ++g) {
      const int64_t at = kStepGroups * s + g;
      panel[p.windows_at(s) + g * kPanelColumns + lane] =
          std::byte(at < groups ? rows->windows[row * groups + at] : 0);
    }
  }
  const float scale = rows ? rows->scales[row] : 0.0f;
  std::memcpy(panel + p.scales_at + lane * 4, &scale, sizeof(scale));
}

}  // namespace

PanelView panels_of(const GridMatrix& w) {
  const bool bytes = w.bits == 8;
  PanelView p{};
  p.data = w.panels;
  p.bits = w.bits;
  p.windows = !bytes;
  p.segment = bytes ? kGridStep : kWindowedK;
  p.segments = ceil_div(w.k, p.segment);
  p.segment_bits = std::countr_zero(uint64_t(p.segment));
  p.depth = p.segments * p.segment;
  p.segment_bytes = bytes ? kGridTileBytes : kWindowedBytes;
  p.scales_at = p.segments * p.segment_bytes;
  p.shifts_at = bytes ? 0 : kWindowedBytes - kWindowsBytes;
  p.panel_bytes = p.scales_at + kScaleBytes;
  p.units = ceil_div(w.n, kPanelColumns);
  p.per_unit = w.gated ? 2 : 1;
  p.tuning = w.tuning;
  return p;
}

size_t packed_bytes(const GridMatrix& w) { return panel_bytes(panels_of(w)); }

void pack_grid_part(const GridMatrix& w, const GridRows& rows, int64_t n, PartPlace place,
                    std::byte* panels, const Worker& worker) {
  const GridPanels p(panels_of(w));
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    pack_column(p, row < 0 ? nullptr : &rows, row, w.k, lane, panel);
  });
}

bool quantize_grid_part(const GridMatrix& w, Elem elem, const std::byte* rows, int64_t n,
                        PartPlace place, std::byte* panels, const Worker& worker) {
  const GridPanels p(panels_of(w));
  const int64_t row_bytes = w.k * int64_t(elem_bytes(elem));
  std::vector<int8_t> codes(size_t(w.k));
  std::vector<uint8_t> windows(size_t(ceil_div(w.k, kGridGroup)));
  std::vector<float> scratch;
  bool finite = true;
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    if (row < 0) return pack_column(p, nullptr, row, w.k, lane, panel);
    float scale;
    finite &= quantize_grid_row(w.bits, elem, !w.weight_only, rows + row * row_bytes, w.k, codes.data(),
                                windows.data(), scale, scratch);
    const GridRows one{codes.data(), windows.data(), &scale};
    pack_column(p, &one, 0, w.k, lane, panel);
  });
  return finite;
}

// Quantized rows by the kernel that is the fastest for so many.
struct GridPath {
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t row_block(const PanelView&) { return kAllRows; }

  static int64_t ready_bytes(const PanelView& p, int64_t rows, bool) {
    return QuantizedRows::bytes(rows + 16, 1, GridPanels(p).steps);
  }
  static int64_t work_bytes(const PanelView& view, [[maybe_unused]] int64_t rows) {
    const GridPanels p(view);
    const int64_t row = p.depth * int64_t(sizeof(float));
    int64_t work = std::max(grid_registers_scratch_bytes(p), row);
#if defined(__AMX_INT8__)
    work = std::max(work, grid_amx_scratch_bytes(p, rows));
#endif
    return work;
  }

  GridPath(const PanelView& p, const InputRows& x, const Epilogue& e, Range rows, bool,
           std::byte* ready)
      : p_(p), x_(x), e_(e), rows_(rows.size()), quantized_(rows_in(ready, p_, rows_)) {}

  void make(int64_t id, int64_t count, std::byte* work) const {
    quantize_rows(x_, even_share(rows_, id, count), quantized_, reinterpret_cast<float*>(work));
  }
  void multiply(Range units, std::byte* work) const {
#if defined(__AMX_INT8__)
    if (takes_tiles(p_, rows_)) return grid_linear_amx(p_, quantized_, e_, rows_, units, work);
#endif
    grid_linear_registers(p_, quantized_, e_, rows_, units, work);
  }

 private:
  const GridPanels p_;
  const InputRows& x_;
  const Epilogue& e_;
  const int64_t rows_;
  const QuantizedRows quantized_;
};

template struct Product<GridPath>;

}  // namespace penstock
