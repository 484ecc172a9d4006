// The two products of attention over an INT8 cache on AMX tiles; the interface is that of
// attention_bytes.h.
//
// A panel of 8 rows fills a tile's 16, as a high and a low byte of each. A product of tiles takes as
// long as the greater of its left operand's rows and a quarter of its depth. Sums are of integers,
// so only speed depends on how they are cut.
#pragma once

#if defined(__AMX_INT8__)

#include "../amx.h"
#include "attention_bytes.h"

namespace penstock {

class AmxByteTiles {
 public:
  static constexpr float kShare = 0.25f;

  static bool supports(int dim) { return dim % 16 == 0; }

  AmxByteTiles(int rows, int dim)
      : rows_(rows), dim_(dim), panels_((rows + kPanel - 1) / kPanel), depth_(depth(rows, dim)) {
    if (depth_ == kBlockSize) configure(depth_);
  }
  // Releasing the registers' contents spares the kernel from saving 8 KiB at a context switch.
  ~AmxByteTiles() { _tile_release(); }
  AmxByteTiles(const AmxByteTiles&) = delete;
  AmxByteTiles& operator=(const AmxByteTiles&) = delete;

  void scores(const ByteRows& q, const KvTile& of_keys, const SplitBlocks& blocks, Feed& feed,
              float* out) const {
    if (depth_ != kBlockSize) configure(depth_);
    if (panels_ == 1)
      scores_of_panel(q, of_keys, blocks, feed, out);
    else
      scores_of_panels(q, of_keys, blocks, out);
  }

  void weigh(const ByteRows& p, const float* scales, const SplitBlocks& blocks, Feed& feed,
             float* out, int out_stride) const {
    if (depth_ != kBlockSize) configure(kBlockSize);
    if (panels_ == 1)
      weigh_panel(p, scales, blocks, feed, out, out_stride);
    else
      weigh_panels(p, scales, blocks, out, out_stride);
  }

 private:
  static constexpr int kPanel = ByteRows::kPanel;
  static constexpr int64_t kKeyStride = kBlockSize * 4;

  using Sums = int32_t[2 * kPanel][16];

  // The inner dimension of a score tile. Up to 4 rows lose nothing with the depth of a block, which
  // the other product has, and save configuring tiles twice a split. Else the largest divisor of
  // dim, a multiple of 4, up to 64.
  static int depth(int rows, int dim) {
    if (rows <= 4 && dim % kBlockSize == 0) return kBlockSize;
    for (int d = 64; d > 4; d -= 4)
      if (dim % d == 0) return d;
    return 4;
  }

  // Registers 0-3 accumulate. One panel keeps its rows in 4 and reads the cache into 5-7; several
  // take turns in 4 and 5.
  void configure(int inner) const {
    TileConfig c;
    const auto set = [&c](int tile, int rows, int row_bytes) {
      c.rows[tile] = uint8_t(rows);
      c.row_bytes[tile] = uint16_t(row_bytes);
    };
    const int left = 2 * std::min(rows_, kPanel);
    for (int i = 0; i < 4; ++i) set(i, left, 64);
    set(4, left, inner);
    if (panels_ == 1)
      set(5, inner / 4, 64);
    else
      set(5, left, inner);
    set(6, inner / 4, 64);
    set(7, inner / 4, 64);
    c.load();
  }

  static PENSTOCK_INLINE void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  static PENSTOCK_INLINE void store(Sums* sums) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
  }

