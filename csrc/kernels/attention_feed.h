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
  // The values of a split and the keys of the one after it, as far as `blocks` names them to be
  // fetched; so many bytes of each.
  Feed(const SplitBlocks& blocks, size_t key_bytes, size_t value_bytes)
      : key_bytes_(key_bytes), value_bytes_(value_bytes) {
    for (int b = blocks.first; b < blocks.last; ++b)
      if (blocks.fetch_values[b]) runs_[count_++] = blocks.fetch_values[b];
    values_ = count_;
    for (int b = blocks.first; b < blocks.last; ++b)
      if (blocks.fetch_keys[b]) runs_[count_++] = blocks.fetch_keys[b];
  }

  // Lines for each of `sites` calls to fetch `share` of everything.
  int lines(float share, int sites) const {
    const size_t lines = values_ * (value_bytes_ / 64) + (count_ - values_) * (key_bytes_ / 64);
    return int(share * float(lines) / float(sites)) + 1;
  }

  // The next lines, up to the end of a part. May ask for a few beyond it: a prefetch never faults.
  PENSTOCK_INLINE void fetch(int lines) {
    if (run_ == count_) return;
    const std::byte* from = runs_[run_] + at_;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(from + 64 * i, 0, 2);
    at_ += 64 * size_t(lines);
    if (at_ >= (run_ < values_ ? value_bytes_ : key_bytes_)) at_ = 0, ++run_;
  }

 private:
  const std::byte* runs_[2 * kSplitBlocks];
  size_t key_bytes_, value_bytes_;
  size_t at_ = 0;
  size_t count_ = 0;
  size_t values_ = 0;  // of the runs: the first ones
  size_t run_ = 0;
};

}  // namespace penstock
