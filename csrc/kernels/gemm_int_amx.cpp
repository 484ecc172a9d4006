// Integer products on AMX tiles: the choice for many rows.
#include <type_traits>

#include "gemm_int_blocks.h"
#include "gemm_int_sparse.h"
#include "gemm_order.h"

#if defined(__AMX_INT8__)

#include "amx_tiles.h"

namespace penstock {
namespace {

constexpr int64_t kTileInts = kTileRows * kPanelColumns;
constexpr int64_t kGroupDots = 4 * kTileInts;

// A block of accumulators: one or two row tiles by one or two panels.
struct Block {
  const std::byte* x;  // first row
  int64_t row_bytes;
  const std::byte* codes;  // first panel's, 8 bits each
  int64_t code_stride;     // from group to group
  int64_t panel_stride;
  int64_t steps;       // tiles a group
  int64_t tile_depth;  // k per tile
};

// Signed rows times unsigned codes as stored, or signed ones as unpacked. A tile's number is part of
// the instruction to the compiler, so no function can be given it.
#define PENSTOCK_TILE_DOT(sum, x, w)              \
  do {                                            \
    if constexpr (Signed) _tile_dpbssd(sum, x, w); \
    else _tile_dpbsud(sum, x, w);                 \
  } while (false)

// The dots of one group, as stored tiles [panel][row tile].
template <int RowTiles, int Panels, bool Signed>
PENSTOCK_INLINE void dot_group(const Block& b, int64_t g, int32_t* dots) {
  const std::byte* x0 = b.x + g * b.steps * b.tile_depth;
  const std::byte* x1 = x0 + kTileRows * b.row_bytes;
  const std::byte* w0 = b.codes + g * b.code_stride;
  const std::byte* w1 = w0 + b.panel_stride;
  _tile_zero(0);
  if constexpr (Panels > 1) _tile_zero(1);
  if constexpr (RowTiles > 1) _tile_zero(2);
  if constexpr (RowTiles > 1 && Panels > 1) _tile_zero(3);
  for (int64_t s = 0; s < b.steps; ++s) {
    _tile_loadd(6, w0 + s * b.tile_depth * kPanelColumns, 64);
    _tile_loadd(4, x0 + s * b.tile_depth, b.row_bytes);
    PENSTOCK_TILE_DOT(0, 4, 6);
    if constexpr (Panels > 1) {
      _tile_loadd(7, w1 + s * b.tile_depth * kPanelColumns, 64);
      PENSTOCK_TILE_DOT(1, 4, 7);
    }
    if constexpr (RowTiles > 1) {
      _tile_loadd(5, x1 + s * b.tile_depth, b.row_bytes);
      PENSTOCK_TILE_DOT(2, 5, 6);
      if constexpr (Panels > 1) PENSTOCK_TILE_DOT(3, 5, 7);
    }
  }
  _tile_stored(0, dots, 64);
  if constexpr (RowTiles > 1) _tile_stored(2, dots + kTileInts, 64);
  if constexpr (Panels > 1) _tile_stored(1, dots + RowTiles * kTileInts, 64);
  if constexpr (RowTiles > 1 && Panels > 1) _tile_stored(3, dots + 3 * kTileInts, 64);
}

#undef PENSTOCK_TILE_DOT

// sums += x_scale * w_scale * (start + dots), for one group or two that follow each other; signed dots need no start.
// sums and dots: [panel][row][16], the second group's dots kGroupDots on. zeros: of the first group, or null; a start is
// then times its column's.
template <int RowTiles, int Panels, bool Signed, int Groups>
PENSTOCK_INLINE void add_groups(const int32_t* dots, const float* x_scales, const int32_t* starts,
                                int64_t row_floats, const std::byte* scales, int64_t scales_stride,
                                const std::byte* zeros, int64_t panel_bytes, bool first, float* sums) {
  __m512 w[Groups][Panels];
  __m512i zero[Groups][Panels];
  for (int g = 0; g < Groups; ++g)
    for (int i = 0; i < Panels; ++i) {
      w[g][i] = _mm512_load_ps(scales + g * scales_stride + i * panel_bytes);
      if constexpr (!Signed)
        zero[g][i] = zeros ? _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(
                                 zeros + g * kPanelColumns + i * panel_bytes)))
                           : _mm512_set1_epi32(1);
    }
  for (int64_t r = 0; r < RowTiles * kTileRows; ++r) {
    for (int i = 0; i < Panels; ++i) {
      const int64_t at = i * RowTiles * kTileInts + r * kPanelColumns;
      __m512 sum = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + at);
      for (int g = 0; g < Groups; ++g) {
        const __m512 scale = _mm512_set1_ps(x_scales[r * row_floats + g]);
        __m512i d = _mm512_load_si512(dots + g * kGroupDots + at);
        if constexpr (!Signed) {
          __m512i start = _mm512_set1_epi32(starts[r * row_floats + g]);
          if (zeros) start = _mm512_mullo_epi32(start, zero[g][i]);
          d = _mm512_add_epi32(d, start);
        }
        sum = _mm512_fmadd_ps(_mm512_mul_ps(scale, w[g][i]), _mm512_cvtepi32_ps(d), sum);
      }
      _mm512_store_ps(sums + at, sum);
    }
  }
}