  // Two blocks at a time: four accumulators, since each waits long for the product before.
  void scores_of_panel(const ByteRows& q, const KvTile& of_keys, const SplitBlocks& blocks, Feed& feed,
                       float* out) const {
    alignas(64) Sums sums[4];
    const int lines = feed.lines(kShare, kSplitBlocks * 2 * (dim_ / depth_ / 2 + 1));
    for (int b = blocks.first; b < blocks.last; b += 2) {
      const bool two = b + 1 < blocks.last;
      const std::byte* keys = blocks.keys[b];
      const std::byte* next = two ? blocks.keys[b + 1] : keys;
      zero();
      for (int d = 0; d < dim_; d += depth_, keys += depth_ * kBlockSize,
               next += depth_ * kBlockSize) {
        _tile_loadd(4, q.base + d, q.stride);
        _tile_loadd(5, keys, kKeyStride);
        _tile_loadd(6, keys + 64, kKeyStride);
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 6);
        feed.fetch(lines);
        if (!two) continue;
        _tile_loadd(7, next, kKeyStride);
        _tile_loadd(5, next + 64, kKeyStride);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbssd(3, 4, 5);
        feed.fetch(lines);
      }
      store(sums);
      for (int i = 0; i < (two ? 4 : 2); ++i) {
        put_scores(sums[i], 0, scales_of(blocks.keys[b + i / 2], of_keys) + i % 2 * 16,
                   out + (b + i / 2) * kBlockSize + i % 2 * 16);
        feed.fetch(lines);
      }
    }
  }

  void scores_of_panels(const ByteRows& q, const KvTile& of_keys, const SplitBlocks& blocks,
                        float* out) const {
    alignas(64) Sums sums[4];
    const int64_t panel = int64_t(2 * kPanel) * q.stride;
    for (int b = blocks.first; b < blocks.last; ++b) {
      for (int half = 0; half < 2; ++half) {
        const std::byte* keys = blocks.keys[b] + 64 * half;
        zero();
        for (int d = 0; d < dim_; d += depth_, keys += depth_ * kBlockSize) {
          const std::byte* left = q.base + d;
          _tile_loadd(6, keys, kKeyStride);
          _tile_loadd(4, left, q.stride);
          _tile_dpbssd(0, 4, 6);
          _tile_loadd(5, left + panel, q.stride);
          _tile_dpbssd(1, 5, 6);
          if (panels_ == 2) continue;
          _tile_loadd(4, left + 2 * panel, q.stride);
          _tile_dpbssd(2, 4, 6);
          _tile_loadd(5, left + 3 * panel, q.stride);
          _tile_dpbssd(3, 5, 6);
        }
        store(sums);
        for (int i = 0; i < panels_; ++i)
          put_scores(sums[i], i, scales_of(blocks.keys[b], of_keys) + 16 * half,
                     out + b * kBlockSize + 16 * half);
      }
    }
  }

  void weigh_panel(const ByteRows& p, const float* scales, const SplitBlocks& blocks, Feed& feed,
                   float* out, int out_stride) const {
    alignas(64) Sums sums[4];
    const int lines = feed.lines(kShare, kSplitBlocks * (dim_ + 63) / 64 * 2);
    const int64_t stride = int64_t(dim_) * 4;
    for (int column = 0; column < dim_; column += 64) {
      const int tiles = std::min(4, (dim_ - column) / 16);
      zero();
      for (int b = blocks.first; b < blocks.last; ++b) {
        const std::byte* values = blocks.values[b] + column * 4;
        _tile_loadd(4, p.base + b * kBlockSize, p.stride);
        _tile_loadd(5, values, stride);
        _tile_dpbusd(0, 4, 5);
        feed.fetch(lines);
        if (tiles < 2) continue;
        _tile_loadd(6, values + 64, stride);
        _tile_dpbusd(1, 4, 6);
        if (tiles < 3) continue;
        _tile_loadd(7, values + 128, stride);
        _tile_dpbusd(2, 4, 7);
        feed.fetch(lines);
        if (tiles < 4) continue;
        _tile_loadd(5, values + 192, stride);
        _tile_dpbusd(3, 4, 5);
      }
      store(sums);
      for (int i = 0; i < tiles; ++i)
        put_values(sums[i], 0, scales, out + column + 16 * i, out_stride);
    }
  }

  void weigh_panels(const ByteRows& p, const float* scales, const SplitBlocks& blocks, float* out,
                    int out_stride) const {
    alignas(64) Sums sums[4];
    const int64_t stride = int64_t(dim_) * 4;
    const int64_t panel = int64_t(2 * kPanel) * p.stride;
    for (int column = 0; column < dim_; column += 16) {
      zero();
      for (int b = blocks.first; b < blocks.last; ++b) {
        const std::byte* left = p.base + b * kBlockSize;
        _tile_loadd(6, blocks.values[b] + column * 4, stride);
        _tile_loadd(4, left, p.stride);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(5, left + panel, p.stride);
        _tile_dpbusd(1, 5, 6);
        if (panels_ == 2) continue;
        _tile_loadd(4, left + 2 * panel, p.stride);
        _tile_dpbusd(2, 4, 6);
        _tile_loadd(5, left + 3 * panel, p.stride);
        _tile_dpbusd(3, 5, 6);
      }
      store(sums);
      for (int i = 0; i < panels_; ++i) put_values(sums[i], i, scales, out + column, out_stride);
    }
  }

  // The rows of a panel as f(row, sums), planes joined.
  template <class F>
  PENSTOCK_INLINE void each_row(const Sums& sums, int panel, F f) const {
    const int first = panel * kPanel, count = std::min(rows_ - first, kPanel);
    const int low = std::min(rows_, kPanel);
    for (int r = 0; r < count; ++r) {
      const __m512i top = _mm512_slli_epi32(_mm512_load_si512(sums[r]), 8);
      const __m512i sum = _mm512_add_epi32(top, _mm512_load_si512(sums[low + r]));
      f(first + r, f32x16{_mm512_cvtepi32_ps(sum)});
    }
  }

  PENSTOCK_INLINE void put_scores(const Sums& sums, int panel, const bf16* key_scales,
                                  float* out) const {
    const f32x16 scales = f32x16::load(key_scales);
    each_row(sums, panel, [&](int row, f32x16 x) { (x * scales).store(out + row * kScoreStride); });
  }

  PENSTOCK_INLINE void put_values(const Sums& sums, int panel, const float* scales, float* out,
                                  int out_stride) const {
    each_row(sums, panel, [&](int row, f32x16 x) {
      (x * f32x16::broadcast(scales[row])).store(out + row * out_stride);
    });
  }

  int rows_;
  int dim_;
  int panels_;
  int depth_;
};

}  // namespace penstock

#endif  // __AMX_INT8__
