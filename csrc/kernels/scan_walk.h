// The walk that the recurrences over states share: the tokens that a sequence has in a step, through
// the tiles of a head. What a token does to a tile is the body's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../pool.h"
#include "../simd.h"
#include "../states.h"

namespace penstock {

static_assert(kTileColumns == kLanes);

// Tokens that are made ready at once: those of whose numbers a register holds one each. A tile's 8 KiB
// stay in L1 while they go through it, and their vectors are read again for the next tile of the head.
constexpr int kBlockTokens = kLanes;

// A sum over the rows of a tile: row i is in part i % 4.
struct Sums {
  f32x16 parts[4] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  PENSTOCK_INLINE f32x16 total() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
};

// f(row, part) for all rows of a tile.
template <class F>
PENSTOCK_INLINE void each_state_row(int rows, F f) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) {
    f(i, 0);
    f(i + 1, 1);
    f(i + 2, 2);
    f(i + 3, 3);
  }
  for (int part = 0; i < rows; ++i, ++part) f(i, part);
}

// A column of n rows, at most a register's lanes; the other lanes are zeros.
PENSTOCK_INLINE f32x16 gather(const Array& x, int64_t first, int n, int64_t column) {
  alignas(64) float values[kLanes] = {};
  for (int i = 0; i < n; ++i) values[i] = x.row<const float>(first + i)[column];
  return f32x16::load(values);
}

// Sixteen of n numbers, fewer at the end. A store through a mask would not be forwarded to a load.
PENSTOCK_INLINE f32x16 load_up_to(const float* x, int n) {
  return n >= kLanes ? f32x16::load(x) : f32x16::load_n(x, n);
}
PENSTOCK_INLINE void store_up_to(f32x16 v, float* to, int n) {
  n >= kLanes ? v.store(to) : v.store_n(to, n);
}

// The columns of one tile: which of a head's they are.
struct TileColumns {
  int first;
  int n;  // at most a register's lanes

  TileColumns(const StateGeometry& at, int tile)
      : first(tile * kLanes), n(std::min(kLanes, at.columns - first)) {}
};

// One head of a state, which has `rows` by `columns` numbers, and what a token has for it: a column
// vector that enters the state, a row vector for every row, and another that reads it. Heads share the
// latter two in groups, of consecutive heads or, tiled, of those that lie as far apart as there are
// groups.
class Head {
 public:
  Head(const StateGeometry& at, int groups, int head, const float* a_log, std::byte* scratch,
       bool tiled = false)
      : head_(head),
        group_(tiled ? head % groups : head / (at.heads / groups)),
        leads_(tiled ? head < groups : head % (at.heads / groups) == 0),
        rows_(at.rows),
        width_(at.columns),
        all_columns_(int64_t(at.heads) * at.columns),
        all_rows_(int64_t(groups) * at.rows),
        rate_(exp(f32x16::broadcast(a_log[head]))),
        stride_(padded(at.rows)),
        ins_(reinterpret_cast<float*>(scratch)),
        outs_(ins_ + kBlockTokens * stride_) {}

  static int64_t padded(int rows) { return (int64_t(rows) + kLanes - 1) / kLanes * kLanes; }
  static size_t scratch_bytes(int rows) {
    return 2 * kBlockTokens * size_t(padded(rows)) * sizeof(float);
  }

 protected:
  // Vectors of token i of those that were made ready: the one that writes rows, and the one that reads
  // them. Of tokens, since where rows of the step lie at a distance of many pages, those of a block
  // would drive each other out of L1.
  PENSTOCK_INLINE float* in(int i) const { return ins_ + i * stride_; }
  PENSTOCK_INLINE float* out(int i) const { return outs_ + i * stride_; }
  int64_t stride() const { return stride_; }
  int64_t column() const { return int64_t(head_) * width_; }  // of the first of the head's
  int64_t row() const { return int64_t(group_) * rows_; }

  int head_, group_;
  bool leads_;  // is the first of its group
  int rows_, width_;
  int64_t all_columns_, all_rows_;  // of all heads, and of all groups
  f32x16 rate_;

 private:
  int64_t stride_;
  float *ins_, *outs_;
};

// Some tiles of a head, in the state of one sequence.
struct TileRun {
  int sequence, head;
  Share tiles;
};

// Lines of n floats, for soon: their rows lie pages apart, where no prefetcher of a processor follows.
PENSTOCK_INLINE void fetch(const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) __builtin_prefetch(from + i, 0, 2);
}

