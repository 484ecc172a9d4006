// bfloat16 products on AMX tiles. Every number of rows takes this path, one row included: a tile
// product takes 16 cycles for 1 KiB of weights whatever its rows, several times faster than memory
// delivers them, and so the order of arithmetic is the same for all by construction.
#include "gemm_kernels.h"

#if defined(__AMX_BF16__)

#include "../amx.h"

namespace penstock {
namespace {

// Tiles 0-3 accumulate (row tile, panel) = (0,0) (0,1) (1,0) (1,1); 4 and 5 hold activations,
// 6 and 7 weights.
struct ProductTileConfig : TileConfig {
  explicit ProductTileConfig(int rows_of_activations) {
    for (int t = 0; t < 8; ++t) {
      row_bytes[t] = 64;
      rows[t] = uint8_t(t < 6 ? rows_of_activations : 16);
    }
  }
};

constexpr int64_t kTileBytes = 1024;  // of weights; 32 k by 16 columns
constexpr int64_t kTileK = 32;
constexpr int64_t kTileRows = 16;

// `Rows` row tiles of `tile_bytes` each step by `Columns` panels.
template <int Rows, int Columns>
PENSTOCK_INLINE void multiply_tiles(const Block& b, int64_t rows_per_tile, int64_t sum_rows) {
  const int64_t step = rows_per_tile * 64;
  const std::byte* a0 = b.activations;
  const std::byte* a1 = a0 + b.steps * step;
  const std::byte* w0 = b.weights;
  const std::byte* w1 = w0 + b.panel_bytes;
  const int64_t panel = sum_rows * kPanelColumns;  // floats
  constexpr int64_t tile = kTileRows * kPanelColumns;

  if (b.before) {
    _tile_loadd(0, b.before, 64);
    if constexpr (Columns > 1) _tile_loadd(1, b.before + panel, 64);
    if constexpr (Rows > 1) _tile_loadd(2, b.before + tile, 64);
    if constexpr (Rows > 1 && Columns > 1) _tile_loadd(3, b.before + panel + tile, 64);
  } else {
    _tile_zero(0);
    if constexpr (Columns > 1) _tile_zero(1);
    if constexpr (Rows > 1) _tile_zero(2);
    if constexpr (Rows > 1 && Columns > 1) _tile_zero(3);
  }

  for (int64_t s = 0; s < b.steps; ++s) {
    const std::byte* ahead = (s < b.turn ? b.near : b.far) + s * kTileBytes;
    // Unrolled, the burst of 32 prefetches keeps tile loads waiting: one row then takes 8 % longer.
#pragma GCC unroll 1
    for (int64_t line = b.lines.first; line < b.lines.last; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
      if constexpr (Columns > 1)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + b.panel_bytes + line * 64),
                     _MM_HINT_T1);
    }
    _tile_loadd(6, w0 + s * kTileBytes, 64);
    _tile_loadd(4, a0 + s * step, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns > 1) {
      _tile_loadd(7, w1 + s * kTileBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Rows > 1) {
      _tile_loadd(5, a1 + s * step, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }

  _tile_stored(0, b.after, 64);
  if constexpr (Columns > 1) _tile_stored(1, b.after + panel, 64);
  if constexpr (Rows > 1) _tile_stored(2, b.after + tile, 64);
  if constexpr (Rows > 1 && Columns > 1) _tile_stored(3, b.after + panel + tile, 64);
}

// As <2, 2>, for blocks of whole tiles whose weights stay in L1 from one group of rows to the next.
// What costs time there is what passes through L1, so activations, of no use again soon, are loaded
// with the streaming hint, the next group's sums are prefetched, and sums are loaded and stored in
// between products. (One thread, 512 rows, K = 2048, peak 2.55 TFLOP/s: 1.23 without any of it, 1.53
// with the hint, 1.70 with the prefetch too, 1.74 with all.)
void multiply_whole(const Block& b) {
  const std::byte* a0 = b.activations;
  const std::byte* a1 = a0 + b.steps * kTileBytes;
  const std::byte* w0 = b.weights;
  const std::byte* w1 = w0 + b.panel_bytes;
  constexpr int64_t tile = kTileRows * kPanelColumns;  // floats

  const auto prefetch = [&](int64_t s) __attribute__((always_inline)) {
    const std::byte* ahead = b.far + s * kTileBytes;
    for (int64_t line = b.lines.first; line < b.lines.last; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + b.panel_bytes + line * 64), _MM_HINT_T1);
    }
    if (s >= kTileRows) return;
    for (int64_t line = 0; line < 4; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(b.next + (4 * s + line) * 16), _MM_HINT_T0);
    if (!b.out) return;
    for (int64_t row = 2 * s; row < 2 * s + 2; ++row)
      for (int64_t line = 0; line < 2; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(b.out + row * b.out_row_bytes + line * 64),
                     _MM_HINT_T0);
  };

