// Points by bfloat16 on AMX tiles, for any number of rows: a tile product takes 16 cycles whatever
// its rows, less than expanding its weights, so the order of arithmetic is one by construction.
#include "gemm_points_walk.h"

#if defined(__AMX_BF16__)

#include "amx_tiles.h"
#include "gemm_lattice_expand.h"

namespace penstock {
namespace {

constexpr int64_t kTileK = 32;

// Rows as AmxKernel of gemm_amx.cpp has them, but in PairPoints' order.
class PointTiles {
 public:
  static constexpr int kPanels = 2;
  static constexpr int64_t kRows = 2 * kTileRows;
  static constexpr int64_t kElement = 2;
  static constexpr int64_t kStep = kTileK;
  // With so many bands, rows pass through L1 beside weights that are to stay.
  static constexpr int64_t kStreamedBands = 3;

  static constexpr int64_t padded_rows(int64_t rows) {
    return rows <= kTileRows ? rows : round_up(rows, kTileRows);
  }
  static constexpr int64_t bands(int64_t rows) { return ceil_div(rows, kRows); }
  static constexpr Range band(int64_t rows, int64_t b) {
    return {b * kRows, std::min((b + 1) * kRows, rows)};
  }

  explicit PointTiles(int64_t rows)
      : tile_rows_(std::min(rows, kTileRows)),
        streamed_(bands(rows) >= kStreamedBands),
        tiles_(tile_rows_) {}

  int64_t sum_rows(int64_t rows) const { return round_up(rows, tile_rows_); }

  // To [row tile][step][tile_rows][32].
  void pack(const InputRows& x, int64_t first, int64_t rows, int64_t k, int64_t steps,
            std::byte* to) const {
    // Of four k the inner two change places.
    const __m512i order = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
    for (int64_t r = 0; r < sum_rows(rows); ++r) {
      std::byte* out = to + (r / tile_rows_ * steps * tile_rows_ + r % tile_rows_) * 64;
      for (int64_t s = 0; s < steps; ++s, out += tile_rows_ * 64) {
        const int64_t at = k + s * kTileK;
        const auto there = unsigned(r < rows ? std::clamp<int64_t>(x.cols - at, 0, kTileK) : 0);
        const __m512i values =
            there ? _mm512_maskz_loadu_epi16(_bzhi_u32(~0u, there), x.row<bf16>(first + r) + at)
                  : _mm512_setzero_si512();
        _mm512_store_si512(out, _mm512_shuffle_epi8(values, order));
      }
    }
  }

  // ahead(s) is called in each step.
  template <class Ahead>
  void multiply(const Block& b, Ahead&& ahead) const {
    const bool second = b.panels > 1;
    if (sum_rows(b.rows) > kTileRows) {
      if (second) streamed_ ? tiles<2, 2, true>(b, ahead) : tiles<2, 2, false>(b, ahead);
      else tiles<2, 1, false>(b, ahead);
    } else {
      second ? tiles<1, 2, false>(b, ahead) : tiles<1, 1, false>(b, ahead);
    }
  }

 private:
  template <int Rows, int Columns, bool Streamed, class Ahead>
  void tiles(const Block& b, Ahead&& ahead) const {
    const TileBlock block{b.activations,
                          tile_rows_ * 64,
                          b.panel_bytes,
                          b.steps,
                          reinterpret_cast<const std::byte*>(b.before),
                          reinterpret_cast<std::byte*>(b.after)};
    multiply_tiles<TileDot::bf16, Rows, Columns, Streamed>(
        block, [&](int64_t s) { return b.weights + s * kTileBytes; }, ahead);
  }

  int64_t tile_rows_;
  bool streamed_;
  ProductTiles tiles_;
};

}  // namespace

struct TilePointsPath : PointsWalk<PointTiles, PairPoints> {
  using PointsWalk::PointsWalk;
};
template struct Product<TilePointsPath>;

// The group of a format is one of a kernel's; tiles take all k as one.
struct TileLatticePath : PointsWalk<PointTiles, LatticePairs> {
  TileLatticePath(const PanelView& p, const InputRows& x, const Epilogue& e, Range rows, bool shared,
                  std::byte* ready)
      : PointsWalk(of_whole_rows(p), x, e, rows, shared, ready) {}

 private:
  static PanelView of_whole_rows(PanelView p) {
    p.scaled = 0;
    return p;
  }
};
template struct Product<TileLatticePath>;

}  // namespace penstock

#endif
