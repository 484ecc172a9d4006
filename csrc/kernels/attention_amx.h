// The two products of attention on AMX tiles; the interface is that of attention_tiles.h.
//
// Rows come in panels of 16. Registers 0-3 accumulate, 4-5 hold a left operand per panel, 6-7 two
// neighbouring tiles of 16 columns of the cache, which is stored as they want it: pairs innermost.
// TDPBF16PS sums a column's even and odd products separately over the tile's pairs, adds the two
// and adds that to the accumulator: an order that depends on neither the other rows nor the number
// of rows. It reads subnormals as zero and writes none, so adding products with zero weights
// leaves an accumulator as it is.
#pragma once

#if defined(__AMX_BF16__)

#include "../amx.h"

#include "attention_tiles.h"

namespace penstock {

class AmxTiles {
 public:
  using Operand = bf16;
  static constexpr bool kStreams = false;

  static bool supports(int dim) { return dim % 16 == 0; }

  AmxTiles(int rows, int dim) : rows_(rows), dim_(dim), depth_(depth(dim)) {
    if (depth_ == kBlockSize) configure(depth_);
  }
  // Releasing the registers' contents spares the kernel from saving 8 KiB at a context switch.
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void scores(const bf16* q, int q_stride, const SplitBlocks& blocks, float* out) const {
    if (depth_ != kBlockSize) configure(depth_);
    constexpr int64_t stride = kBlockSize * 2 * sizeof(bf16);
    const int64_t left_stride = q_stride * int64_t(sizeof(bf16));
    const bf16* second = q + kPanel * q_stride;
    for (int b = blocks.first; b < blocks.last; ++b) {
      const std::byte* keys = blocks.keys[b];
      float* to = out + b * kBlockSize;
      if (blocks.streams) prefetch_tile(blocks.values[b]);
      _tile_zero(0);
      _tile_zero(1);
      if (rows_ > kPanel) {
        _tile_zero(2);
        _tile_zero(3);
        for (int d = 0; d < dim_; d += depth_, keys += depth_ / 2 * stride) {
          _tile_loadd(6, keys, stride);
          _tile_loadd(4, q + d, left_stride);
          _tile_loadd(7, keys + 64, stride);
          _tile_loadd(5, second + d, left_stride);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, to + kPanel * kScoreStride, kScoreBytes);
        _tile_stored(3, to + kPanel * kScoreStride + 16, kScoreBytes);
      } else {
        for (int d = 0; d < dim_; d += depth_, keys += depth_ / 2 * stride) {
          _tile_loadd(4, q + d, left_stride);
          _tile_loadd(6, keys, stride);
          _tile_loadd(7, keys + 64, stride);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
        }
      }
      _tile_stored(0, to, kScoreBytes);
      _tile_stored(1, to + 16, kScoreBytes);
    }
  }

  void weigh(const bf16* p, const SplitBlocks& blocks, float* out, int out_stride) const {
    if (depth_ != kBlockSize) configure(kBlockSize);
    if (rows_ > kPanel)
      weigh_two_panels(p, blocks, out, out_stride);
    else
      weigh_one_panel(p, blocks, out, out_stride);
  }

 private:
  static constexpr int kPanel = 16;
  static constexpr int64_t kScoreBytes = kScoreStride * sizeof(float);
  static constexpr int64_t kWeightBytes = kScoreStride * sizeof(bf16);

  // The inner dimension of a score tile: the largest even divisor of dim up to 32. Equal steps
  // need one configuration, and a padded last step would read beyond the keys.
  static int depth(int dim) {
    for (int d = kBlockSize; d > 2; d -= 2)
      if (dim % d == 0) return d;
    return 2;
  }

  void configure(int inner) const {
    const int first = std::min(rows_, kPanel);
    const int second = rows_ > kPanel ? rows_ - kPanel : first;
    TileConfig c;
    for (int i = 0; i < 4; ++i) {
      c.rows[i] = uint8_t(i < 2 ? first : second);
      c.row_bytes[i] = 64;
    }
    c.rows[4] = uint8_t(first);
    c.rows[5] = uint8_t(second);
    c.row_bytes[4] = c.row_bytes[5] = uint16_t(inner * sizeof(bf16));
    c.rows[6] = c.rows[7] = uint8_t(inner / 2);
    c.row_bytes[6] = c.row_bytes[7] = 64;
    c.load();
  }

  void weigh_two_panels(const bf16* p, const SplitBlocks& blocks, float* out,
                        int out_stride) const {
    const int64_t stride = dim_ * int64_t(2 * sizeof(bf16));
    const int64_t out_bytes = out_stride * int64_t(sizeof(float));
    for (int column = 0; column < dim_; column += 32) {
      const bool wide = column + 32 <= dim_;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int b = blocks.first; b < blocks.last; ++b) {
        const std::byte* values = blocks.values[b] + column * 4;
        const bf16* weights = p + b * kBlockSize;
        _tile_loadd(6, values, stride);
        _tile_loadd(4, weights, kWeightBytes);
        _tile_loadd(5, weights + kPanel * kScoreStride, kWeightBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (wide) {
          _tile_loadd(7, values + 64, stride);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      float* to = out + column;
      _tile_stored(0, to, out_bytes);
      _tile_stored(2, to + kPanel * out_stride, out_bytes);
      if (wide) {
        _tile_stored(1, to + 16, out_bytes);
        _tile_stored(3, to + kPanel * out_stride + 16, out_bytes);
      }
    }
  }

  // Few rows stream the cache: 64 columns a pass, so that a value row is read in longer runs.
  void weigh_one_panel(const bf16* p, const SplitBlocks& blocks, float* out,
                       int out_stride) const {
    const int64_t stride = dim_ * int64_t(2 * sizeof(bf16));
    const int64_t out_bytes = out_stride * int64_t(sizeof(float));
    for (int column = 0; column < dim_; column += 64) {
      const int tiles = std::min(4, (dim_ - column) / 16);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int b = blocks.first; b < blocks.last; ++b) {
        const std::byte* values = blocks.values[b] + column * 4;
        if (column == 0 && blocks.streams) prefetch_tile(blocks.next_keys[b]);
        _tile_loadd(4, p + b * kBlockSize, kWeightBytes);
        _tile_loadd(6, values, stride);
        _tile_dpbf16ps(0, 4, 6);
        if (tiles < 2) continue;
        _tile_loadd(7, values + 64, stride);
        _tile_dpbf16ps(1, 4, 7);
        if (tiles < 3) continue;
        _tile_loadd(6, values + 128, stride);
        _tile_dpbf16ps(2, 4, 6);
        if (tiles < 4) continue;
        _tile_loadd(7, values + 192, stride);
        _tile_dpbf16ps(3, 4, 7);
      }
      float* to = out + column;
      _tile_stored(0, to, out_bytes);
      if (tiles > 1) _tile_stored(1, to + 16, out_bytes);
      if (tiles > 2) _tile_stored(2, to + 32, out_bytes);
      if (tiles > 3) _tile_stored(3, to + 48, out_bytes);
    }
  }

  int rows_;
  int dim_;
  int depth_;
};

}  // namespace penstock

#endif  // __AMX_BF16__