// All tokens of one sequence through some tiles. A Body, which is a Head, has
//   ready(row, n)                  makes n rows of the step ready, at most kBlockTokens
//   fetch(row, columns, n)         what ready() and walk() are going to read of a row
//   walk(tile, columns, row, n)    those tokens through a tile, one after the other
//   replay(tile, columns, log)     one through a tile, of whom there is a row of the log alone
//   write_log(log, row)            that row, of a single token that was made ready
//   kStreams                       whether a token alone goes through states as memory brings them
template <class Body>
void walk_tiles(const typename Body::Args& args, const StepView& step, const TileRun& run,
                std::byte* scratch) {
  const StateLayer& state = args.state;
  const StateSpan span(step, run.sequence);
  Body body(args, run.head, scratch);
  const int64_t unit = int64_t(run.head) * tiles_of(state.at.columns) + run.tiles.begin;
  const int count = int(run.tiles.end - run.tiles.begin);
  const size_t bytes = size_t(count) * state.tile_bytes();
  float* const copy = reinterpret_cast<float*>(scratch + Head::scratch_bytes(state.at.rows));
  float* tiles = state.tile(span.slot, unit);
  if (span.seen == 0) std::memset(tiles, 0, bytes);
  auto snapshots = snapshots_of(step, run.sequence);
  const auto at_border = [&](int64_t position) {  // that many tokens are in the tiles
    if (!snapshots.empty() && snapshots.front().tokens == position) {
      std::memcpy(state.tile(snapshots.front().slot, unit), tiles, bytes);
      snapshots = snapshots.subspan(1);
    }
    if (position == span.stored && position < span.end)
      tiles = static_cast<float*>(std::memcpy(copy, tiles, bytes));
  };
  const auto each_tile = [&](auto f) {
    for (int i = 0; i < count; ++i)
      f(tiles + int64_t(i) * state.at.rows * kTileColumns,
        TileColumns(state.at, int(run.tiles.begin) + i));
  };
  at_border(span.seen);
  for (int64_t p = span.seen; p < span.start; ++p) {
    const float* const log = state.log_row(span.slot, p);
    each_tile([&](float* tile, const TileColumns& at) { body.replay(tile, at, log); });
    at_border(p + 1);
  }
  const int first = int(run.tiles.begin) * kTileColumns;
  const int columns = std::min(int(run.tiles.end) * kTileColumns, state.at.columns) - first;
  for (int64_t p = span.start, end; p < span.end; p = end) {
    end = std::min<int64_t>(p + kBlockTokens, span.end);
    if (!snapshots.empty()) end = std::min<int64_t>(end, snapshots.front().tokens);
    if (p < span.stored) end = std::min(end, span.stored);
    const int64_t row = span.row + (p - span.start);
    const int n = int(end - p);
    for (int64_t next = end; next < std::min(end + kBlockTokens, span.end); ++next)
      body.fetch(span.row + (next - span.start), first, columns);
    body.ready(row, n);
    each_tile([&](float* tile, const TileColumns& at) { body.walk(tile, at, row, n); });
    at_border(end);
  }
}

// Log rows of one head of a sequence.
template <class Body>
void log_head(const typename Body::Args& args, const StepView& step, int sequence, int head,
              std::byte* scratch) {
  const StateSpan span(step, sequence);
  Body body(args, head, scratch);
  for (int64_t p = std::max(span.stored, span.start); p < span.end; ++p) {
    const int64_t row = span.row + (p - span.start);
    body.ready(row, 1);
    body.write_log(args.state.log_row(span.slot, p), row);
  }
}

// Into how many runs of tiles heads are cut: so few that what is made ready serves many tiles, and so
// many that threads can share them evenly. Columns never meet, so no bit depends on it.
template <class Body>
int runs_of_head(const StateGeometry& at, const StepView& step, int threads) {
  constexpr int64_t kRunsPerThread = 8;
  const int tiles = tiles_of(at.columns);
  if (Body::kStreams && step.tokens < 2 * step.sequences) return tiles;
  int runs = 1;
  if (threads > 1)
    while (runs < tiles && runs * int64_t(at.heads) * step.sequences < kRunsPerThread * threads)
      runs *= 2;
  return std::min(runs, tiles);
}

template <class Body>
void scan(const typename Body::Args& args, const StepView& step, const Worker& worker) {
  const StateGeometry& at = args.state.at;
  const int tiles = tiles_of(at.columns);
  const int64_t heads = int64_t(at.heads) * step.sequences;
  const int runs = runs_of_head<Body>(at, step, worker.count);
  Tickets::Phase phase = worker.tickets->open(worker, heads * runs, 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      const int64_t head = task / runs;
      const TileRun run{int(head / at.heads), int(head % at.heads),
                        share(tiles, int(task % runs), runs)};
      walk_tiles<Body>(args, step, run, worker.scratch);
    }
  const int32_t* const tentative = step.states.tentative;
  if (std::none_of(tentative, tentative + step.sequences, [](int32_t n) { return n > 0; })) return;
  worker.barrier->wait(worker);  // a row of the log may take the place of one that was replayed
  const Share mine = share(heads, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task)
    log_head<Body>(args, step, int(task / at.heads), int(task % at.heads), worker.scratch);
}

}  // namespace penstock
