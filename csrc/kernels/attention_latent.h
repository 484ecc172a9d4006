// The two products of attention over one split of a cache of latents.
//
// A block is rows of tokens, each a key of all heads, whose first components are its value. So a row
// is read once for all rows of a tile, which are heads first, and both products take it as it lies:
//   scores    tokens are the left operand, and the lanes of the right one are rows of the tile: an
//             element of a token's row is broadcast to all of them. What comes of a block is turned
//             over, 32 x 32 floats, for the softmax that all caches share.
//   weighted  as with values apart, components are lanes. In bfloat16 a dot takes two tokens at a
//             time, so theirs are interleaved, some columns of a split at a time.
// float16 and int8 are widened to floats, a split at a time.
//
// As in attention_tiles.h, an output element is summed in ascending order of its inner dimension,
// whatever the number of rows, and blocks whose weights are zero change nothing.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention_item.h"

namespace penstock {

// 4 x 4 at a time: out[c][r] = in[r][c] for rows and columns in whole fours.
inline void transpose(const float* in, int in_stride, int rows, int cols, float* out,
                      int out_stride) {
  typedef float four __attribute__((vector_size(16)));
  for (int r = 0; r < rows; r += 4)
    for (int c = 0; c < cols; c += 4) {
      four x[4];
      for (int i = 0; i < 4; ++i) std::memcpy(&x[i], in + (r + i) * in_stride + c, sizeof(four));
      const four a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
      const four b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
      const four d = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
      const four e = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      x[0] = __builtin_shufflevector(a, d, 0, 1, 4, 5);
      x[1] = __builtin_shufflevector(a, d, 2, 3, 6, 7);
      x[2] = __builtin_shufflevector(b, e, 0, 1, 4, 5);
      x[3] = __builtin_shufflevector(b, e, 2, 3, 6, 7);
      for (int i = 0; i < 4; ++i) std::memcpy(out + (c + i) * out_stride + r, &x[i], sizeof(four));
    }
}

// Partial results of the tile's rows for one split, from a cache of elements T.
template <class T>
class LatentSplits {
 public:
  LatentSplits(const Tile& tile, const Scratch& scratch)
      : tile_(tile),
        scratch_(scratch),
        padded_(tile.args.kv.key_tile().padded_dim()),
        panels_((tile.rows + f32x16::lanes - 1) / f32x16::lanes) {
    if (tile.args.q.elem == Elem::bf16)
      pack_queries<bf16>();
    else
      pack_queries<float>();
  }

  void run(int split, float* out) const {
    const SplitBlocks blocks = gather(split);
    auto* weights = reinterpret_cast<Operand*>(scratch_.weights);
    scores(blocks);
    softmax(tile_, split, blocks, scratch_.scores, weights, out);
    weigh(split, weights, blocks, out);
  }

 private:
  static constexpr bool kPairs = std::is_same_v<T, bf16>;
  static constexpr bool kInPlace = kPairs || std::is_same_v<T, float>;
  using Dot = std::conditional_t<kPairs, PairDot<bf16>, FloatDot<float>>;
  using Operand = typename Dot::Operand;
  // Accumulators and a line of the right operand fit the register file, as in VectorTiles.
#if defined(__AVX512F__)
  static constexpr int kTokens = 8;  // twice as many with one panel of rows
  static constexpr int kRows = 4;
  static constexpr int kCols = 4;
#else
  static constexpr int kTokens = 2;
  static constexpr int kRows = 2;
  static constexpr int kCols = 2;
#endif
  static constexpr int kStripe = kCols * f32x16::lanes;  // columns
  static_assert(kStripe <= 2 * kLeastStripe);

  // [component][row], in bfloat16 pairs of components, with zeros for rows that are not there.
  template <class From>
  void pack_queries() const {
    constexpr int depth = Dot::depth;
    const int lanes = panels_ * f32x16::lanes;
    auto* const out = reinterpret_cast<Operand*>(scratch_.queries);
    std::fill_n(out, int64_t(padded_) * lanes, Operand{});
    for (int r = 0; r < tile_.rows; ++r) {
      const From* q = tile_.args.q.template row<const From>(tile_.token[r]) + tile_.column[r];
      for (int d = 0; d < tile_.dim(); ++d)
        out[(d / depth * lanes + r) * depth + d % depth] = from_f32<Operand>(to_f32(q[d]));
    }
  }

  // The blocks of a split that any row of the tile sees: `keys` for scores, and `values` where they
  // are weighed as they are: with zeros for what no row sees, as a weight of zero does not hide a
  // value that is not finite.
  SplitBlocks gather(int split) const {
    const int base = split * kSplitTokens;
    const int begin = std::max(tile_.low - base, 0);
    const int end = std::min(tile_.high - base, kSplitTokens);
    SplitBlocks out{};
    out.first = begin / kBlockSize;
    out.last = (end + kBlockSize - 1) / kBlockSize;
    look_ahead(tile_, split, out);
    for (int b = out.first; b < out.last; ++b) {
      const std::byte* const block = tile_.keys(split * kSplitBlocks + b);
      const int low = std::max(begin - b * kBlockSize, 0);
      const int high = std::min(end - b * kBlockSize, kBlockSize);
      out.keys[b] = out.values[b] = block;
      if constexpr (!kInPlace) {
        auto* const to = reinterpret_cast<float*>(scratch_.stripe) +
                         int64_t(b) * kBlockSize * padded_;
        widen(block, low, high, to);
        out.keys[b] = out.values[b] = reinterpret_cast<const std::byte*>(to);
      } else if constexpr (!kPairs) {
        if (low == 0 && high == kBlockSize) continue;
        std::byte* copy = scratch_.values[b == out.first ? 0 : 1];
        copy_visible(reinterpret_cast<float*>(copy), reinterpret_cast<const float*>(block),
                     padded_, low, high);
        out.values[b] = copy;
      }
    }
    return out;
  }

