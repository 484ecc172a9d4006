// The innermost loop of products on AMX tiles: up to two row tiles by two panels.
#pragma once

#if defined(__AMX_TILE__)

#include "../amx.h"
#include "../simd.h"
#include "gemm.h"

namespace penstock {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 1024;  // of weights: 16 columns by 64 bytes of k

// Tiles 0-3 accumulate (row tile, panel) = (0,0) (0,1) (1,0) (1,1); 4 and 5 hold rows of x, 6 and 7
// weights. depth: bytes of k in those four.
struct ProductTileConfig : TileConfig {
  ProductTileConfig(int64_t tile_rows, int64_t depth) {
    for (int t = 0; t < 8; ++t) {
      row_bytes[t] = uint16_t(t == 4 || t == 5 ? depth : 64);
      rows[t] = uint8_t(t < 6 ? tile_rows : depth / 4);
    }
  }
};

// Tile registers set up for as long as it lives.
class ProductTiles {
 public:
  explicit ProductTiles(int64_t tile_rows, int64_t depth = 64) {
    ProductTileConfig(tile_rows, depth).load();
  }
  ~ProductTiles() { _tile_release(); }
  ProductTiles(const ProductTiles&) = delete;
  ProductTiles& operator=(const ProductTiles&) = delete;
};

enum class TileDot { bf16, bytes };  // bytes: signed rows of x by unsigned weights

struct TileBlock {
  const std::byte* rows;     // a row tile's steps; the second tile's follow them
  int64_t row_step;          // bytes from step to step, 64 a row
  int64_t panel_bytes;       // from one panel's weights to the next's
  int64_t steps;             // at least 1
  const std::byte* before;   // sums [panel][row tile][row][16] of 4 bytes; null: zeros
  std::byte* after;          // likewise, and may be `before`
};

// weights(s) is where the first panel's 1 KiB of step s lie. ahead(s) is called in each step, to
// make ready what comes next while the tiles work.
//
// Streamed: rows of x are loaded with the streaming hint. They are of no use again soon, while the
// weights are to stay in L1 from one band to the next; what passes through L1 is what
// costs time. Sums are loaded in between products for the same reason.
template <TileDot Dot, int Rows, int Columns, bool Streamed, class Weights, class Ahead>
PENSTOCK_INLINE void multiply_tiles(const TileBlock& b, Weights&& weights, Ahead&& ahead) {
  const std::byte* const x0 = b.rows;
  const std::byte* const x1 = x0 + b.steps * b.row_step;
  const int64_t tile = b.row_step, panel = Rows * tile;  // bytes of sums

// A tile's number is part of the instruction to the compiler, so no function can be given it.
#define PENSTOCK_LOAD_ROWS(tile, from)                        \
  do {                                                        \
    if constexpr (Streamed) _tile_stream_loadd(tile, from, 64); \
    else _tile_loadd(tile, from, 64);                         \
  } while (false)
#define PENSTOCK_DOT(sum, x, w)                                \
  do {                                                         \
    if constexpr (Dot == TileDot::bf16) _tile_dpbf16ps(sum, x, w); \
    else _tile_dpbsud(sum, x, w);                              \
  } while (false)
#define PENSTOCK_START(sum, at)                                        \
  do {                                                                 \
    if (s == 0) {                                                      \
      if (b.before) _tile_stream_loadd(sum, b.before + (at), 64);      \
      else _tile_zero(sum);                                            \
    }                                                                  \
  } while (false)

  for (int64_t s = 0; s < b.steps; ++s) {
    ahead(s);
    const std::byte* const w = weights(s);
    _tile_loadd(6, w, 64);
    PENSTOCK_LOAD_ROWS(4, x0 + s * b.row_step);
    PENSTOCK_START(0, 0);
    PENSTOCK_DOT(0, 4, 6);
    if constexpr (Columns > 1) {
      _tile_loadd(7, w + b.panel_bytes, 64);
      PENSTOCK_START(1, panel);
      PENSTOCK_DOT(1, 4, 7);
    }
    if constexpr (Rows > 1) {
      PENSTOCK_LOAD_ROWS(5, x1 + s * b.row_step);
      PENSTOCK_START(2, tile);
      PENSTOCK_DOT(2, 5, 6);
      if constexpr (Columns > 1) {
        PENSTOCK_START(3, panel + tile);
        PENSTOCK_DOT(3, 5, 7);
      }
    }
  }
#undef PENSTOCK_LOAD_ROWS
#undef PENSTOCK_DOT
#undef PENSTOCK_START

  _tile_stored(0, b.after, 64);
  if constexpr (Columns > 1) _tile_stored(1, b.after + panel, 64);
  if constexpr (Rows > 1) _tile_stored(2, b.after + tile, 64);
  if constexpr (Rows > 1 && Columns > 1) _tile_stored(3, b.after + panel + tile, 64);
}

}  // namespace penstock

#endif
