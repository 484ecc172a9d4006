// The order in which a walk passes one thread's share of a matrix, whatever the format: plain
// numbers. README.md defines the words.
#pragma once

#include "gemm_cuts.h"

namespace penstock {

// Where a walk stands: the panels of a block and a slice, and what they are cut from.
struct Place {
  int64_t chunk;    // its first unit
  int64_t stretch;  // its first slice
  int64_t unit;     // the block's first
  int64_t slice;
  int panels;  // of the block; 0: the end
};

// Chunks of the share, outermost; then stretches of the depth, the blocks of the chunk, and the
// slices of the stretch. As made, a chunk is one block: each takes the whole depth before the next.
struct Order {
  Range share;  // units
  int per_unit;
  int64_t slices;  // of the whole depth
  int64_t stride;  // units of a block
  int64_t wide;    // units of a chunk
  int64_t deep = 1;  // slices of a stretch

  // side_by_side: panels of a block. A unit is never cut, though it has more.
  Order(Range units, int unit_panels, int side_by_side, int64_t all_slices = 1)
      : share(units),
        per_unit(unit_panels),
        slices(all_slices),
        stride(std::max(1, side_by_side / unit_panels)),
        wide(stride) {}

  Place first() const { return {share.first, 0, share.first, 0, panels(share.first, share.first)}; }

  Place after(Place at) const {
    if (at.panels == 0 || ++at.slice < std::min(at.stretch + deep, slices)) return at;
    at.unit += stride;
    if (at.unit >= chunk_end(at.chunk)) {
      at.stretch += deep;
      if (at.stretch >= slices) at.chunk = chunk_end(at.chunk), at.stretch = 0;
      at.unit = at.chunk;
    }
    at.slice = at.stretch;
    at.panels = panels(at.chunk, at.unit);
    return at;
  }

  // Whether the sums of a place are complete.
  bool ends(const Place& at) const { return at.slice + 1 == slices; }

 private:
  int64_t chunk_end(int64_t chunk) const { return std::min(chunk + wide, share.last); }
  int panels(int64_t chunk, int64_t unit) const {
    return int(std::min(stride, chunk_end(chunk) - unit)) * per_unit;
  }
};

}  // namespace penstock
