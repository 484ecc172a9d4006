// Attention over a cache of floats of 8 bits: tiles are widened to bfloat16, a split at a time, and
// multiplied as those of a bfloat16 cache are. A key's scale multiplies its score, a value's its
// weight, which is then rounded to bfloat16.
#pragma once

#include "attention_int8.h"

namespace penstock {

template <class Kernel>
class Float8Splits {
 public:
  Float8Splits(const Tile& tile, const Scratch& scratch)
      : tile_(tile), scratch_(scratch), kernel_(tile.rows, tile.dim()) {
    pack_queries(tile, queries());
  }

  void run(int split, float* out) const {
    const int stride = partial_stride(tile_.dim());
    SplitBlocks blocks = gather<int8_t>(tile_, split, scratch_);
    Feed feed(Kernel::kStreams ? SplitBlocks{} : blocks, tile_.args.kv.head_bytes());
    blocks.streams = blocks.streams && Kernel::kStreams;  // else the feed has what is next
    kernel_.scores(queries(), tile_.dim(), blocks, scratch_.scores);
    widen_value_scales(tile_, blocks, scratch_.value_scales);
    auto* weights = reinterpret_cast<Operand*>(scratch_.weights);
    const int first = blocks.first * kBlockSize, last = blocks.last * kBlockSize;
    const int lines = feed.lines(1.0f, tile_.rows * kSplitTokens / f32x16::lanes);
    for (int r = 0; r < tile_.rows; ++r) {
      float* scores = scratch_.scores + r * kScoreStride;
      scaled_softmax(tile_, r, split, blocks, scratch_.value_scales, scores, scores,
                     out + r * stride, feed, lines);
      convert(weights + r * kScoreStride + first, scores + first, last - first);
    }
    kernel_.weigh(weights, blocks, out, stride);
  }

 private:
  using Operand = typename Kernel::Operand;

  Operand* queries() const { return reinterpret_cast<Operand*>(scratch_.queries); }

  const Tile& tile_;
  const Scratch& scratch_;
  const Kernel kernel_;
};

}  // namespace penstock
