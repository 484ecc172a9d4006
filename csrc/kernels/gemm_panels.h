// Quantized weights of any kind as kernels see them: what a panel's codes stand for, and where codes,
// scales and shifts lie.
#pragma once

#include "gemm_block.h"
#include "gemm_cuts.h"
#include "gemm_grid.h"
#include "gemm_int.h"

namespace penstock {

// What a code u stands for: u - 128 or u - 8; u - zero; a window's step * (u - origin).
enum class PointKind : uint8_t { offset, zeros, windows };

constexpr int64_t kScaleBytes = kPanelColumns * int64_t(sizeof(float));

constexpr int32_t code_offset(int bits) { return bits == 8 ? 128 : 8; }

// A matrix seen as panels. A panel is segments, in each of which codes come first, and then what
// belongs to all of it.
struct PanelView {
  const std::byte* data;
  WeightFormat format;  // of groups
  int bits;
  int offset;           // of codes from points, where there are no zeros
  bool zero_points, windows;
  bool sparse;          // two codes of four are held (gemm_int.h)
  int64_t depth;          // as stored
  int64_t segment;        // k; where they have points (has_points()), a power of two
  int64_t segments;
  int segment_bits;       // of that power; a single segment is longer than any k
  int64_t segment_bytes;  // from one segment to the next
  int64_t scaled;         // k of a group; 0: one scale for all of them
  int64_t grouped;        // of IntMatrix: k of a group as stored; 0: the whole row
  int64_t scales_at;      // of the first
  int64_t shifts_at;      // of the first zeros or windows
  int64_t panel_bytes;
  int64_t units;
  int per_unit;
  Tuning tuning;

  const std::byte* panel(int64_t unit) const { return data + unit * per_unit * panel_bytes; }
  int64_t group() const { return scaled ? scaled : depth; }
  int64_t groups() const { return scaled ? depth / scaled : 1; }
  // Of one segment of a panel: the unsigned codes that stand for zero.
  const std::byte* zeros(const std::byte* panel, int64_t s) const {
    return panel + shifts_at + s * kPanelColumns;
  }

  // Offsets in a panel of what belongs to the 32 k from k on, where a group is a segment.
  int64_t codes_at(int64_t k) const {
    return segment_of(k) * segment_bytes + in_segment(k) * 2 * bits;  // 16 columns
  }
  int64_t shifts(PointKind kind, int64_t k) const {
    if (kind == PointKind::zeros) return shifts_at + segment_of(k) * kPanelColumns;
    return shifts_at + segment_of(k) * segment_bytes + in_segment(k) / kGridGroup * kPanelColumns;
  }
  int64_t scales(int64_t k) const {
    return scales_at + (scaled ? segment_of(k) * segment_bytes : 0);
  }

  int64_t segment_of(int64_t k) const { return k >> segment_bits; }
  int64_t in_segment(int64_t k) const { return k & ((int64_t(1) << segment_bits) - 1); }
};

PanelView panels_of(const IntMatrix& w);
PanelView panels_of(const GridMatrix& w);
PanelView panels_of(const BlockMatrix& w);

inline size_t panel_bytes(const PanelView& p) {
  return size_t(p.units * p.per_unit * p.panel_bytes);
}

// Calls pack(row, lane, panel) for each lane of the worker's panels of a part of n rows; row -1 for
// those left over in the last, if they are to be zeros.
template <class View, class Pack>
void for_each_column(const View& p, int64_t n, PartPlace place, std::byte* panels,
                     const Worker& worker, Pack&& pack) {
  const int64_t count = ceil_div(place.lane + n, kPanelColumns);
  const Range own = even_share(count, worker.id, worker.count);
  for (int64_t i = own.first; i < own.last; ++i) {
    std::byte* const panel = panels + (place.panel + i * place.stride) * p.panel_bytes;
    for (int lane = i == 0 ? place.lane : 0; lane < kPanelColumns; ++lane) {
      const int64_t row = i * kPanelColumns + lane - place.lane;
      if (row < n) pack(row, lane, panel);
      else if (place.pads_end) pack(int64_t(-1), lane, panel);
    }
  }
}

}  // namespace penstock
