// bfloat16 products on AMX tiles. Every number of rows takes this path, one row included: a tile
// product takes 16 cycles for 1 KiB of weights whatever its rows, several times faster than memory
// delivers them, and so the order of arithmetic is the same for all by construction.
#include "gemm_walk.h"

#if defined(__AMX_BF16__)

#include "amx_tiles.h"

namespace penstock {
namespace {

constexpr int64_t kTileK = 32;

// Prefetches a block's share of the next weights.
PENSTOCK_INLINE void prefetch_lines(const Block& b, const std::byte* ahead, bool second) {
  // Unrolled, the burst of 32 prefetches keeps tile loads waiting: one row then takes 8 % longer.
#pragma GCC unroll 1
  for (int64_t line = b.lines.first; line < b.lines.last; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
    if (second)
      _mm_prefetch(reinterpret_cast<const char*>(ahead + b.panel_bytes + line * 64), _MM_HINT_T1);
  }
}

// Up to 16 rows are one tile of as many rows; more are packed in whole tiles, the last filled up
// with zeros; a band is two tiles.
class AmxKernel {
 public:
  static constexpr int kPanels = 2;
  static constexpr int64_t kRows = 2 * kTileRows;
  static constexpr int64_t kElement = 2;
  static constexpr int64_t kStep = kTileK;
  // (One thread, K = 2048: at 2 bands 0.51 TFLOP/s against 0.46 with shares, at 4 bands 0.69 against
  // 0.75.)
  static constexpr bool streams(int64_t rows, const Tuning& t) { return bands(rows, t) <= 2; }
  static constexpr int64_t ahead(int64_t, const Tuning& t) { return t.stream_ahead; }
  // A quarter of a 2 MiB L2 for the packed activations, half (Tuning::carry_bytes) for partial
  // sums; the rest is for weights passing through. (512 rows by K = 8192, N = 1024: slices of 256 KiB
  // 0.87 TFLOP/s, 512 KiB 1.05, 1 MiB 0.83; partial sums of 1.25 and 2 MiB changed nothing.)
  static constexpr CacheBounds bounds(const Tuning&) { return {kRowBlock, 512 << 10, int64_t(1) << 40}; }
  // Two panels of 32 KiB together: with streaming loads beside them they stay in a 48 KiB L1. (One
  // thread, 512 rows, K = 2048: 256 k 1.55 TFLOP/s, 384 1.61, 512 1.71, 640 1.64, 1024 1.25.)
  static constexpr int64_t kSharedSlice = 512;

  static constexpr int panels(int64_t, const Tuning&) { return kPanels; }
  static constexpr int64_t padded_rows(int64_t rows) {
    return rows <= kTileRows ? rows : round_up(rows, kTileRows);
  }
  static constexpr int64_t bands(int64_t rows, const Tuning&) { return ceil_div(rows, kRows); }
  static constexpr Range band(int64_t rows, int64_t b, const Tuning&) {
    return {b * kRows, std::min((b + 1) * kRows, rows)};
  }

  AmxKernel(int64_t rows, const Tuning&) : tile_rows_(std::min(rows, kTileRows)), tiles_(tile_rows_) {}

  int64_t sum_rows(int64_t rows) const { return round_up(rows, tile_rows_); }

  // To [row tile][step][tile_rows][32].
  void pack(const InputRows& x, int64_t first, int64_t rows, int64_t k, int64_t steps,
            std::byte* to) const {
    const int64_t row_step = tile_rows_ * 64;
    const int64_t whole = std::min(steps, std::max<int64_t>(0, x.cols - k) / kTileK);
    const int64_t left = std::max<int64_t>(0, std::min(x.cols - k, steps * kTileK)) -
                         whole * kTileK;
    for (int64_t r = 0; r < sum_rows(rows); ++r) {
      std::byte* out = to + r / tile_rows_ * steps * row_step + r % tile_rows_ * 64;
      if (r >= rows) {
        for (int64_t s = 0; s < steps; ++s)
          _mm512_store_si512(out + s * row_step, _mm512_setzero_si512());
        continue;
      }
      const bf16* in = x.row<bf16>(first + r) + k;
      for (int64_t s = 0; s < whole; ++s)
        _mm512_store_si512(out + s * row_step, _mm512_loadu_si512(in + s * kTileK));
      if (whole < steps) {
        const __mmask32 some = _bzhi_u32(~0u, unsigned(left));
        _mm512_store_si512(out + whole * row_step,
                           _mm512_maskz_loadu_epi16(some, in + whole * kTileK));
      }
    }
  }

  // Blocks of whole tiles whose weights stay in L1 from one band to the next: the next
  // band's sums are prefetched too. (One thread, 512 rows, K = 2048, peak 2.55 TFLOP/s: 1.23
  // without it and without streaming, 1.53 streaming, 1.74 with both.)
  template <class Meanwhile>
  void multiply_resident(const Block& b, Meanwhile&& meanwhile) const {
    if (sum_rows(b.rows) < kRows || b.panels < kPanels) {
      meanwhile(kRows);
      return multiply(b);
    }
    const int64_t rows_a_step = ceil_div(kRows, b.steps);
    const Range share = b.next_lines;
    const int64_t each = ceil_div(share.size(), b.steps);
    tiles<2, 2, true>(b, [&](int64_t s) __attribute__((always_inline)) {
      meanwhile(rows_a_step);
      const int64_t last = std::min(share.last, share.first + (s + 1) * each);
      for (int64_t line = share.first + s * each; line < last; ++line) {
        const auto* at = reinterpret_cast<const char*>(b.far + line * 64);
        _mm_prefetch(at, _MM_HINT_T1);
        _mm_prefetch(at + b.panel_bytes, _MM_HINT_T1);
      }
      if (s >= kTileRows) return;
      for (int64_t line = 0; line < 4; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(b.next + (4 * s + line) * 16), _MM_HINT_T0);
      if (!b.out) return;
      for (int64_t row = 2 * s; row < 2 * s + 2; ++row)
        for (int64_t line = 0; line < 2; ++line)
          _mm_prefetch(reinterpret_cast<const char*>(b.out + row * b.out_row_bytes + line * 64),
                       _MM_HINT_T0);
    });
  }

  void multiply(const Block& b) const {
    const bool second = b.panels > 1;
    const auto ahead = [&](int64_t s) __attribute__((always_inline)) {
      prefetch_lines(b, (s < b.turn ? b.near : b.far) + s * kTileBytes, second);
    };
    if (sum_rows(b.rows) > kTileRows)
      second ? tiles<2, 2, false>(b, ahead) : tiles<2, 1, false>(b, ahead);
    else
      second ? tiles<1, 2, false>(b, ahead) : tiles<1, 1, false>(b, ahead);
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
  ProductTiles tiles_;
};

}  // namespace

struct TilePath : Walk<AmxKernel> {
  using Walk::Walk;
};
template struct Product<TilePath, Panels>;

}  // namespace penstock

#endif
