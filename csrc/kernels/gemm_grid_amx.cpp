// Products on the 8-bit grid with AMX tiles: the choice for more than a few rows.
#include "gemm_grid_line.h"
#include "gemm_order.h"

#if defined(__AMX_INT8__)

#include "amx_tiles.h"

namespace penstock {
namespace {

// Two panels of 16 KiB stay in L1, beside the rows that stream through.
constexpr int64_t kSliceSteps = 16;
constexpr int64_t kGridBytes = 2 * kSliceSteps * kGridTileBytes;
// Quantized rows of a stretch of the depth stay in half of a 2 MiB L2, sums in the other.
constexpr int64_t kRowsBytes = 1 << 20;
constexpr int64_t kSumsBytes = 1 << 20;
constexpr int kPanels = 2;  // of a block
constexpr int64_t kBandTiles = 2;
constexpr int64_t kBandSums = 4 * kTileBytes;  // bytes of a band's sums in two panels
// Fewer rows have fewer sums to carry from slice to slice.
constexpr int64_t kFewRows = 96;
constexpr int64_t kFewSliceSteps = 8;
// Up to 32 rows: steps of 4-bit weights that are expanded ahead of the tiles, and how much further
// ahead codes are prefetched.
constexpr int64_t kRingAhead = 4;
constexpr int64_t kRingSteps = 8;
constexpr int64_t kRingPanel = kRingSteps * kGridTileBytes;
constexpr int64_t kFetchAhead = 2 << 10;
// And 8-bit weights are prefetched.
constexpr int64_t kNearSteps = 2;
constexpr int64_t kMostBands = kRowBlock / (kBandTiles * kTileRows);
// With fewer bands than this, rows of x are used again while still in L1. (64 rows, two
// bands, of processor time: streaming takes 5 to 9 % less with 8 bits, 8 to 13 with 4.)
constexpr int64_t kStreamedBands = 2;

static_assert(kMostBands * kBandSums <= kSumsBytes);

class GridWalk {
 public:
  GridWalk(const GridPanels& p, const QuantizedRows& x, const Epilogue& e, int64_t rows,
           Range units, std::byte* scratch)
      : p_(p),
        x_(x),
        e_(e),
        rows_(rows),
        order_(units, p.per_unit, kPanels, ceil_div(p.steps, x.slice_steps)),
        grid_{scratch, scratch + kGridBytes},
        hot_(scratch + 2 * kGridBytes),
        sums_(hot_ + kBandSums) {}

  void run() {
    const ProductTiles tiles(x_.tile_rows);
    const int64_t bands = ceil_div(x_.tiles, kBandTiles);
    if (bands == 1) {
      bands_ = {0, 1};
      one_band();
      return finish(pending_.rows.size());
    }
    const int64_t row_blocks = ceil_div(bands, kMostBands);
    for (int64_t i = 0; i < row_blocks; ++i) row_block(even_share(bands, i, row_blocks));
    finish(pending_.rows.size());
  }

 private:
  // One band: all of the depth at once, 4-bit weights by way of a ring of steps.
  void one_band() {
    const int64_t near = std::min(kNearSteps, p_.steps);
    const int64_t rows_a_step = ceil_div(rows_, p_.steps);
    for (Place at = order_.first(); at.panels;) {
      const Place next = order_.after(at);
      prefetch_scales(at);
      if (p_.bits == 8) {
        const std::byte* const weights = panel(at);
        const std::byte* const then = next.panels ? panel(next) : weights;
        const int64_t second = at.panels > 1 ? p_.panel_bytes : 0;
        TileBlock b = whole_depth();
        b.panel_bytes = p_.panel_bytes;
        multiply(
            b, int(x_.tiles), at.panels, [&](int64_t s) { return weights + s * kGridTileBytes; },
            [&](int64_t s) {
              finish(rows_a_step);
              const int64_t step = s + near;
              const std::byte* const from = step < p_.steps
                                                ? weights + step * kGridTileBytes
                                                : then + (step - p_.steps) * kGridTileBytes;
              for (int64_t line = 0; line < kGridTileBytes; line += kLineBytes) {
                __builtin_prefetch(from + line);
                __builtin_prefetch(from + second + line);
              }
            });
        finish_later(at, 0, int(x_.tiles));
      } else {
        if (at.unit == order_.share.first)
          for (int64_t item = 0; item < 2 * ring_ahead(); ++item)
            expand(at, item, ring(0, item), kRingPanel);
        by_ring(at, next);
      }
      at = next;
    }
  }

