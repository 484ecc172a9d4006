// Reads ahead for a tile of few rows, which streams the cache: while it computes on one part, the
// next comes in.
//
// Lines are asked for a few at a time, between computations: many at once fill the line buffers
// that loads need, and nothing proceeds before they have come. Decode of 64 x 2048 tokens out of
// memory, 8 KV heads of 64 in int8, one thread: 14.9 ms; with the first lines of every tile at
// once, for the hardware's streamer to go on from, 18.1, and with all of its lines at once, 17.9.
#pragma once

#include <algorithm>

#include "attention_tiles.h"

namespace penstock {

class Feed {
 public:
  // Keys and the values behind them, so many bytes of a block, that are read after this split.
  Feed(const SplitBlocks& blocks, size_t bytes) : bytes_(bytes) {
    if (!blocks.streams) return;
    for (int b = 0; b < kSplitBlocks && (b == 0 || blocks.next_keys[b] != blocks.next_keys[b - 1]); ++b)
      runs_[count_++] = blocks.next_keys[b];
  }

  // Lines for each of `sites` calls to fetch `share` of everything.
  int lines(float share, int sites) const {
    return count_ ? int(share * float(count_ * (bytes_ / 64)) / float(sites)) + 1 : 0;
  }

  // The next lines, up to the end of a run. May ask for a few beyond it: a prefetch never faults.
  PENSTOCK_INLINE void fetch(int lines) {
    if (lines == 0 || run_ == count_) return;
    const std::byte* from = runs_[run_] + at_;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(from + 64 * i, 0, 2);
    at_ += 64 * size_t(lines);
    if (at_ >= bytes_) at_ = 0, ++run_;
  }

 private:
  const std::byte* runs_[kSplitBlocks];
  size_t bytes_;
  size_t at_ = 0;
  size_t count_ = 0;
  size_t run_ = 0;
};

}  // namespace penstock