constexpr int kGroupsAtOnce = 2;
constexpr int64_t kSumsBytes = kGroupDots * int64_t(sizeof(float));

struct Scratch {
  float* sums;       // [2][32][16]
  int32_t* dots;     // likewise, of kGroupsAtOnce groups
  std::byte* codes;  // two panels of 4-bit codes as bytes
};

// All groups of one block; its weights' scales from `scales` on. The tiles of two groups are multiplied, then their dots
// scaled and added together, which reads and writes sums half as often. (One thread, 512 rows, K = 3072, N = 1024, int4
// by 64, Gop/s in three alternating rounds: by one group, multiplied before the one before it was scaled, 871, 808 and
// 866; by two, 911, 912 and 934. In other rounds by two likewise ahead of each other 855, with these 883, by four 905, by
// eight 694: what dots take of L1 counts. Slices of weights that stay in L1 from band to band gained 2 %.)
template <int RowTiles, int Panels, bool Signed>
void multiply(const PanelView& p, const IntRows& x, int64_t row, const Block& b,
              const std::byte* scales, const std::byte* next, Range lines, const Scratch& to) {
  const float* x_scales = x.scales(row);
  const int32_t* starts = x.starts(row);
  const int64_t row_floats = x.row_bytes / 4;
  const auto add = [&](auto count, int64_t g) __attribute__((always_inline)) {
    add_groups<RowTiles, Panels, Signed, count>(
        to.dots, x_scales + g, starts + g, row_floats, scales + g * p.segment_bytes, p.segment_bytes,
        p.zero_points ? p.zeros(scales - p.scales_at, g) : nullptr, p.panel_bytes, g == 0, to.sums);
  };
  for (int64_t g = 0; g < p.segments; g += kGroupsAtOnce) {
    const int64_t last = std::min(g + kGroupsAtOnce, p.segments);
    for (int64_t i = g; i < last; ++i) {
      for (int64_t line = lines.first; line < lines.last; ++line)
        for (int panel = 0; panel < Panels; ++panel)
          _mm_prefetch(reinterpret_cast<const char*>(next + panel * p.panel_bytes +
                                                     i * p.segment_bytes + line * 64),
                       _MM_HINT_T1);
      dot_group<RowTiles, Panels, Signed>(b, i, to.dots + (i - g) * kGroupDots);
    }
    if (last - g == kGroupsAtOnce) add(std::integral_constant<int, kGroupsAtOnce>(), g);
    else add(std::integral_constant<int, 1>(), g);
  }
}

using Multiply = void (*)(const PanelView&, const IntRows&, int64_t, const Block&,
                          const std::byte*, const std::byte*, Range, const Scratch&);

template <bool Signed>
Multiply choose(int row_tiles, int panels) {
  if (row_tiles == 2) return panels == 2 ? multiply<2, 2, Signed> : multiply<2, 1, Signed>;
  return panels == 2 ? multiply<1, 2, Signed> : multiply<1, 1, Signed>;
}

// Sixteen bytes, each to the four of its column.
__m512i spread_columns(const std::byte* from) {
  const __m512i wide =
      _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm512_shuffle_epi8(
      wide, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000));
}

