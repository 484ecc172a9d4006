// Attention over an INT8 cache by dots of bytes; attention_int8.h says what is computed.
//
// A tile kernel (VectorByteTiles here, or attention_bytes_amx.h) has
//   scores(q, keys, blocks, feed, out)           as in attention_tiles.h, times the keys' scales
//   weigh(p, scales, blocks, feed, out, stride)  rows of p, times their scales
// and each fetches kShare of what feed has, softmax what is left.
#pragma once

#if defined(__AVX512VNNI__)

#include "attention_int8.h"

namespace penstock {

// Rows of 16-bit integers as two planes of bytes, high * 256 + low. Those of q are signed in both,
// those of weights unsigned in both. Rows come in panels of up to 8: a panel's high bytes, then its
// low bytes, so that one tile holds both planes of a panel.
struct ByteRows {
  static constexpr int kPanel = 8;

  std::byte* base;
  int stride;  // bytes between rows
  int planes;  // rows between a row's planes: those of a panel

  ByteRows(std::byte* base, int stride, int rows)
      : base(base), stride(stride), planes(std::min(rows, kPanel)) {}

  std::byte* high(int row) const {
    return base + int64_t(row / kPanel * 2 * kPanel + row % kPanel) * stride;
  }
  std::byte* low(int row) const { return high(row) + int64_t(planes) * stride; }
};

// Bytes in a row of weights: a split, padded as kScoreStride is.
constexpr int kWeightStride = kSplitTokens + 64;

constexpr float kMostQuery = 127 * 257;  // the high byte rounds up to 127
constexpr float kMostWeight = 65535;
static_assert(int64_t(kMostWeight) * 127 * kSplitTokens <= std::numeric_limits<int32_t>::max());
static_assert(int64_t(kMostQuery) * 128 * kMostHeadDim <= std::numeric_limits<int32_t>::max());

// One row of n floats, n a multiple of 4, to signed planes; its scale. A row of zeros has scale 1;
// one with a value that is not finite has scale NaN.
inline float split_query(const float* x, int n, std::byte* high, std::byte* low) {
  const f32x16 zero = f32x16::zero();
  f32x16 most = zero, bad = zero;
  for (int i = 0; i < n; i += f32x16::lanes) {
    const f32x16 v = f32x16::load_n(x + i, std::min(f32x16::lanes, n - i));
    most = max(abs(v), most);
    bad = fma(v, zero, bad);
  }
  const bool finite = hsum(bad) == 0.0f;
  const float scale = hmax(most) / kMostQuery;
  const bool usable = finite && scale > 0.0f;
  const f32x16 divisor = f32x16::broadcast(usable ? scale : 1.0f);
  const f32x16 limit = f32x16::broadcast(kMostQuery);
  for (int i = 0; i < n; i += f32x16::lanes) {
    const int count = std::min(f32x16::lanes, n - i);
    f32x16 v = usable ? f32x16::load_n(x + i, count) / divisor : zero;
    v = max(min(v, limit), zero - limit);  // the quotient of a subnormal scale may exceed it
    const __m512i whole = _mm512_cvtps_epi32(v.v);
    const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    const __mmask16 mask = f32x16::first(count);
    _mm512_mask_cvtepi32_storeu_epi8(high + i, mask, top);
    _mm512_mask_cvtepi32_storeu_epi8(low + i, mask, whole);
  }
  return usable ? scale : finite ? 1.0f : std::numeric_limits<float>::quiet_NaN();
}

// Columns [first, last), multiples of 32, of a row of weights to unsigned planes; their scale.
// Weights that would need a factor beyond float are taken for zeros.
inline float split_weights(const float* weights, float largest, int first, int last,
                           std::byte* high, std::byte* low) {
  const f32x16 factor = f32x16::broadcast(largest > 0x1p-100f ? kMostWeight / largest : 0.0f);
  const __m512i halves = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  for (int i = first; i < last; i += 2 * f32x16::lanes) {
    const __m512i a = _mm512_cvtps_epi32((f32x16::load(weights + i) * factor).v);
    const __m512i b =
        _mm512_cvtps_epi32((f32x16::load(weights + i + f32x16::lanes) * factor).v);
    const __m512i words = _mm512_permutexvar_epi64(halves, _mm512_packus_epi32(a, b));
    const auto store = [](std::byte* to, __m512i x) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(x));
    };
    store(high + i, _mm512_srli_epi16(words, 8));
    store(low + i, words);
  }
  return largest / kMostWeight;
}