  TileBlock whole_depth() const {
    return {x_.tile(0, 0), x_.row_step(), 0, p_.steps, nullptr, hot_};
  }

  // Where a group of k of global step `step` goes.
  std::byte* ring(int64_t step, int64_t item) const {
    return grid_[0] + (step + item / 2) % kRingSteps * kGridTileBytes +
           item % 2 * (kGridTileBytes / 2);
  }

  // Steps; no further than the next place.
  int64_t ring_ahead() const { return std::min(kRingAhead, p_.steps); }

  void by_ring(const Place& at, const Place& next) {
    const int64_t ahead = ring_ahead();
    const int64_t rows_a_step = ceil_div(rows_, p_.steps);
    const int64_t turn = (at.unit - order_.share.first) / order_.stride * p_.steps;  // global step
    TileBlock b = whole_depth();
    b.panel_bytes = kRingPanel;
    multiply(
        b, int(x_.tiles), at.panels, [&](int64_t s) { return ring(turn + s, 0); },
        [&](int64_t s) {
          finish(rows_a_step);
          int64_t item = 2 * (s + ahead);
          const Place* to = &at;
          if (item >= 2 * p_.steps) {
            item -= 2 * p_.steps;
            to = &next;
            if (!next.panels) return;
          }
          for (int64_t i = item; i < item + 2; ++i) {
            prefetch(*to, i, kFetchAhead);
            expand(*to, i, ring(turn + s + ahead, i % 2), kRingPanel);
          }
        });
    finish_later(at, 0, int(x_.tiles));
  }

  void row_block(Range bands) {
    bands_ = bands;
    const int64_t slice_bytes = bands.size() * kBandTiles * x_.row_step() * x_.slice_steps;
    order_.deep = std::clamp<int64_t>(kRowsBytes / slice_bytes, 1, order_.slices);
    order_.wide = order_.stride;
    if (order_.deep < order_.slices) order_.wide *= kSumsBytes / (bands.size() * kBandSums);
    Place at = order_.first();
    turn_ = 0;
    if (p_.bits == 4) expand_all(at);
    while (at.panels) {
      const Place next = order_.after(at);
      const Place later = p_.bits == 4 ? order_.after(next) : next;
      if (order_.ends(at)) prefetch_scales(at);
      for (int64_t b = 0; b < bands.size(); ++b) band(at, next, later, b);
      turn_ ^= 1;
      at = next;
    }
  }

  int64_t steps_of(const Place& at) const {
    return std::min(x_.slice_steps, p_.steps - at.slice * x_.slice_steps);
  }
  const std::byte* panel(const Place& at) const {
    return p_.data + at.unit * p_.per_unit * p_.panel_bytes;
  }

  // Half a step, of every panel of a place, from codes to the grid.
  PENSTOCK_INLINE void expand(const Place& at, int64_t item, std::byte* to,
                              int64_t panel_bytes) const {
    const int64_t s = at.slice * x_.slice_steps + item / 2, half = item % 2;
    const std::byte* codes = panel(at) + p_.step_at(s) + half * (kGridTileBytes / 4);
    const std::byte* windows =
        panel(at) + p_.windows_at(s) + half * (kStepGroups / 2) * kPanelColumns;
    for (int i = 0; i < at.panels; ++i)
      expand_half(codes + i * p_.panel_bytes, windows + i * p_.panel_bytes,
                  to + i * panel_bytes);
  }
  void expand_all(const Place& at) {
    for (int64_t item = 0; item < 2 * steps_of(at); ++item)
      expand(at, item, grid_[turn_] + item * (kGridTileBytes / 2), slice_bytes());
  }
  int64_t slice_bytes() const { return x_.slice_steps * kGridTileBytes; }
  PENSTOCK_INLINE void prefetch(const Place& at, int64_t item, int64_t ahead = 0) const {
    const int64_t s = at.slice * x_.slice_steps + item / 2;
    const std::byte* codes =
        panel(at) + p_.step_at(s) + item % 2 * (kGridTileBytes / 4) + ahead;
    const std::byte* windows = panel(at) + p_.windows_at(s) + ahead;
    for (int i = 0; i < at.panels; ++i) {
      for (int64_t line = 0; line < 4; ++line)
        __builtin_prefetch(codes + i * p_.panel_bytes + line * kLineBytes, 0, 2);
      __builtin_prefetch(windows + i * p_.panel_bytes, 0, 2);
    }
  }

