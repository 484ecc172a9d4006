// How a matrix product is divided: between threads, and into pieces that stay in cache. No
// arithmetic here, and nothing here changes the order of any. README.md defines the words.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../integers.h"
#include "gemm.h"

namespace penstock {

constexpr int64_t kLineBytes = 64;  // of a panel: 16 columns, 4 bytes each

struct Range {
  int64_t first;
  int64_t last;
  int64_t size() const { return last - first; }
};

// Contiguous, and even to within one, so that each thread streams through memory.
constexpr Range even_share(int64_t total, int64_t id, int64_t count) {
  return {total * id / count, total * (id + 1) / count};
}

// Weights that a thread takes at a time, at least, where few rows use them and reading them is what counts.
constexpr int64_t kPieceBytes = 64 << 10;

// The depth of a panel as stored: bf16 is padded to whole AMX tiles.
constexpr int64_t stored_depth(Elem elem, int64_t k) {
  return elem == Elem::bf16 ? round_up(k, 32) : k;
}

// A matrix seen as panels. A unit is what yields 16 output columns: a panel, or gate and up.
struct Panels {
  const std::byte* data;
  int64_t depth;
  int64_t k_bytes;  // of 16 columns by one k
  int64_t panel_bytes;
  int64_t units;
  int per_unit;
  Tuning tuning;

  explicit Panels(const PackedMatrix& w)
      : data(w.panels),
        depth(stored_depth(w.elem, w.k)),
        k_bytes(kPanelColumns * int64_t(elem_bytes(w.elem))),
        panel_bytes(depth * k_bytes),
        units(ceil_div(w.n, kPanelColumns)),
        per_unit(w.gated ? 2 : 1),
        tuning(w.tuning) {
    tuning.carry_bytes = tuning.carry_bytes / 64 * 64;  // what follows it is on a cache line too
  }
};

// How Walk cuts one thread's share of a row block. README.md has the loops.
//
// Activations are packed slice by slice, by each thread for itself; or, many rows of them, a row
// block at once by all threads together (Walk::make).
//
// Partial sums of unfinished slices are kept as float32, which is exact: the chain over k is the
// same with one slice or many.
struct Blocking {
  int64_t slice;  // k per slice, a multiple of 32
  int64_t slices;
  int64_t chunk;  // units per chunk
};

// More rows than this gain nothing: at 512 one read of the weights already takes less time than
// the arithmetic on them.
constexpr int64_t kRowBlock = 512;

// What a kernel's blocks have to stay in.
struct CacheBounds {
  int64_t row_block;  // rows that are multiplied at once, at most
  int64_t slice;      // bytes of packed activations of a slice
  int64_t panel;      // and of a panel, where it is not streamed
};

// Slices of at most `longest` k, as even as can be. rows: padded as the kernel packs them.
constexpr Blocking slices_of(int64_t rows, int64_t depth, int64_t longest, int64_t units,
                             int per_unit, int64_t carry) {
  const int64_t slices = ceil_div(depth, longest);
  if (slices == 1) return {round_up(depth, 32), 1, std::max<int64_t>(units, 1)};
  const int64_t slice = round_up(ceil_div(depth, slices), 32);
  const int64_t unit_carry = rows * per_unit * kPanelColumns * int64_t(sizeof(float));
  const int64_t chunks = ceil_div(units, std::max<int64_t>(carry / unit_carry, 1));
  return {slice, ceil_div(depth, slice), ceil_div(units, std::max<int64_t>(chunks, 1))};
}

}  // namespace penstock