// 4-bit codes of a panel as signed bytes less their zero point, [k/4][16][4].
void unpack_panel(const PanelView& p, const std::byte* panel, std::byte* to) {
  const __m512i low = _mm512_set1_epi8(15);
  const std::byte* zeros = p.zeros(panel, 0);
  __m512i zero = _mm512_set1_epi8(8);
  for (int64_t g = 0; g < p.segments; ++g, panel += p.segment_bytes, zeros += kPanelColumns) {
    if (p.zero_points) zero = spread_columns(zeros);
    for (int64_t i = 0; i < p.scales_at; i += 64, to += 128) {
      _mm_prefetch(reinterpret_cast<const char*>(panel + i + 4096), _MM_HINT_T0);
      const __m512i row = _mm512_load_si512(panel + i);
      const __m512i first = _mm512_and_si512(row, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(row, 4), low);
      _mm512_store_si512(to, _mm512_sub_epi8(first, zero));
      _mm512_store_si512(to + 64, _mm512_sub_epi8(second, zero));
    }
  }
}

}  // namespace

void int_linear_amx(const PanelView& stored, const IntRows& x, const Epilogue& e, int64_t rows,
                    Range units, std::byte* hot, std::byte* expanded) {
  const PanelView p = dense_of(stored);
  const int64_t tile_depth = p.segment % 64 ? 32 : 64;  // a group of 32 fills half a tile's
  const ProductTiles tiles(kTileRows, tile_depth);
  const Scratch scratch{reinterpret_cast<float*>(hot), reinterpret_cast<int32_t*>(hot + kSumsBytes),
                        hot + (1 + kGroupsAtOnce) * kSumsBytes};
  const bool packed = p.bits == 4;
  const Order order(units, p.per_unit, 2);
  const int64_t row_blocks = ceil_div(rows, int_row_block(x.row_bytes, p.tuning));
  for (int64_t index = 0; index < row_blocks; ++index) {
    const Range row_block = even_share(ceil_div(rows, kTileRows), index, row_blocks);  // in tiles
    const int64_t bands = ceil_div(row_block.size(), 2);
    for (Place at = order.first(); at.panels; at = order.after(at)) {
      const std::byte* weights = p.data + at.unit * p.per_unit * stored.panel_bytes;
      const std::byte* const following = weights + at.panels * stored.panel_bytes;
      if (stored.sparse) {
        for (int i = 0; i < at.panels; ++i)
          expand_sparse_panel(stored, weights + i * stored.panel_bytes,
                              expanded + i * p.panel_bytes);
        weights = expanded;
      }
      Block block{nullptr, x.row_bytes, weights, p.segment_bytes, p.panel_bytes,
                  p.segment / tile_depth, tile_depth};
      if (packed) {
        block.codes = scratch.codes;
        block.code_stride = p.segment * kPanelColumns;
        block.panel_stride = p.depth * kPanelColumns;
        for (int i = 0; i < at.panels; ++i)
          unpack_panel(p, weights + i * p.panel_bytes, scratch.codes + i * block.panel_stride);
      }
      const std::byte* next = stored.sparse ? expanded : following;  // which is not prefetched
      for (int64_t b = 0; b < bands; ++b) {
        const int64_t row = (row_block.first + 2 * b) * kTileRows;
        const int row_tiles = int(std::min<int64_t>(2, row_block.size() - 2 * b));
        const Range lines = packed ? Range{0, 0} : even_share(p.segment_bytes / 64, b, bands);
        const std::byte* scales = weights + p.scales_at;
        block.x = x.row(row);
        const auto multiply_block = packed ? choose<true>(row_tiles, at.panels)
                                           : choose<false>(row_tiles, at.panels);
        multiply_block(p, x, row, block, scales, next, lines, scratch);
        const int64_t real = std::min(row_tiles * kTileRows, rows - row);
        const int64_t panel = row_tiles * kTileInts;
        e.finish_block(at.unit, at.panels, row, real,
                       [&](int i) { return FloatSums{scratch.sums + i * panel, panel}; });
      }
    }
  }
}

int64_t int_amx_hot_bytes(const PanelView& p) {
  return (1 + kGroupsAtOnce) * kSumsBytes + (p.bits == 4 ? 2 * p.depth * kPanelColumns : 0);
}

}  // namespace penstock

#endif