  // One band, beside its share of making `next` and `later` ready.
  void band(const Place& at, const Place& next, const Place& later, int64_t index) {
    const int64_t tile = (bands_.first + index) * kBandTiles;
    const int row_tiles = int(std::min(kBandTiles, x_.tiles - tile));
    const bool ends = order_.ends(at);
    std::byte* const own =
        sums_ + ((at.unit - at.chunk) / order_.stride * bands_.size() + index) * kBandSums;
    TileBlock b;
    b.rows = x_.tile(tile, at.slice);
    b.row_step = x_.row_step();
    b.steps = steps_of(at);
    b.before = at.slice ? own : nullptr;
    b.after = ends ? hot_ : own;
    const int64_t rows_a_step = ceil_div(kBandTiles * x_.tile_rows, b.steps);
    const std::byte* const next_sums =
        at.slice && index + 1 < bands_.size() ? own + kBandSums : nullptr;
    const Array& out = e_.out;
    const int64_t row = tile * x_.tile_rows;
    const int64_t element = int64_t(elem_bytes(out.elem));
    const std::byte* const next_out =
        ends && row + kBandTiles * x_.tile_rows <= rows_
            ? out.data + (row * out.stride + at.unit * kPanelColumns) * element
            : nullptr;
    if (p_.bits == 8) {
      const std::byte* const weights = panel(at) + p_.step_at(at.slice * x_.slice_steps);
      b.panel_bytes = p_.panel_bytes;
      const Range lines = even_share(next.panels ? 16 * steps_of(next) : 0, index, bands_.size());
      const std::byte* from =
          next.panels ? panel(next) + p_.step_at(next.slice * x_.slice_steps) : nullptr;
      const int64_t second = next.panels > 1 ? p_.panel_bytes : 0;
      const int64_t each = ceil_div(lines.size(), b.steps);
      multiply(
          b, row_tiles, at.panels, [&](int64_t s) { return weights + s * kGridTileBytes; },
          [&](int64_t s) {
            finish(rows_a_step);
            prefetch_sums(next_sums, s);
            prefetch_out(next_out, s);
            const int64_t last = std::min(lines.last, lines.first + (s + 1) * each);
            for (int64_t line = lines.first + s * each; line < last; ++line) {
              __builtin_prefetch(from + line * kLineBytes, 0, 2);
              __builtin_prefetch(from + second + line * kLineBytes, 0, 2);
            }
          });
    } else {
      b.panel_bytes = slice_bytes();
      const Range items = even_share(next.panels ? 2 * steps_of(next) : 0, index, bands_.size());
      const int64_t to_fetch = later.panels ? 2 * steps_of(later) : 0;
      const int64_t each = ceil_div(items.size(), b.steps);
      const std::byte* const weights = grid_[turn_];
      std::byte* const grid = grid_[turn_ ^ 1];
      multiply(
          b, row_tiles, at.panels, [&](int64_t s) { return weights + s * kGridTileBytes; },
          [&](int64_t s) {
            finish(rows_a_step);
            prefetch_sums(next_sums, s);
            prefetch_out(next_out, s);
            const int64_t last = std::min(items.last, items.first + (s + 1) * each);
            for (int64_t item = items.first + s * each; item < last; ++item) {
              if (item < to_fetch) prefetch(later, item);
              expand(next, item, grid + item * (kGridTileBytes / 2), slice_bytes());
            }
          });
    }
    if (ends) finish_later(at, tile, row_tiles);
  }

