// Rows of a draft tree: attention.h says how they come to the bits of plain decoding.
#pragma once

#include <cstring>
#include <optional>

#include "attention_item.h"
#include "attention_softmax.h"
#include "move_slots.h"

namespace penstock {

// Where a sequence's tree lies in its cache.
struct TreePlace {
  const int32_t* parents;  // of the sequence's rows in this step
  int64_t first_token;     // of the step's tokens: the first of these rows
  int start;               // its place among the sequence's tokens in the cache

  TreePlace(const StepView& step, int sequence)
      : parents(step.tree_parents + step.query_starts[sequence]),
        first_token(step.query_starts[sequence]),
        start(step.context_lens[sequence] -
              (step.query_starts[sequence + 1] - step.query_starts[sequence])) {}
};

// What Splits does for rows in line, for rows behind a fork.
template <class Splits>
class PathSplits {
 public:
  PathSplits(const Tile& tile, const TreePlace& tree, const Scratch& scratch)
      : tile_(tile), tree_(tree), scratch_(scratch) {}

  // In ascending order of splits: paths take the scratch of what is before the fork.
  void run(int split, float* out) {
    if ((split + 1) * kSplitTokens <= tile_.fork) {
      if (!shared_) shared_.emplace(tile_, scratch_);
      return shared_->run(split, out);
    }
    shared_.reset();
    const int stride = partial_stride(tile_.out_dim());
    for (int row = 0, count; row < tile_.rows; row += count, out += count * stride) {
      count = 1;
      while (row + count < tile_.rows && tile_.token[row + count] == tile_.token[row]) ++count;
      const Tile path(tile_, row, count, scratch_.path);
      if (path.high > split * kSplitTokens && path.low < (split + 1) * kSplitTokens) {
        lay_out(path);
        Splits(path, scratch_).run(split, out);
      } else {
        see_nothing(count, out);
      }
    }
  }

 private:
  void see_nothing(int rows, float* out) const {
    const int dim = tile_.out_dim();
    for (int r = 0; r < rows; ++r, out += partial_stride(dim))
      out[dim] = kNoScore, out[dim + 1] = 0.0f;
  }

  // The fork's block as far as the trunk fills it, then the token and its ancestors by position.
  // The rest of the last block is left as it is: nothing there is seen.
  void lay_out(const Tile& path) const {
    const KvLayer& kv = path.args.kv;
    const size_t bytes = kv.head_bytes();
    const auto source = [&](int place) {
      return kv.keys(path.blocks[place / kBlockSize], path.kv_head);
    };
    if (path.fork % kBlockSize != 0) std::memcpy(scratch_.path, source(path.fork), bytes);
    int row = int(path.token[0] - tree_.first_token);
    for (int position = path.end[0] - 1; position >= path.fork; --position) {
      const int place = tree_.start + row;
      std::byte* const to = scratch_.path + (position / kBlockSize - path.first_path) * bytes;
      copy_token(kv, source(place), place % kBlockSize, to, position % kBlockSize);
      row = tree_.parents[row];
    }
  }

  const Tile& tile_;
  const TreePlace tree_;
  const Scratch& scratch_;
  std::optional<Splits> shared_;
};

}  // namespace penstock
