#include "gemm_int.h"

#include <bit>
#include <cstring>

#include "../simd.h"
#include "gemm_int_blocks.h"
#include "gemm_int_quantize.h"
#include "gemm_int_sparse.h"
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

// The codes of 32 k of a column of a sparse panel. False where three of four do not stand for zero.
bool pack_sparse_run(int bits, const uint8_t* codes, uint8_t zero, int lane, std::byte* run) {
  bool fits = true;
  for (int line = 0; line < kSparseLines; ++line, codes += 4) {
    int held = 0;  // of the four, as bits
    for (int j = 0; j < 4; ++j)
      if (codes[j] != zero) held |= 1 << j;
    fits = fits && std::popcount(unsigned(held)) <= kSparseHeld;
    for (int j = 3; std::popcount(unsigned(held)) < kSparseHeld; --j) held |= 1 << j;
    std::byte* const mask = run + line * 8 + lane / 2;
    const int shift = lane % 2 * 4;
    *mask = (*mask & std::byte(0xf0 >> shift)) | std::byte(held << shift);
    std::byte* to = run + kSparseMaskBytes + (bits == 8 ? line : line / 2) * kSparseCodes +
                    lane * kSparseHeld;
    for (int j = 0, left = kSparseHeld; j < 4 && left; ++j)
      if (held >> j & 1) {
        if (bits == 8) *to = std::byte(codes[j]);
        else if (line % 2 == 0) *to = (*to & std::byte(0xf0)) | std::byte(codes[j]);
        else *to = (*to & std::byte(0x0f)) | std::byte(codes[j] << 4);
        ++to, --left;
      }
  }
  return fits;
}

// Of a column of a sparse panel, from a row or, for those that are to be zeros, from none.
bool pack_sparse_column(const PanelView& p, const GroupRows* rows, int64_t row, int64_t k, int lane,
                        std::byte* panel) {
  const int offset = code_offset(p.bits);
  std::byte* const zeros = panel + p.shifts_at;
  bool fits = true;
  for (int64_t g = 0; g < p.segments; ++g, panel += p.segment_bytes) {
    const int64_t first = g * p.segment, at = row * p.segments + g;
    const uint8_t zero = uint8_t(offset + (p.zero_points && rows ? rows->zeros[at] : 0));
    if (p.zero_points) zeros[g * kPanelColumns + lane] = std::byte(zero);
    for (int64_t i = 0; i < p.segment; i += kSparseRun) {
      uint8_t codes[kSparseRun];
      for (int64_t j = 0; j < kSparseRun; ++j)
        codes[j] = rows && first + i + j < k ? uint8_t(offset + rows->codes[row * k + first + i + j])
                                             : zero;
      fits = pack_sparse_run(p.bits, codes, zero, lane,
                             panel + i / kSparseRun * sparse_run_bytes(p.bits)) && fits;
    }
    const float scale = rows ? rows->scales[at] : 0;
    std::memcpy(panel + p.scales_at + lane * 4, &scale, 4);
  }
  return fits;
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
  p.sparse = w.sparse;
  p.scales_at = w.sparse ? p.segment / kSparseRun * sparse_run_bytes(w.bits)
                         : p.segment * kPanelColumns * w.bits / 8;
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

bool pack_int_part(const IntMatrix& w, const GroupRows& rows, int64_t n, PartPlace place,
                   std::byte* panels, const Worker& worker) {
  const PanelView p = panels_of(w);
  bool fits = true;
  if (w.sparse) {
    for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
      fits = pack_sparse_column(p, row < 0 ? nullptr : &rows, row, w.k, lane, panel) && fits;
    });
    return fits;
  }
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    if (row < 0) zero_column(p, lane, panel);
    else pack_column(p, rows, row, w.k, lane, panel);
  });
  return fits;
}

void int_row(const IntMatrix& w, int64_t row, float* values) {
  const PanelView p = panels_of(w);
  const std::byte* const panel = p.data + row / kPanelColumns * p.panel_bytes;
  const int64_t lane = row % kPanelColumns;
  const int64_t per_line = w.bits == 8 ? 4 : 8;
  for (int64_t s = 0; s < p.segments; ++s) {
    const std::byte* const segment = panel + s * p.segment_bytes;
    const int zero =
        w.zero_points ? int(p.zeros(panel, s)[lane]) : code_offset(w.bits);
    float scale;
    std::memcpy(&scale, segment + p.scales_at + lane * 4, 4);
    const int64_t first = s * p.segment, end = std::min(first + p.segment, w.k);
    for (int64_t k = first; k < end; ++k) {
      const int64_t in = k - first, at = in % per_line;
      const int byte = int(segment[in / per_line * kLineBytes + lane * 4 + at % 4]);
      const int code = w.bits == 8 ? byte : at < 4 ? byte & 15 : byte >> 4;
      values[k] = float(code - zero) * scale;
    }
  }
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
    return hot_bytes(p) + (p.sparse ? kMostSparsePanels * dense_of(p).panel_bytes : 0);
  }

  IntPath(const PanelView& p, const InputRows& x, const Epilogue& e, Range rows, bool,
          std::byte* ready)
      : p_(p), x_(x), e_(e), rows_(rows.size()), quantized_(p, ready) {}

  void make(int64_t id, int64_t count, std::byte*) const {
    quantize_rows(p_, x_, even_share(rows_, id, count), quantized_);
  }
  void multiply(Range units, std::byte* hot) const {
    std::byte* const expanded = hot + hot_bytes(p_);
#if defined(__AMX_INT8__)
    if (rows_ >= p_.tuning.tile_rows_from)
      return int_linear_amx(p_, quantized_, e_, rows_, units, hot, expanded);
#endif
    int_linear_registers(p_, quantized_, e_, rows_, units, hot, expanded);
  }

 private:
  static int64_t hot_bytes([[maybe_unused]] const PanelView& p) {
    int64_t hot = int_registers_hot_bytes();
#if defined(__AMX_INT8__)
    hot = std::max(hot, int_amx_hot_bytes(dense_of(p)));
#endif
    return round_up(hot, kLineBytes);
  }

  const PanelView& p_;
  const InputRows& x_;
  const Epilogue& e_;
  const int64_t rows_;
  const IntRows quantized_;
};

template struct Product<IntPath>;

}  // namespace penstock