// emit(row, column, n, sums) for every register of sums over blocks of rows `row`.. of left, from
// byte `at` on, times codes; each step fetches so many lines of feed. One
// side of VPDPBUSD is unsigned: weights are; for q, whose planes are signed, codes are made so, by
// adding 128, which adds 128 times the row's sum to every column. As in product_of(), loops are unrolled by name.
template <bool SignedRows, int Rows, int Cols, class Emit>
PENSTOCK_INLINE void byte_product(const ByteRows& left, int row, int at,
                                  const std::byte* const* blocks, int count, int64_t column,
                                  int inner, int right_stride, int n, Feed& feed, int lines, Emit emit) {
  const auto lanes = [n](int c) { return std::clamp(n - c * f32x16::lanes, 0, f32x16::lanes); };
  const auto quad = [](const std::byte* x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm512_set1_epi32(bits);
  };
  const auto dot = [](__m512i sum, __m512i row, __m512i codes) {
    return SignedRows ? _mm512_dpbusd_epi32(sum, codes, row) : _mm512_dpbusd_epi32(sum, row, codes);
  };
  __m512i high[Rows][Cols], low[Rows][Cols];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < Cols; ++c) high[r][c] = low[r][c] = _mm512_setzero_si512();
  for (int b = 0; b < count; ++b) {
    const std::byte* right = blocks[b] + 4 * column;
    for (int k = 0; k < inner; ++k, right += 4 * int64_t(right_stride)) {
      feed.fetch(lines);
      __m512i line[Cols];
#pragma GCC unroll 8
      for (int c = 0; c < Cols; ++c) {
        line[c] = _mm512_maskz_loadu_epi32(f32x16::first(lanes(c)), right + 64 * c);
        if (SignedRows) line[c] = _mm512_xor_si512(line[c], _mm512_set1_epi8(-128));
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const int64_t from = at + 4 * (b * inner + k);
        const __m512i top = quad(left.high(row + r) + from);
        const __m512i bottom = quad(left.low(row + r) + from);
#pragma GCC unroll 8
        for (int c = 0; c < Cols; ++c) {
          high[r][c] = dot(high[r][c], top, line[c]);
          low[r][c] = dot(low[r][c], bottom, line[c]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < Cols; ++c)
      emit(r, c * f32x16::lanes, lanes(c),
           _mm512_add_epi32(_mm512_slli_epi32(high[r][c], 8), low[r][c]));
}

// On vector registers.
class VectorByteTiles {
 public:
  static constexpr float kShare = 0.4f;

  VectorByteTiles(int rows, int dim) : rows_(rows), dim_(dim), padded_((dim + 3) / 4 * 4) {}

  void scores(const ByteRows& q, const KvTile& keys, const SplitBlocks& blocks, Feed& feed,
              float* out) const {
    const int lines = feed.lines(kShare, (blocks.last - blocks.first) * padded_ / 4);
    __m512i added[kTileRows];
    for (int r = 0; r < rows_; ++r) added[r] = _mm512_set1_epi32(128 * row_sum(q, r));
    for (int b = blocks.first; b < blocks.last; ++b) {
      const bf16* scales = scales_of(blocks.keys[b], keys);
      by_rows<kRows>(rows_, [&]<int Rows>(int row) {
        byte_product<true, Rows, kCols>(
            q, row, 0, blocks.keys + b, 1, 0, padded_ / 4, kBlockSize, kBlockSize, feed, row ? 0 : lines,
            [&](int r, int column, int, __m512i sums) __attribute__((always_inline)) {
              const f32x16 dots{_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added[row + r]))};
              (dots * f32x16::load(scales + column))
                  .store(out + (row + r) * kScoreStride + b * kBlockSize + column);
            });
      });
    }
  }

  void weigh(const ByteRows& p, const float* scales, const SplitBlocks& blocks, Feed& feed,
             float* out, int out_stride) const {
    constexpr int width = kCols * f32x16::lanes, steps = kBlockSize / 4;
    const int lines = feed.lines(kShare, (blocks.last - blocks.first) * steps * ((dim_ + width - 1) / width));
    for (int column = 0; column < dim_; column += width)
      by_rows<kRows>(rows_, [&]<int Rows>(int row) {
        byte_product<false, Rows, kCols>(
            p, row, blocks.first * kBlockSize, blocks.values + blocks.first,
            blocks.last - blocks.first, column, steps, padded_, std::min(width, dim_ - column), feed,
            row ? 0 : lines,
            [&](int r, int at, int n, __m512i sums) __attribute__((always_inline)) {
              (f32x16{_mm512_cvtepi32_ps(sums)} * f32x16::broadcast(scales[row + r]))
                  .store_n(out + (row + r) * out_stride + column + at, n);
            });
      });
  }

 private:
  static constexpr int kRows = 4;  // two planes of 4 rows by 2 registers: 16 of 32
  static constexpr int kCols = 2;

  int32_t row_sum(const ByteRows& q, int row) const {
    int32_t sum = 0;
    for (int i = 0; i < padded_; ++i)
      sum += 256 * int32_t(int8_t(q.high(row)[i])) + int32_t(int8_t(q.low(row)[i]));
    return sum;
  }

  int rows_;
  int dim_;
  int padded_;
};

// Partial results of one split.
template <class Kernel>
class ByteSplits {
 public:
  ByteSplits(const Tile& tile, const Scratch& scratch)
      : tile_(tile), scratch_(scratch), kernel_(tile.rows, tile.dim()) {
    const int padded = tile.args.kv.key_tile().widened().padded_dim();
    const ByteRows q = queries();
    alignas(64) float wide[kMostHeadDim + f32x16::lanes];
    for (int r = 0; r < tile.rows; ++r) {
      widen_query(tile, r, wide);
      factors_[r] = split_query(wide, padded, q.high(r), q.low(r)) * tile.args.scale;
    }
  }

  void run(int split, float* out) const {
    const int dim = tile_.dim(), stride = partial_stride(dim);
    const SplitBlocks blocks = gather<int8_t>(tile_, split, scratch_);
    prefetch_value_scales(tile_, blocks);
    Feed feed(blocks, tile_.args.kv.head_bytes());
    const ByteRows p = weights();
    float* scores = scratch_.scores;
    kernel_.scores(queries(), tile_.args.kv.key_tile().widened(), blocks, feed, scores);
    widen_value_scales(tile_, blocks, scratch_.value_scales);
    const bool shaped = tile_.args.shapes_scores();
    // All maxima come first: the latency of one then does not hold up the next.
    for (int r = 0; r < tile_.rows; ++r) {
      const ScoreColumns columns(tile_.begin[r], tile_.end[r], split);
      float* x = scores + r * kScoreStride;
      if (shaped) tile_.shape_row(r, split, columns, factors_[r], x);
      out[r * stride + dim] =
          columns.empty() ? kNoScore : mask_and_max(x, columns) * (shaped ? 1.0f : factors_[r]);
    }
    const int first = blocks.first * kBlockSize, last = blocks.last * kBlockSize;
    const int lines = feed.lines(1.0f - 2 * Kernel::kShare, tile_.rows * kSplitTokens / f32x16::lanes);
    float scales[kTileRows];
    for (int r = 0; r < tile_.rows; ++r) {
      const ScoreColumns columns(tile_.begin[r], tile_.end[r], split);
      float* x = scores + r * kScoreStride;
      CodeWeights w{0.0f, 0.0f};
      if (columns.empty())
        std::fill(x + first, x + last, 0.0f);
      else
        w = scaled_exponentials(x, scratch_.value_scales, x, shaped ? 1.0f : factors_[r],
                                out[r * stride + dim], columns, first, last, feed, lines);
      out[r * stride + dim + 1] = w.sum;
      scales[r] = split_weights(x, w.largest, first, last, p.high(r), p.low(r));
    }
    kernel_.weigh(p, scales, blocks, feed, out, stride);
  }

 private:
  ByteRows queries() const {
    return {scratch_.queries, tile_.args.kv.key_tile().widened().padded_dim(), tile_.rows};
  }
  ByteRows weights() const { return {scratch_.weights, kWeightStride, tile_.rows}; }

  const Tile& tile_;
  const Scratch& scratch_;
  const Kernel kernel_;
  float factors_[kTileRows];  // of a row's scores: the row's scale times attention's
};

}  // namespace penstock

#endif  // __AVX512VNNI__