  int64_t s = 0;
  if (b.before) {
    prefetch(0);
    _tile_loadd(6, w0, 64);
    _tile_stream_loadd(4, a0, 64);
    _tile_stream_loadd(0, b.before, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1, 64);
    _tile_stream_loadd(1, b.before + 2 * tile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, a1, 64);
    _tile_stream_loadd(2, b.before + tile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(3, b.before + 3 * tile, 64);
    _tile_dpbf16ps(3, 5, 7);
    s = 1;
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (; s < b.steps; ++s) {
    prefetch(s);
    _tile_loadd(6, w0 + s * kTileBytes, 64);
    _tile_stream_loadd(4, a0 + s * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + s * kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, a1 + s * kTileBytes, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, b.after, 64);
  _tile_stored(1, b.after + 2 * tile, 64);
  _tile_stored(2, b.after + tile, 64);
  _tile_stored(3, b.after + 3 * tile, 64);
}

// Up to 16 rows are one tile of as many rows; more are packed in whole tiles, the last filled up
// with zeros, in groups of two tiles.
class AmxKernel {
 public:
  static constexpr int kPanels = 2;
  static constexpr int64_t kRows = 2 * kTileRows;
  static constexpr int64_t kElement = 2;
  static constexpr int64_t kStep = kTileK;
  // Two panels of 32 KiB together: with streaming loads beside them they stay in a 48 KiB L1. (One
  // thread, 512 rows, K = 2048: 256 k 1.55 TFLOP/s, 384 1.61, 512 1.71, 640 1.64, 1024 1.25.)
  static constexpr int64_t kSharedSlice = 512;

  static constexpr int64_t padded_rows(int64_t rows) {
    return rows <= kTileRows ? rows : round_up(rows, kTileRows);
  }
  static constexpr int64_t groups(int64_t rows) { return ceil_div(rows, kRows); }
  static constexpr Range group(int64_t rows, int64_t g) {
    return {g * kRows, std::min((g + 1) * kRows, rows)};
  }

  explicit AmxKernel(int64_t rows) : tile_rows_(std::min(rows, kTileRows)) {
    ProductTileConfig(int(tile_rows_)).load();
  }
  ~AmxKernel() { _tile_release(); }
  AmxKernel(const AmxKernel&) = delete;
  AmxKernel& operator=(const AmxKernel&) = delete;

  int64_t sum_rows(int64_t rows) const { return round_up(rows, tile_rows_); }

  // To [row tile][step][tile_rows][32].
  void pack(const Array& x, int64_t first, int64_t rows, int64_t k, int64_t steps,
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

  void multiply_resident(const Block& b) const {
    if (sum_rows(b.rows) == kRows && b.panels == kPanels)
      multiply_whole(b);
    else
      multiply(b);
  }

  void multiply(const Block& b) const {
    const int64_t sums = sum_rows(b.rows);
    if (sums > kTileRows) {
      if (b.panels > 1) multiply_tiles<2, 2>(b, tile_rows_, sums);
      else multiply_tiles<2, 1>(b, tile_rows_, sums);
    } else {
      if (b.panels > 1) multiply_tiles<1, 2>(b, tile_rows_, sums);
      else multiply_tiles<1, 1>(b, tile_rows_, sums);
    }
  }

 private:
  int64_t tile_rows_;
};

}  // namespace

void linear_amx(const Panels& p, const Array& x, const Epilogue& e, int64_t rows,
                std::byte* shared, const Worker& worker) {
  Walk<AmxKernel>(p, x, e, worker.scratch).run_shared(rows, shared, worker);
}

int64_t amx_scratch_bytes(const Panels& p, int64_t rows) {
  return Walk<AmxKernel>::private_bytes(p, rows);
}

int64_t amx_shared_bytes(const Panels& p, int64_t rows) {
  return Walk<AmxKernel>::shared_bytes(p, rows);
}

}  // namespace penstock

#endif
