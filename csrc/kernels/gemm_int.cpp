#include "gemm_int.h"

#include <bit>
#include <cstring>

#include "../simd.h"
#include "gemm_int_blocks.h"
#include "gemm_int_quantize.h"
#include "gemm_product.h"

namespace penstock {
namespace {

template <class T>
void quantize_row(const PanelView& p, const InputRows& x, int64_t row, const IntRows& to,
                  int64_t at) {
  const int64_t group = p.group(), groups = p.groups();
  const int32_t zero = p.zero_points ? 1 : kept_zero(p.bits, p.offset);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * group, count = std::clamp<int64_t>(x.cols - first, 0, group);
    quantize_group(x.row<T>(row) + first, count, group, zero, to.codes(at) + first,
                   to.scales(at)[g], to.starts(at)[g]);
  }
}

void quantize_rows(const PanelView& p, const InputRows& x, Range rows, const IntRows& to) {
  for (int64_t r = rows.first; r < rows.last; ++r) {
    if (x.elem == Elem::bf16) quantize_row<bf16>(p, x, r, to, r);
    else quantize_row<float>(p, x, r, to, r);
  }
}

// Column `lane` of a panel from one row of codes, its scales and its zero points.
void pack_column(const PanelView& p, const GroupRows& rows, int64_t row, int64_t k, int lane,
                 std::byte* panel) {
  const int8_t* const codes = rows.codes + row * k;
  const int per_line = p.bits == 8 ? 4 : 8;
  const int zero = code_offset(p.bits);
  for (int64_t g = 0; p.zero_points && g < p.segments; ++g)
    panel[p.shifts_at + g * kPanelColumns + lane] =
        std::byte(zero + rows.zeros[row * p.segments + g]);
  for (int64_t g = 0; g < p.segments; ++g, panel += p.segment_bytes) {
    const int64_t first = g * p.segment;
    for (int64_t i = 0; i < p.segment; i += per_line) {
      uint8_t code[8];
      for (int j = 0; j < per_line; ++j)
        code[j] = uint8_t(zero + (first + i + j < k ? codes[first + i + j] : 0));
      if (p.bits == 4)
        for (int j = 0; j < 4; ++j) code[j] = uint8_t(code[j] | code[j + 4] << 4);
      std::memcpy(panel + i / per_line * kLineBytes + lane * 4, code, 4);
    }
    std::memcpy(panel + p.scales_at + lane * 4, rows.scales + row * p.segments + g, 4);
  }
}

void zero_column(const PanelView& p, int lane, std::byte* panel) {
  const float scale = 0;
  for (int64_t g = 0; p.zero_points && g < p.segments; ++g)
    panel[p.shifts_at + g * kPanelColumns + lane] = std::byte(code_offset(p.bits));
  for (int64_t g = 0; g < p.segments; ++g, panel += p.segment_bytes) {
    for (int64_t i = 0; i < p.scales_at; i += kLineBytes)
      std::memset(panel + i + lane * 4, p.bits == 8 ? 0x80 : 0x88, 4);
    std::memcpy(panel + p.scales_at + lane * 4, &scale, 4);
  }
}

}  // namespace

int64_t int_groups(int64_t k, int64_t group) { return group ? ceil_div(k, group) : 1; }

PanelView panels_of(const IntMatrix& w) {
  PanelView p{};
  p.data = w.panels;
  p.format = w.bits == 8 ? WeightFormat::int8 : WeightFormat::int4;
  p.bits = w.bits;
  p.offset = code_offset(w.bits);
  p.zero_points = w.zero_points;
  p.grouped = w.group;
  p.segment = w.group ? w.group : round_up(w.k, 64);
  p.segments = ceil_div(w.k, p.segment);
  p.segment_bits = w.group ? std::countr_zero(uint64_t(p.segment)) : 62;
  p.depth = p.segments * p.segment;
  p.scaled = p.segments > 1 ? p.segment : 0;
  p.scales_at = p.segment * kPanelColumns * w.bits / 8;
  p.segment_bytes = p.scales_at + kScaleBytes;
  p.shifts_at = p.segments * p.segment_bytes;
  p.panel_bytes =
      p.shifts_at + (w.zero_points ? round_up(p.segments * kPanelColumns, kLineBytes) : 0);
  p.units = ceil_div(w.n, kPanelColumns);
  p.per_unit = w.gated ? 2 : 1;
  p.tuning = w.tuning;
  return p;
}

size_t packed_bytes(const IntMatrix& w) { return panel_bytes(panels_of(w)); }

void pack_int_part(const IntMatrix& w, const GroupRows& rows, int64_t n, PartPlace place,
                   std::byte* panels, const Worker& worker) {
  const PanelView p = panels_of(w);
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    if (row < 0) zero_column(p, lane, panel);
    else pack_column(p, rows, row, w.k, lane, panel);
  });
}

// Quantized rows by the kernel that is the fastest for so many.
struct IntPath {
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t row_block(const PanelView&) { return kAllRows; }

  static int64_t ready_bytes(const PanelView& p, int64_t rows, bool) {
    // The last tile may have more rows than there are: they are read, not used.
    return IntRows(p, nullptr).row_bytes * round_up(rows, kIntMostBand);
  }
  static int64_t work_bytes([[maybe_unused]] const PanelView& p, int64_t) {
    int64_t hot = int_registers_hot_bytes();
#if defined(__AMX_INT8__)
    hot = std::max(hot, int_amx_hot_bytes(p));
#endif
    return hot;
  }

  IntPath(const PanelView& p, const InputRows& x, const Epilogue& e, Range rows, bool,
          std::byte* ready)
      : p_(p), x_(x), e_(e), rows_(rows.size()), quantized_(p, ready) {}

  void make(int64_t id, int64_t count, std::byte*) const {
    quantize_rows(p_, x_, even_share(rows_, id, count), quantized_);
  }
  void multiply(Range units, std::byte* hot) const {
#if defined(__AMX_INT8__)
    if (rows_ >= p_.tuning.tile_rows_from)
      return int_linear_amx(p_, quantized_, e_, rows_, units, hot);
#endif
    int_linear_registers(p_, quantized_, e_, rows_, units, hot);
  }

 private:
  const PanelView& p_;
  const InputRows& x_;
  const Epilogue& e_;
  const int64_t rows_;
  const IntRows quantized_;
};

template struct Product<IntPath>;

}  // namespace penstock
