#include "gemm_grid.h"

#include <cstring>

#include "../pool.h"
#include "../simd.h"
#include "gemm_grid_blocks.h"
#include "gemm_int_blocks.h"
#include "gemm_int_simd.h"
#include "gemm_points.h"
#include "gemm_units.h"

namespace penstock {
namespace {

// Up to so many rows are quantized by every thread for itself, which takes less than a barrier.
constexpr int64_t kOwnRows = 4;

constexpr bool takes_tiles([[maybe_unused]] const GridPanels& p, [[maybe_unused]] int64_t rows) {
#if defined(__AMX_INT8__)
  return rows >= p.tuning.tile_rows_from;
#else
  return false;
#endif
}

// Whether few rows are multiplied by codes as they are (gemm_grid_registers.cpp).
constexpr bool takes_windows([[maybe_unused]] int bits) {
#if defined(__AVX512VNNI__)
  return bits == 4;
#else
  return false;
#endif
}

QuantizedRows rows_in(std::byte* memory, const GridPanels& p, int64_t rows) {
#if defined(__AMX_INT8__)
  if (takes_tiles(p, rows))
    return {memory, rows, std::min<int64_t>(rows, 16), p.steps, grid_amx_slice_steps(p, rows), false};
#endif
  // Bands of even height, where weights are expanded before them: one of a single row takes nearly
  // as long as one of six. Where they are streamed, the first band's arithmetic hides memory. (One
  // thread of a Zen 4, K = 2048, 13, 16 and 25 rows, even by full ones: 4 bits 0.90, 0.88 and 0.92
  // of the time, 8 bits 1.10, 1.20 and 1.08.)
  const int64_t bands = p.bits == 4 ? ceil_div(rows, kGridRegisterRows) : 1;
  return {memory, rows, std::min(ceil_div(rows, bands), kGridRegisterRows), p.steps, p.steps,
          takes_windows(p.bits)};
}

// For any number of rows up to `rows`.
int64_t rows_bytes(const GridPanels& p, int64_t rows) {
  return QuantizedRows::bytes(rows + 16, 1, p.steps);
}

// Smaller than any activation that matters, and its reciprocal is finite.
constexpr float kLeastMagnitude = 1e-30f;

template <class T>
void quantize_row(const T* x, int64_t k, const QuantizedRows& to, int64_t row) {
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
      std::memset(codes, 0, kGridStep);
      continue;
    }
    f32x16 group = f32x16::zero();
    for (int64_t i = 0; i < kGridStep; i += lanes) {
      f32x16 q = f32x16::zero();
      if (const int64_t left = k - first - i; left > 0) {
        const f32x16 v = left >= lanes ? f32x16::load(x + first + i)
                                       : f32x16::load_n(x + first + i, int(left));
        q = max(low, min(limit, round_even(v * by)));
      }
      total += q;
      store_codes(q, codes + i);
      group = i % kGridGroup ? group + q : q;
      if (sums && i % kGridGroup) sums[2 * s + i / kGridGroup] = -int32_t(hsum(group));
    }
  }
  // Below 2^24 in every lane, hence exact.
  to.starts[row] = -kept_zero(8) * int32_t(hsum(total));
}

void quantize_rows(const InputRows& x, Range rows, const QuantizedRows& to) {
  for (int64_t r = rows.first; r < rows.last; ++r) {
    if (x.elem == Elem::bf16) quantize_row(x.row<bf16>(r), x.cols, to, r);
    else quantize_row(x.row<float>(r), x.cols, to, r);
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
    for (int64_t g = 0; g < 2; ++g) {
      const int64_t at = 2 * s + g;
      panel[p.windows_at(s) + g * kPanelColumns + lane] =
          std::byte(at < groups ? rows->windows[row * groups + at] : 0);
    }
  }
  const float scale = rows ? rows->scales[row] : 0.0f;
  std::memcpy(panel + p.weight_bytes() + lane * 4, &scale, sizeof(scale));
}

}  // namespace

size_t packed_bytes(const GridMatrix& w) {
  const GridPanels p(w);
  return size_t(p.units * p.per_unit * p.panel_bytes);
}

namespace {

// Calls pack(row, lane, panel) for each lane of the worker's panels of a part of n rows; row -1 for
// what pads the end.
template <class Pack>
void for_each_column(const GridPanels& p, int64_t n, PartPlace place, std::byte* panels,
                     const Worker& worker, Pack&& pack) {
  const int64_t count = ceil_div(place.lane + n, kPanelColumns);
  const Range own = even_share(count, worker.id, worker.count);
  for (int64_t i = own.first; i < own.last; ++i) {
    std::byte* panel = panels + (place.panel + i * place.stride) * p.panel_bytes;
    for (int lane = i == 0 ? place.lane : 0; lane < kPanelColumns; ++lane) {
      const int64_t row = i * kPanelColumns + lane - place.lane;
      if (row < n) pack(row, lane, panel);
      else if (place.pads_end) pack(int64_t(-1), lane, panel);
    }
  }
}

}  // namespace

