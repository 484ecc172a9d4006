#include "gemm_int.h"

#include <cstring>

#include "../pool.h"
#include "../simd.h"
#include "gemm_int_blocks.h"
#include "gemm_int_simd.h"
#include "gemm_points.h"
#include "gemm_units.h"

namespace penstock {
namespace {

// Up to so many rows are quantized by every thread for itself, which takes less than a barrier.
constexpr int64_t kOwnRows = 4;

// From so many rows on tiles are faster than registers. 4-bit codes must be unpacked for them.
// (K = 2048, TOP/s in registers and in tiles: 8 bits, 8 rows 0.15 and 0.15, 16 rows 0.23 and 0.29;
// 4 bits in groups of 32, 16 rows 0.26 and 0.23, 32 rows 0.31 and 0.31.)
constexpr int64_t amx_rows(int bits) { return bits == 8 ? 9 : 17; }

int64_t rows_bytes(const IntPanels& p, int64_t rows) {
  // The last tile may have more rows than there are: they are read, not used.
  return IntRows(p, nullptr).row_bytes * round_up(rows, kIntMostBand);
}

// One group of a row: `count` values of x, zeros up to `group`.
template <class T>
void quantize_group(const T* x, int64_t count, int64_t group, int32_t zero, int8_t* codes,
                    float& scale, int32_t& start) {
  f32x16 most = f32x16::zero(), nothing = f32x16::zero();
  for (int64_t i = 0; i < count; i += f32x16::lanes) {
    const f32x16 v = f32x16::load_n(x + i, int(std::min<int64_t>(count - i, f32x16::lanes)));
    most = max(abs(v), most);
    nothing = fma(v, f32x16::zero(), nothing);  // NaN if v is NaN or infinite
  }
  // A value that is not finite makes the scale NaN, and so the row's results.
  scale = hmax(most) / 127.0f + hsum(nothing);
  start = 0;
  if (!(scale > 0)) {
    std::memset(codes, 0, size_t(group));
    return;
  }
  const f32x16 by = f32x16::broadcast(scale);
  const f32x16 limit = f32x16::broadcast(127.0f);  // the division of subnormals is not exact
  const f32x16 low = f32x16::broadcast(-127.0f);
  f32x16 total = f32x16::zero();
  for (int64_t i = 0; i < group; i += f32x16::lanes) {
    f32x16 q = f32x16::zero();
    if (i < count) {
      const int there = int(std::min<int64_t>(count - i, f32x16::lanes));
      q = max(low, min(limit, round_even(f32x16::load_n(x + i, there) / by)));
    }
    total += q;
    store_codes(q, codes + i);
  }
  start = -zero * int32_t(hsum(total));  // below 2^24 in every lane: exact
}

template <class T>
void quantize_row(const IntPanels& p, const InputRows& x, int64_t row, const IntRows& to,
                  int64_t at) {
  for (int64_t g = 0; g < p.groups; ++g) {
    const int64_t first = g * p.group;
    quantize_group(x.row<T>(row) + first, std::min(p.group, x.cols - first), p.group,
                   p.zero_points ? 1 : kept_zero(p.bits), to.codes(at) + first, to.scales(at)[g],
                   to.starts(at)[g]);
  }
}

void quantize_rows(const IntPanels& p, const InputRows& x, Range rows, const IntRows& to) {
  for (int64_t r = rows.first; r < rows.last; ++r) {
    if (x.elem == Elem::bf16) quantize_row<bf16>(p, x, r, to, r);
    else quantize_row<float>(p, x, r, to, r);
  }
}

// Column `lane` of a panel from one row of codes, its scales and its zero points.
void pack_column(const IntPanels& p, const GroupRows& rows, int64_t row, int64_t k, int lane,
                 std::byte* panel) {
  const int8_t* const codes = rows.codes + row * k;
  const int per_line = p.bits == 8 ? 4 : 8;
  const int zero = code_offset(p.bits);
  for (int64_t g = 0; p.zero_points && g < p.groups; ++g)
    panel[p.zeros_at + g * kPanelColumns + lane] =
        std::byte(zero + rows.zeros[row * p.groups + g]);
  for (int64_t g = 0; g < p.groups; ++g, panel += p.group_bytes) {
    const int64_t first = g * p.group;
    for (int64_t i = 0; i < p.group; i += per_line) {
      uint8_t code[8];
      for (int j = 0; j < per_line; ++j)
        code[j] = uint8_t(zero + (first + i + j < k ? codes[first + i + j] : 0));
      if (p.bits == 4)
        for (int j = 0; j < 4; ++j) code[j] = uint8_t(code[j] | code[j + 4] << 4);
      std::memcpy(panel + i / per_line * kLineBytes + lane * 4, code, 4);
    }
    std::memcpy(panel + p.code_bytes + lane * 4, rows.scales + row * p.groups + g, 4);
  }
}

void zero_column(const IntPanels& p, int lane, std::byte* panel) {
  const float scale = 0;
  for (int64_t g = 0; p.zero_points && g < p.groups; ++g)
    panel[p.zeros_at + g * kPanelColumns + lane] = std::byte(code_offset(p.bits));
  for (int64_t g = 0; g < p.groups; ++g, panel += p.group_bytes) {
    for (int64_t i = 0; i < p.code_bytes; i += kLineBytes)
      std::memset(panel + i + lane * 4, p.bits == 8 ? 0x80 : 0x88, 4);
    std::memcpy(panel + p.code_bytes + lane * 4, &scale, 4);
  }
}

}  // namespace

int64_t int_groups(int64_t k, int64_t group) { return group ? ceil_div(k, group) : 1; }

size_t packed_bytes(const IntMatrix& w) {
  const IntPanels p(w);
  return size_t(p.units * p.per_unit * p.panel_bytes);
}

void pack_int_part(const IntMatrix& w, const GroupRows& rows, int64_t n, PartPlace place,
                   std::byte* panels, const Worker& worker) {
  const IntPanels p(w);
  const int64_t count = ceil_div(place.lane + n, kPanelColumns);
  const Range own = even_share(count, worker.id, worker.count);
  for (int64_t i = own.first; i < own.last; ++i) {
    std::byte* panel = panels + (place.panel + i * place.stride) * p.panel_bytes;
    for (int lane = i == 0 ? place.lane : 0; lane < kPanelColumns; ++lane) {
      const int64_t row = i * kPanelColumns + lane - place.lane;
      if (row < n)
        pack_column(p, rows, row, w.k, lane, panel);
      else if (place.pads_end)
        zero_column(p, lane, panel);
    }
  }
}

size_t linear_shared_bytes(const IntMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_shared_bytes(PointPanels(w), rows));
  return size_t(rows_bytes(IntPanels(w), rows));
}

