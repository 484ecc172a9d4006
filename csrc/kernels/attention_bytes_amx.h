// The two products of attention over an INT8 cache on AMX tiles; the interface is that of
// attention_bytes.h.
//
// Rows come in panels of 16. Registers 0-3 accumulate, 4-5 hold left operands and 6-7 tiles of 16
// columns of the cache. One panel takes two tiles of columns by two planes at a time, two panels
// one tile. Sums are of integers, so only speed depends on any of it.
#pragma once

#if defined(__AMX_INT8__)

#include "../amx.h"
#include "attention_bytes.h"

namespace penstock {

class AmxByteTiles {
 public:
  static bool supports(int dim) { return dim % 16 == 0; }

  AmxByteTiles(int rows, int dim) : rows_(rows), dim_(dim), depth_(depth(dim)) {}
  // Releasing the registers' contents spares the kernel from saving 8 KiB at a context switch.
  ~AmxByteTiles() { _tile_release(); }
  AmxByteTiles(const AmxByteTiles&) = delete;
  AmxByteTiles& operator=(const AmxByteTiles&) = delete;

  void scores(const ByteRows& q, const KvLayer& kv, const SplitBlocks& blocks, float* out) const {
    configure(depth_);
    alignas(64) int32_t sums[4][kPanel][16];
    const ByteRows second = q.from(kPanel);
    for (int b = blocks.first; b < blocks.last; ++b) {
      prefetch_tile(blocks.fetch_values[b]);
      const bf16* scales = scales_of(blocks.keys[b], kv);
      float* to = out + b * kBlockSize;
      if (rows_ <= kPanel) {
        const std::byte* keys = blocks.keys[b];
        zero();
        for (int d = 0; d < dim_; d += depth_, keys += depth_ * kBlockSize) {
          _tile_loadd(4, q.high + d, q.stride);
          _tile_loadd(6, keys, kKeyStride);
          _tile_loadd(5, q.low + d, q.stride);
          _tile_loadd(7, keys + 64, kKeyStride);
          _tile_dpbssd(0, 4, 6);
          _tile_dpbssd(1, 5, 6);
          _tile_dpbssd(2, 4, 7);
          _tile_dpbssd(3, 5, 7);
        }
        store(sums);
        for (int half = 0; half < 2; ++half)
          put_scores(sums + 2 * half, rows_, scales + 16 * half, to + 16 * half);
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        const std::byte* keys = blocks.keys[b] + 64 * half;
        zero();
        for (int d = 0; d < dim_; d += depth_, keys += depth_ * kBlockSize) {
          _tile_loadd(6, keys, kKeyStride);
          _tile_loadd(4, q.high + d, q.stride);
          _tile_dpbssd(0, 4, 6);
          _tile_loadd(5, second.high + d, q.stride);
          _tile_dpbssd(2, 5, 6);
          _tile_loadd(4, q.low + d, q.stride);
          _tile_dpbssd(1, 4, 6);
          _tile_loadd(5, second.low + d, q.stride);
          _tile_dpbssd(3, 5, 6);
        }
        store(sums);
        put_scores(sums, kPanel, scales + 16 * half, to + 16 * half);
        put_scores(sums + 2, rows_ - kPanel, scales + 16 * half,
                   to + kPanel * kScoreStride + 16 * half);
      }
    }
  }

  void weigh(const ByteRows& p, const float* scales, const SplitBlocks& blocks, float* out,
             int out_stride) const {
    configure(kBlockSize);
    alignas(64) int32_t sums[4][kPanel][16];
    const int64_t stride = int64_t(dim_) * 4;
    const ByteRows second = p.from(kPanel);
    if (rows_ <= kPanel) {
      for (int column = 0; column < dim_; column += 32) {
        const bool wide = column + 32 <= dim_;
        zero();
        for (int b = blocks.first; b < blocks.last; ++b) {
          const std::byte* values = blocks.values[b] + column * 4;
          if (column == 0) prefetch_tile(blocks.fetch_keys[b]);
          _tile_loadd(4, p.high + b * kBlockSize, p.stride);
          _tile_loadd(6, values, stride);
          _tile_loadd(5, p.low + b * kBlockSize, p.stride);
          _tile_dpbusd(0, 4, 6);
          _tile_dpbusd(1, 5, 6);
          if (!wide) continue;
          _tile_loadd(7, values + 64, stride);
          _tile_dpbusd(2, 4, 7);
          _tile_dpbusd(3, 5, 7);
        }
        store(sums);
        for (int half = 0; half < (wide ? 2 : 1); ++half)
          put_values(sums + 2 * half, rows_, scales, out + column + 16 * half, out_stride);
      }
      return;
    }
    for (int column = 0; column < dim_; column += 16) {
      zero();
      for (int b = blocks.first; b < blocks.last; ++b) {
        const int at = b * kBlockSize;
        _tile_loadd(6, blocks.values[b] + column * 4, stride);
        _tile_loadd(4, p.high + at, p.stride);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(5, second.high + at, p.stride);
        _tile_dpbusd(2, 5, 6);
        _tile_loadd(4, p.low + at, p.stride);
        _tile_dpbusd(1, 4, 6);
        _tile_loadd(5, second.low + at, p.stride);
        _tile_dpbusd(3, 5, 6);
      }
      store(sums);
      put_values(sums, kPanel, scales, out + column, out_stride);
      put_values(sums + 2, rows_ - kPanel, scales + kPanel, out + column + kPanel * out_stride,
                 out_stride);
    }
  }

 private:
  static constexpr int kPanel = 16;
  static constexpr int64_t kKeyStride = kBlockSize * 4;

  // The inner dimension of a score tile: the largest divisor of dim, a multiple of 4, up to 64.
  static int depth(int dim) {
    for (int d = 64; d > 4; d -= 4)
      if (dim % d == 0) return d;
    return 4;
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
    c.row_bytes[4] = c.row_bytes[5] = uint16_t(inner);
    c.rows[6] = c.rows[7] = uint8_t(inner / 4);
    c.row_bytes[6] = c.row_bytes[7] = 64;
    c.load();
  }

  static PENSTOCK_INLINE void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  static PENSTOCK_INLINE void store(int32_t (&sums)[4][kPanel][16]) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
  }

  // Two tiles, high and low, as floats.
  static PENSTOCK_INLINE f32x16 joined(const int32_t (*planes)[kPanel][16], int row) {
    const __m512i high = _mm512_load_si512(planes[0][row]);
    const __m512i low = _mm512_load_si512(planes[1][row]);
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low))};
  }

  static PENSTOCK_INLINE void put_scores(const int32_t (*planes)[kPanel][16], int rows,
                                         const bf16* key_scales, float* out) {
    const f32x16 scales = f32x16::load(key_scales);
    for (int r = 0; r < rows; ++r) (joined(planes, r) * scales).store(out + r * kScoreStride);
  }

  static PENSTOCK_INLINE void put_values(const int32_t (*planes)[kPanel][16], int rows,
                                         const float* scales, float* out, int out_stride) {
    for (int r = 0; r < rows; ++r)
      (joined(planes, r) * f32x16::broadcast(scales[r])).store(out + r * out_stride);
  }

  int rows_;
  int dim_;
  int depth_;
};

}  // namespace penstock

#endif  // __AMX_INT8__