void pack_grid_part(const GridMatrix& w, const GridRows& rows, int64_t n, PartPlace place,
                    std::byte* panels, const Worker& worker) {
  const GridPanels p(w);
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    pack_column(p, row < 0 ? nullptr : &rows, row, w.k, lane, panel);
  });
}

bool quantize_grid_part(const GridMatrix& w, Elem elem, const std::byte* rows, int64_t n,
                        PartPlace place, std::byte* panels, const Worker& worker) {
  const GridPanels p(w);
  const int64_t row_bytes = w.k * int64_t(elem_bytes(elem));
  std::vector<int8_t> codes(size_t(w.k));
  std::vector<uint8_t> windows(size_t(ceil_div(w.k, kGridGroup)));
  std::vector<float> scratch;
  bool finite = true;
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    if (row < 0) return pack_column(p, nullptr, row, w.k, lane, panel);
    float scale;
    finite &= quantize_grid_row(w.bits, elem, rows + row * row_bytes, w.k, codes.data(),
                                windows.data(), scale, scratch);
    const GridRows one{codes.data(), windows.data(), &scale};
    pack_column(p, &one, 0, w.k, lane, panel);
  });
  return finite;
}

size_t linear_shared_bytes(const GridMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_shared_bytes(PointPanels(w), rows));
  return size_t(rows_bytes(GridPanels(w), rows));
}

namespace {

int64_t work_bytes(const GridPanels& p, [[maybe_unused]] int64_t rows) {
  int64_t work = grid_registers_scratch_bytes(p);
#if defined(__AMX_INT8__)
  work = std::max(work, grid_amx_scratch_bytes(p, rows));
#endif
  return work;
}

// Quantized rows by some units, with the kernel that is the fastest for so many.
void multiply(const GridPanels& p, const QuantizedRows& x, const Epilogue& e, int64_t rows,
              Range units, std::byte* work) {
#if defined(__AMX_INT8__)
  if (takes_tiles(p, rows)) return grid_linear_amx(p, x, e, rows, units, work);
#endif
  grid_linear_registers(p, x, e, rows, units, work);
}

}  // namespace

size_t linear_scratch_bytes(const GridMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_scratch_bytes(PointPanels(w), rows));
  const GridPanels p(w);
  return size_t(rows_bytes(p, std::min(rows, kOwnRows)) + work_bytes(p, rows));
}

void linear(const GridMatrix& w, const Array& x, const Array& out, int64_t rows,
                 Gating gate, std::byte* shared, const Worker& worker) {
  if (rows == 0) return;
  const Epilogue epilogue{w.bias, out, w.n, w.gated, gate};
  if (w.weight_only) return linear_points(PointPanels(w), x, epilogue, rows, shared, worker);
  const GridPanels p(w);
  const bool own = rows <= kOwnRows;
  const QuantizedRows quantized = rows_in(own ? worker.scratch : shared, p, rows);
  if (own || worker.count == 1) {
    quantize_rows(x, {0, rows}, quantized);
  } else {
    quantize_rows(x, even_share(rows, worker.id, worker.count), quantized);
    worker.barrier->wait(worker);
  }
  const Range units = even_share(p.units, worker.id, worker.count);
  if (units.size() == 0) return;
  multiply(p, quantized, epilogue, rows, units,
           worker.scratch + rows_bytes(p, std::min(rows, kOwnRows)));
}

void linear_units(const GridMatrix& w, const InputRows& x, const Epilogue& e, int64_t rows,
                  Range units, bool ready, std::byte* scratch) {
  if (w.weight_only)
    return linear_points_units(PointPanels(w), x, e, rows, units, ready, scratch);
  const GridPanels p(w);
  const QuantizedRows quantized = rows_in(scratch, p, rows);
  if (!ready) quantize_rows(x, {0, rows}, quantized);
  multiply(p, quantized, e, rows, units, scratch + rows_bytes(p, rows));
}

size_t linear_units_scratch_bytes(const GridMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_units_scratch_bytes(PointPanels(w), rows));
  const GridPanels p(w);
  return size_t(rows_bytes(p, rows) + work_bytes(p, rows));
}

}  // namespace penstock