  // In each of 16 steps a few cache lines of the next band's sums, and of the rows of the output
  // that this one's sums go to.
  static PENSTOCK_INLINE void prefetch_sums(const std::byte* sums, int64_t s) {
    if (sums && s < kTileRows)
      for (int64_t line = 0; line < kBandSums / kTileRows; line += kLineBytes)
        __builtin_prefetch(sums + s * (kBandSums / kTileRows) + line);
  }
  PENSTOCK_INLINE void prefetch_out(const std::byte* out, int64_t s) const {
    if (!out || s >= kTileRows) return;
    const int64_t row_bytes = e_.out.stride * int64_t(elem_bytes(e_.out.elem));
    for (int64_t row = 2 * s; row < 2 * s + 2; ++row)
      for (int64_t line = 0; line < 2 * kLineBytes; line += kLineBytes)
        __builtin_prefetch(out + row * row_bytes + line, 1);
  }

  // Scales are a line of memory of their own, wanted at the end.
  void prefetch_scales(const Place& at) const {
    for (int i = 0; i < at.panels; ++i)
      __builtin_prefetch(p_.scales(at.unit * p_.per_unit + i));
  }

  template <class Weights, class Ahead>
  PENSTOCK_INLINE void multiply(const TileBlock& b, int row_tiles, int panels, Weights&& weights,
                                Ahead&& ahead) const {
    constexpr TileDot bytes = TileDot::bytes;
    if (row_tiles > 1 && panels > 1 && bands_.size() >= kStreamedBands)
      multiply_tiles<bytes, 2, 2, true>(b, weights, ahead);
    else if (row_tiles > 1)
      panels > 1 ? multiply_tiles<bytes, 2, 2, false>(b, weights, ahead)
                 : multiply_tiles<bytes, 2, 1, false>(b, weights, ahead);
    else
      panels > 1 ? multiply_tiles<bytes, 1, 2, false>(b, weights, ahead)
                 : multiply_tiles<bytes, 1, 1, false>(b, weights, ahead);
  }

  void finish_later(const Place& at, int64_t tile, int row_tiles) {
    const int64_t row = tile * x_.tile_rows, sum_rows = row_tiles * x_.tile_rows;
    pending_ = {at.unit, at.panels, sum_rows, {row, std::min(row + sum_rows, rows_)}};
  }

  PENSTOCK_INLINE void finish(int64_t most) {
    const int64_t first = pending_.unit * p_.per_unit;  // panel
    pending_.finish(e_, most, [&](int panel, int64_t row, int64_t at, int64_t part) {
      return GridSums{reinterpret_cast<const int32_t*>(hot_) + at, part, x_.scales + row,
                      x_.starts + row, p_.scales(first + panel), p_.panel_bytes / 4};
    });
  }

  const GridPanels p_;
  const QuantizedRows x_;
  const Epilogue e_;
  const int64_t rows_;
  Order order_;  // of this row block
  std::byte* const grid_[2];  // 4 bits: weights in use, and those being expanded
  std::byte* const hot_;      // finished sums of one band
  std::byte* const sums_;
  Range bands_{0, 0};  // of this row block
  int turn_ = 0;
  Pending pending_;
};

}  // namespace

int64_t grid_amx_slice_steps(const GridPanels& p, int64_t rows) {
  if (rows <= kBandTiles * kTileRows) return p.steps;
  const int64_t most = rows <= kFewRows ? kFewSliceSteps : kSliceSteps;
  return ceil_div(p.steps, ceil_div(p.steps, most));
}

int64_t grid_amx_scratch_bytes(const GridPanels&, int64_t rows) {
  return 2 * kGridBytes + kBandSums + (rows > kTileRows ? kSumsBytes : kBandSums);
}

void grid_linear_amx(const GridPanels& p, const QuantizedRows& x, const Epilogue& e, int64_t rows,
                     Range units, std::byte* scratch) {
  GridWalk(p, x, e, rows, units, scratch).run();
}

}  // namespace penstock

#endif
