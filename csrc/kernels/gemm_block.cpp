#include "gemm_block.h"

#include "gemm_formats.h"

namespace penstock {
namespace {

// Column `lane` of a panel from a row of blocks; null: zeros.
template <class Format>
void pack_column(const PanelView& p, const std::byte* row, int64_t k, int lane, std::byte* panel) {
  constexpr int per_line = 32 / Format::kBits;
  BlockCodes none{};
  none.codes.fill(Format::kNothing);
  for (int64_t b = 0; b < p.groups(); ++b) {
    const bool there = row && b * kBlockK < k;
    const BlockCodes block = there ? Format::read(row + b * block_bytes(p.format)) : none;
    std::byte* const segment = panel + b / Format::kGroups * p.segment_bytes;
    const int64_t group = b % Format::kGroups;
    std::byte* line = segment + group * (p.scales_at / Format::kGroups) + lane * 4;
    for (size_t i = 0; i < kBlockK; i += per_line, line += kLineBytes) {
      uint8_t code[per_line];
      std::copy_n(block.codes.data() + i, per_line, code);
      if (Format::kBits == 4)
        for (int j = 0; j < 4; ++j) code[j] = uint8_t(code[j] | code[per_line - 4 + j] << 4);
      std::memcpy(line, code, 4);
    }
    std::memcpy(segment + p.scales_at + (group * kPanelColumns + lane) * Format::kScaleBytes,
                block.scale.data(), Format::kScaleBytes);
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
    p.segment = Format::kGroups * kBlockK;
    p.segments = ceil_div(w.k, p.segment);
    p.depth = p.segments * p.segment;
    p.scaled = kBlockK;
    p.scales_at = p.segment * kPanelColumns * Format::kBits / 8;
    p.segment_bytes = p.scales_at + Format::kGroups * kPanelColumns * Format::kScaleBytes;
    p.panel_bytes = p.segments * p.segment_bytes;
    p.units = ceil_div(w.n, kPanelColumns);
    p.per_unit = w.gated ? 2 : 1;
    p.tuning = w.tuning;
    return p;
  });
}

size_t packed_bytes(const BlockMatrix& w) { return panel_bytes(panels_of(w)); }

int64_t block_bytes(WeightFormat format) {
  return with_block_format(format, []<class Format>(Format) {
    return kBlockK * Format::kBits / 8 + Format::kScaleBytes;
  });
}

void pack_block_part(const BlockMatrix& w, const std::byte* rows, int64_t n, PartPlace place,
                     std::byte* panels, const Worker& worker) {
  const PanelView p = panels_of(w);
  const int64_t row_bytes = w.k / kBlockK * block_bytes(w.format);
  with_block_format(w.format, [&]<class Format>(Format) {
    for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
      pack_column<Format>(p, row < 0 ? nullptr : rows + row * row_bytes, w.k, lane, panel);
    });
  });
}

}  // namespace penstock