  // Rows [low, high) of a block as floats, and zeros for the others.
  void widen(const std::byte* block, int low, int high, float* out) const {
    std::fill_n(out, int64_t(low) * padded_, 0.0f);
    const T* from = reinterpret_cast<const T*>(block) + int64_t(low) * padded_;
    float* to = out + int64_t(low) * padded_;
    for (int t = low; t < high; ++t, from += padded_, to += padded_) {
      if constexpr (std::is_same_v<T, int8_t>) {
        const auto* scales =
            reinterpret_cast<const bf16*>(block + tile_.args.kv.key_tile().element_bytes());
        const float latent = to_f32(scales[t]), key = to_f32(scales[kBlockSize + t]);
        for (int d = 0; d < tile_.out_dim(); ++d) to[d] = float(from[d]) * latent;
        for (int d = tile_.out_dim(); d < padded_; ++d) to[d] = float(from[d]) * key;
      } else {
        convert(to, from, padded_);
      }
    }
    std::fill_n(to, int64_t(kBlockSize - high) * padded_, 0.0f);
  }

  void scores(const SplitBlocks& blocks) const {
    for (int b = blocks.first; b < blocks.last; ++b) {
      const auto* latents = reinterpret_cast<const Operand*>(blocks.keys[b]);
      if (panels_ == 1)
        block_scores<2 * kTokens, 1>(latents);
      else
        block_scores<kTokens, 2>(latents);
      transpose(scratch_.transposed, kTileRows, kBlockSize, (tile_.rows + 3) / 4 * 4,
                scratch_.scores + b * kBlockSize, kScoreStride);
    }
  }

  template <int Tokens, int Panels>
  void block_scores(const Operand* latents) const {
    constexpr int lanes = Panels * f32x16::lanes;
    const auto* queries = reinterpret_cast<const typename Dot::Right*>(scratch_.queries);
    by_rows<Tokens>(kBlockSize, [&]<int Rows>(int token) {
      product<Dot, Rows, Panels>(
          latents + int64_t(token) * padded_, padded_, 1, padded_ / Dot::depth,
          [&](int, int c) __attribute__((always_inline)) { return queries + c * f32x16::lanes; }, lanes, NoFetch{},
          lanes, scratch_.transposed + token * kTileRows, kTileRows);
    });
  }

  void weigh(int split, const Operand* weights, const SplitBlocks& blocks, float* out) const {
    const int stride = partial_stride(tile_.out_dim());
    const int first = blocks.first, count = blocks.last - first;
    for (int column = 0; column < tile_.out_dim(); column += kStripe) {
      const int n = std::min(kStripe, tile_.out_dim() - column);
      const std::byte* values[kSplitBlocks];
      if constexpr (kPairs)
        interleave(split, blocks, column, n, values);
      else
        std::copy_n(blocks.values + first, count, values + first);
      by_rows<kRows>(tile_.rows, [&]<int Rows>(int row) {
        product<Dot, Rows, kCols>(
            weights + row * kScoreStride + first * kBlockSize, kScoreStride, count, kBlockSize / Dot::depth,
            [&](int b, int c) __attribute__((always_inline)) {
              return reinterpret_cast<const typename Dot::Right*>(values[first + b]) + (kPairs ? 0 : column) +
                     c * f32x16::lanes;
            },
            kPairs ? kStripe : padded_, NoFetch{}, n, out + row * stride + column, stride);
      });
    }
  }

  // Columns [column, column + n) of the split as [token pair][kStripe][2], zeros for what no row
  // sees; where each block's begin in `values`.
  void interleave(int split, const SplitBlocks& blocks, int column, int n,
                  const std::byte** values) const {
    const int base = split * kSplitTokens;
    auto* to = reinterpret_cast<uint32_t*>(scratch_.stripe);
    for (int b = blocks.first; b < blocks.last; ++b) {
      values[b] = reinterpret_cast<const std::byte*>(to);
      const auto* row = reinterpret_cast<const uint16_t*>(blocks.keys[b]) + column;
      const std::byte* ahead = blocks.streams ? blocks.next_keys[b] : nullptr;
      if (ahead) ahead += column * 2;
      for (int t = 0; t < kBlockSize; t += 2, row += 2 * padded_, to += kStripe) {
        const int position = base + b * kBlockSize + t;
        const auto seen = [&](int p) { return p >= tile_.low && p < tile_.high; };
        const uint32_t mask =
            (seen(position) ? 0xffffu : 0) | (seen(position + 1) ? 0xffff0000u : 0);
        const uint16_t* const next = row + padded_;
        if (ahead) {
          for (int i = 0; i < 2; ++i, ahead += 2 * padded_) {
            __builtin_prefetch(ahead, 0, 2);
            __builtin_prefetch(ahead + 64, 0, 2);
          }
        }
        for (int d = 0; d < n; ++d) to[d] = (row[d] | uint32_t(next[d]) << 16) & mask;
      }
    }
  }

  const Tile& tile_;
  const Scratch& scratch_;
  const int padded_;  // components of a row as it lies
  const int panels_;  // of 16 rows of the tile
};

}  // namespace penstock
