#include "gemm_block.h"

#include <bit>

#include "gemm_block_read.h"
#include "gemm_panels.h"

namespace penstock {
namespace {

// Column `lane` of a panel from a row of blocks; null: zeros.
template <class Format>
void pack_column(const PanelView& p, const std::byte* row, int64_t k, int lane, std::byte* panel) {
  const BlockSize size = block_size(p.format);
  for (int64_t s = 0; s < p.segments; ++s)
    for (int64_t line = 0; line < Format::kCodeBytes; line += kLineBytes)
      std::memset(panel + s * Format::kSegmentBytes + line + lane * 4, 0, 4);
  const int64_t groups = size.columns / Format::kGroup;
  for (int64_t first = 0; first < p.depth; first += size.columns) {
    const bool there = row && first < k;
    const FileBlock block =
        there ? read_block(p.format, row + first / size.columns * size.bytes) : FileBlock{};
    std::byte* const segment = panel + first / Format::kSegment * Format::kSegmentBytes;
    const int64_t at = first % Format::kSegment;
    for (int64_t i = 0; there && i < size.columns; i += 4)
      Format::put(segment, lane, at + i, block.codes.data() + i);
    for (int64_t g = 0; g < groups; ++g)
      Format::put_group(segment, lane, at / Format::kGroup + g, block, g);
  }
}

}  // namespace

PanelView panels_of(const BlockMatrix& w) {
  return with_block_format(w.format, [&]<class Format>(Format) {
    PanelView p{};
    p.data = w.panels;
    p.format = w.format;
    p.bits = Format::kBits;
    p.offset = Format::kOffset;
    p.segment = Format::kSegment;
    p.segments = ceil_div(w.k, p.segment);
    p.segment_bits = std::countr_zero(uint64_t(p.segment));
    p.depth = p.segments * p.segment;
    p.scaled = Format::kGroup;
    p.scales_at = Format::kCodeBytes;
    p.segment_bytes = Format::kSegmentBytes;
    p.panel_bytes = p.segments * p.segment_bytes;
    p.units = ceil_div(w.n, kPanelColumns);
    p.per_unit = w.gated ? 2 : 1;
    p.tuning = w.tuning;
    return p;
  });
}

size_t packed_bytes(const BlockMatrix& w) { return panel_bytes(panels_of(w)); }

bool has_whole_points(WeightFormat format) {
  return with_block_format(format, []<class Format>(Format) { return Format::kWhole; });
}

int64_t block_row_bytes(WeightFormat format, int64_t k) {
  const BlockSize size = block_size(format);
  return k % size.columns ? 0 : k / size.columns * size.bytes;
}

void pack_block_part(const BlockMatrix& w, const std::byte* rows, int64_t n, PartPlace place,
                     std::byte* panels, const Worker& worker) {
  const PanelView p = panels_of(w);
  const int64_t row_bytes = block_row_bytes(w.format, w.k);
  with_block_format(w.format, [&]<class Format>(Format) {
    for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
      pack_column<Format>(p, row < 0 ? nullptr : rows + row * row_bytes, w.k, lane, panel);
    });
  });
}

void block_row(const BlockMatrix& w, int64_t row, float* values) {
  const PanelView p = panels_of(w);
  const std::byte* const panel = p.data + row / kPanelColumns * p.panel_bytes;
  const int64_t lane = row % kPanelColumns;
  with_block_format(w.format, [&]<class Format>(Format) {
    alignas(64) std::byte codes[kLineBytes];
    float scale[kPanelColumns], least[kPanelColumns];
    for (int64_t k = 0; k < w.k; k += 4) {
      const std::byte* const segment = panel + k / p.segment * p.segment_bytes;
      const int64_t in = k % p.segment;
      if (k % Format::kGroup == 0) {
        Format::scale(segment, in / Format::kGroup).store(scale);
        if (Format::kLeast) Format::least(segment, in / Format::kGroup).store(least);
      }
      Format::quad(segment, in / kRunK, int(in % kRunK / 4)).store(codes);
      for (int64_t i = 0; i < 4; ++i) {
        const float value =
            scale[lane] * float(point_of<Format>(int(codes[size_t(lane * 4 + i)])));
        values[k + i] = Format::kLeast ? value + least[lane] : value;
      }
    }
  });
}

}  // namespace penstock