namespace {

int64_t hot_bytes([[maybe_unused]] const IntPanels& p) {
  int64_t hot = int_registers_hot_bytes();
#if defined(__AMX_INT8__)
  hot = std::max(hot, int_amx_hot_bytes(p));
#endif
  return hot;
}

// Quantized rows by some units, with the kernel that is the fastest for so many.
void multiply(const IntPanels& p, const IntRows& x, const Epilogue& e, int64_t rows, Range units,
              std::byte* hot) {
#if defined(__AMX_INT8__)
  if (rows >= amx_rows(p.bits)) return int_linear_amx(p, x, e, rows, units, hot);
#endif
  int_linear_registers(p, x, e, rows, units, hot);
}

}  // namespace

size_t linear_scratch_bytes(const IntMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_scratch_bytes(PointPanels(w), rows));
  const IntPanels p(w);
  return size_t(rows_bytes(p, std::min(rows, kOwnRows)) + hot_bytes(p));
}

void linear(const IntMatrix& w, const Array& x, const Array& out, int64_t rows,
                Gating gate, std::byte* shared, const Worker& worker) {
  if (rows == 0) return;
  const Epilogue epilogue{w.bias, out, w.n, w.gated, gate};
  if (w.weight_only) return linear_points(PointPanels(w), x, epilogue, rows, shared, worker);
  const IntPanels p(w);
  const bool own = rows <= kOwnRows;
  const IntRows quantized(p, own ? worker.scratch : shared);
  if (own || worker.count == 1) {
    quantize_rows(p, x, {0, rows}, quantized);
  } else {
    quantize_rows(p, x, even_share(rows, worker.id, worker.count), quantized);
    worker.barrier->wait(worker);
  }
  const Range units = even_share(p.units, worker.id, worker.count);
  if (units.size() == 0) return;
  multiply(p, quantized, epilogue, rows, units,
           worker.scratch + rows_bytes(p, std::min(rows, kOwnRows)));
}

void linear_units(const IntMatrix& w, const InputRows& x, const Epilogue& e, int64_t rows,
                  Range units, bool ready, std::byte* scratch) {
  if (w.weight_only)
    return linear_points_units(PointPanels(w), x, e, rows, units, ready, scratch);
  const IntPanels p(w);
  const IntRows quantized(p, scratch);
  if (!ready) quantize_rows(p, x, {0, rows}, quantized);
  multiply(p, quantized, e, rows, units, scratch + rows_bytes(p, rows));
}

size_t linear_units_scratch_bytes(const IntMatrix& w, int64_t rows) {
  if (w.weight_only) return size_t(points_units_scratch_bytes(PointPanels(w), rows));
  const IntPanels p(w);
  return size_t(rows_bytes(p, rows) + hot_bytes(p));
}

}  // namespace penstock
