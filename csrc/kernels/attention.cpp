// One item of attention: scores, softmax and weighted values split by split, and their merge.

#include "attention.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "../simd.h"
#include "attention_amx.h"
#include "attention_tiles.h"

namespace penstock {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int kLanes = f32x16::lanes;

// Floats of a partial result: head_dim weighted values, the maximum score, the sum of weights.
constexpr int partial_stride(int dim) { return (dim + 2 + 15) / 16 * 16; }

// A worker's scratch. Sizes are those of the widest element.
struct Scratch {
  std::byte* queries;     // [kTileRows][head_dim]
  float* scores;          // [kTileRows][kScoreStride]
  std::byte* weights;     // [kTileRows][kScoreStride]
  float* partial;         // [kTileRows][partial_stride]
  float* merged;          // [kTileRows][partial_stride]
  std::byte* values[2];   // value tiles with rows out of sight zeroed
  size_t bytes;

  Scratch(std::byte* base, int dim) {
    std::byte* at = base;
    const auto take = [&at](int64_t floats) {
      std::byte* start = at;
      at += (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
      return start;
    };
    queries = take(int64_t(kTileRows) * dim);
    scores = reinterpret_cast<float*>(take(int64_t(kTileRows) * kScoreStride));
    weights = take(int64_t(kTileRows) * kScoreStride);
    partial = reinterpret_cast<float*>(take(int64_t(kTileRows) * partial_stride(dim)));
    merged = reinterpret_cast<float*>(take(int64_t(kTileRows) * partial_stride(dim)));
    for (auto& tile : values) tile = take(int64_t(kBlockSize) * dim);
    bytes = size_t(at - base);
  }
};

// What one unit of work sees: a tile of rows of one sequence under one KV head.
struct Tile {
  const AttentionArgs& args;
  const int32_t* blocks;  // of the sequence
  int kv_head;
  int group;
  int64_t first_token;    // token row in the step of the sequence's first query
  int first_position;     // its position
  int first_row;
  int rows;

  int dim() const { return args.kv.head_dim; }
  int64_t token(int r) const { return first_token + (first_row + r) / group; }
  int64_t column(int r) const {
    return int64_t(kv_head * group + (first_row + r) % group) * dim();
  }
  // Row r sees positions [begin, end).
  int end(int r) const { return first_position + (first_row + r) / group + 1; }
  int begin(int r) const { return args.window > 0 ? std::max(0, end(r) - args.window) : 0; }
};

template <class To, class From>
void convert(To* to, const From* from, int n) {
  for (int i = 0; i < n; i += kLanes) {
    const int count = std::min(kLanes, n - i);
    f32x16::load_n(from + i, count).store_n(to + i, count);
  }
}

template <class T>
void pack_queries(const Tile& tile, T* out) {
  const Array& q = tile.args.q;
  for (int r = 0; r < tile.rows; ++r) {
    T* to = out + r * tile.dim();
    if (q.elem == Elem::bf16)
      convert(to, q.row<const bf16>(tile.token(r)) + tile.column(r), tile.dim());
    else
      convert(to, q.row<const float>(tile.token(r)) + tile.column(r), tile.dim());
  }
}

// Copies a value tile, zeroing the rows outside [begin, end). A weight of zero does not hide a
// value that is not finite, and slots out of sight may hold what another request left.
template <class T>
void copy_visible(T* to, const T* from, int dim, int begin, int end) {
  if constexpr (std::is_same_v<T, bf16>) {
    for (int pair = 0; pair < kBlockSize / 2; ++pair) {
      const bool even = 2 * pair >= begin && 2 * pair < end;
      const bool odd = 2 * pair + 1 >= begin && 2 * pair + 1 < end;
      const uint32_t mask = (even ? 0xffffu : 0) | (odd ? 0xffff0000u : 0);
      for (int d = 0; d < dim; ++d) {
        const int64_t at = int64_t(pair * dim + d) * 2;
        uint32_t word;
        std::memcpy(&word, from + at, sizeof(word));
        word &= mask;
        std::memcpy(to + at, &word, sizeof(word));
      }
    }
  } else {
    std::fill_n(to, int64_t(begin) * dim, T{});
    std::copy(from + int64_t(begin) * dim, from + int64_t(end) * dim, to + int64_t(begin) * dim);
    std::fill_n(to + int64_t(end) * dim, int64_t(kBlockSize - end) * dim, T{});
  }
}

// The blocks of a split that any row of the tile sees.
template <class T>
SplitBlocks gather(const Tile& tile, int split, const Scratch& scratch) {
  const int base = split * kSplitTokens;
  const int begin = std::max(tile.begin(0) - base, 0);
  const int end = std::min(tile.end(tile.rows - 1) - base, kSplitTokens);
  SplitBlocks out;
  out.first = begin / kBlockSize;
  out.last = (end + kBlockSize - 1) / kBlockSize;
  const int32_t* blocks = tile.blocks + split * kSplitBlocks;
  for (int b = out.first; b < out.last; ++b) {
    out.keys[b] = tile.args.kv.keys(blocks[b], tile.kv_head);
    out.values[b] = tile.args.kv.values(blocks[b], tile.kv_head);
    const int low = std::max(begin - b * kBlockSize, 0);
    const int high = std::min(end - b * kBlockSize, kBlockSize);
    if (low > 0 || high < kBlockSize) {  // at most the first block and the last
      std::byte* copy = scratch.values[b == out.first ? 0 : 1];
      copy_visible(reinterpret_cast<T*>(copy), reinterpret_cast<const T*>(out.values[b]),
                   tile.dim(), low, high);
      out.values[b] = copy;
    }
  }
  return out;
}

struct RowSum {
  float maximum;
  float sum;
};

// weights = exp(scale * scores - maximum) over columns [first, last), zero outside [begin, end).
// Overwrites the scores. Lane i of the sum takes columns i, i + 16, ...: the split's absolute
// positions, so that leaving out registers without visible columns changes nothing.
template <class T>
RowSum softmax_row(float* scores, T* weights, float scale, int first, int last, int begin,
                   int end) {
  begin = std::max(begin, first);
  end = std::min(end, last);
  if (begin >= end) {
    std::fill(weights + first, weights + last, T{});
    return {kNone, 0.0f};
  }
  const f32x16 none = f32x16::broadcast(kNone);
  const f32x16 factor = f32x16::broadcast(scale);
  const int low = begin / kLanes * kLanes;
  const int high = (end + kLanes - 1) / kLanes * kLanes;
  std::fill(weights + first, weights + low, T{});
  std::fill(weights + high, weights + last, T{});

  f32x16 largest = none;
  for (int i = low; i < high; i += kLanes) {
    f32x16 x = f32x16::load(scores + i) * factor;
    if (i < begin) x = select_first(begin - i, none, x);
    if (i + kLanes > end) x = select_first(end - i, x, none);
    x.store(scores + i);
    largest = max(x, largest);
  }
  const float maximum = hmax(largest);
  const f32x16 shift = f32x16::broadcast(maximum);
  f32x16 sum = f32x16::zero();
  for (int i = low; i < high; i += kLanes) {
    const f32x16 w = exp(f32x16::load(scores + i) - shift);
    w.store(weights + i);
    sum += w;
  }
  return {maximum, hsum(sum)};
}

// Partial results of the tile's rows for one split.
template <class Kernel, class T>
void run_split(const Tile& tile, const Kernel& kernel, int split, const Scratch& scratch,
               float* out) {
  using Operand = typename Kernel::Operand;
  const int dim = tile.dim();
  const int stride = partial_stride(dim);
  const int base = split * kSplitTokens;
  const SplitBlocks blocks = gather<T>(tile, split, scratch);
  auto* weights = reinterpret_cast<Operand*>(scratch.weights);
  kernel.scores(reinterpret_cast<const Operand*>(scratch.queries), dim, blocks, scratch.scores);
  for (int r = 0; r < tile.rows; ++r) {
    const RowSum row = softmax_row(scratch.scores + r * kScoreStride, weights + r * kScoreStride,
                                   tile.args.scale, blocks.first * kBlockSize,
                                   blocks.last * kBlockSize, tile.begin(r) - base,
                                   tile.end(r) - base);
    out[r * stride + dim] = row.maximum;
    out[r * stride + dim + 1] = row.sum;
  }
  kernel.weigh(weights, blocks, out, stride);
}

// Adds a split's partial result to that of the splits before it. A sum of zero is a split of
// which the row sees nothing.
void merge(float* merged, const float* partial, int dim) {
  if (partial[dim + 1] == 0.0f) return;
  if (merged[dim + 1] == 0.0f) {
    std::copy_n(partial, dim + 2, merged);
    return;
  }
  const float maximum = std::max(merged[dim], partial[dim]);
  const f32x16 old_factor = exp(f32x16::broadcast(merged[dim] - maximum));
  const f32x16 new_factor = exp(f32x16::broadcast(partial[dim] - maximum));
  // Whole registers: the padding of a row is there, and the sum scales as the values do.
  const f32x16 sum = fma(f32x16::broadcast(partial[dim + 1]), new_factor,
                         f32x16::broadcast(merged[dim + 1]) * old_factor);
  for (int i = 0; i < dim; i += kLanes)
    fma(f32x16::load(partial + i), new_factor, f32x16::load(merged + i) * old_factor)
        .store(merged + i);
  merged[dim] = maximum;
  sum.store_n(merged + dim + 1, 1);
}

// Divides by the sum. Adding zero makes a negative zero positive: its sign is the one thing that
// a masked product may change.
void finish(const Tile& tile, const float* merged) {
  const int dim = tile.dim();
  const Array& out = tile.args.out;
  for (int r = 0; r < tile.rows; ++r, merged += partial_stride(dim)) {
    const f32x16 factor = f32x16::broadcast(1.0f / merged[dim + 1]);
    for (int i = 0; i < dim; i += kLanes) {
      const int count = std::min(kLanes, dim - i);
      const f32x16 x = f32x16::load_n(merged + i, count) * factor + f32x16::zero();
      if (out.elem == Elem::bf16)
        x.store_n(out.row<bf16>(tile.token(r)) + tile.column(r) + i, count);
      else
        x.store_n(out.row<float>(tile.token(r)) + tile.column(r) + i, count);
    }
  }
}

void clear(float* merged, int rows, int dim) {
  for (int r = 0; r < rows; ++r) {
    merged[r * partial_stride(dim) + dim] = kNone;
    merged[r * partial_stride(dim) + dim + 1] = 0.0f;
  }
}

void merge_rows(float* merged, const float* partial, int rows, int dim) {
  const int stride = partial_stride(dim);
  for (int r = 0; r < rows; ++r) merge(merged + r * stride, partial + r * stride, dim);
}

Tile make_tile(const AttentionArgs& args, const StepView& step, const AttentionItem& item,
               int kv_head) {
  const int first = step.query_starts[item.sequence];
  const int tokens = step.query_starts[item.sequence + 1] - first;
  return {args,
          step.block_ids + step.block_starts[item.sequence],
          kv_head,
          args.heads / args.kv.kv_heads,
          first,
          step.context_lens[item.sequence] - tokens,
          item.first_row,
          item.rows};
}

}  // namespace

// One (item, KV head).
struct AttentionUnit {
  AttentionWork& work;
  const AttentionItem& item;
  const Tile tile;
  const Scratch& scratch;

  float* partial(int split) const {
    const int64_t row =
        item.partial_row +
        (int64_t(tile.kv_head) * item.tile_splits + (split - item.tile_first_split)) * item.rows;
    return work.partial(row);
  }

  template <class Kernel, class T>
  void run() const {
    using Operand = typename Kernel::Operand;
    const int dim = tile.dim();
    pack_queries(tile, reinterpret_cast<Operand*>(scratch.queries));
    const Kernel kernel(tile.rows, dim);
    const int end = item.first_split + item.splits;
    if (item.tile >= 0) {
      for (int split = item.first_split; split < end; ++split)
        run_split<Kernel, T>(tile, kernel, split, scratch, partial(split));
      if (last_of_tile()) merge_partials();
      return;
    }
    clear(scratch.merged, tile.rows, dim);
    for (int split = item.first_split; split < end; ++split) {
      run_split<Kernel, T>(tile, kernel, split, scratch, scratch.partial);
      merge_rows(scratch.merged, scratch.partial, tile.rows, dim);
    }
    finish(tile, scratch.merged);
  }

  // Whether the tile's other items are done. Releases this item's partials to whoever merges, and
  // leaves the counter as the next layer wants it.
  bool last_of_tile() const {
    auto& pending = work.pending_[size_t(item.tile * tile.args.kv.kv_heads + tile.kv_head)];
    if (pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    pending.store(work.tile_items_[size_t(item.tile)], std::memory_order_relaxed);
    return true;
  }

  void merge_partials() const {
    const int dim = tile.dim();
    clear(scratch.merged, tile.rows, dim);
    for (int i = 0; i < item.tile_splits; ++i)
      merge_rows(scratch.merged, partial(item.tile_first_split + i), tile.rows, dim);
    finish(tile, scratch.merged);
  }

  void dispatch() const {
    switch (tile.args.kv.elem) {
      case Elem::bf16:
#if defined(__AMX_BF16__)
        if (AmxTiles::supports(tile.dim())) return run<AmxTiles, bf16>();
#endif
        return run<VectorTiles<PairDot>, bf16>();
      case Elem::f16:
        return run<VectorTiles<FloatDot<f16>>, f16>();
      default:
        return run<VectorTiles<FloatDot<float>>, float>();
    }
  }
};

size_t attention_scratch_bytes(const AttentionShape& shape) {
  return Scratch(nullptr, shape.head_dim).bytes;
}

// Units are taken from a counter, so that a thread that was interrupted takes fewer. Heads vary
// slowest: threads then share one head's blocks in the outer caches, and the last units are the
// smallest. The last finisher of a cut tile merges it: unlike a second phase, that waits for nobody.
void attention(const AttentionArgs& args, const StepView& step, AttentionWork& work,
               Worker& worker) {
  const Scratch scratch(worker.scratch, args.kv.head_dim);
  const int64_t items = int64_t(work.items_.size());
  const int64_t units = items * args.kv.kv_heads;
  for (;;) {
    const int64_t unit = work.next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units) break;
    const AttentionItem& item = work.items_[size_t(unit % items)];
    AttentionUnit{work, item, make_tile(args, step, item, int(unit / items)), scratch}.dispatch();
  }
  // Whoever leaves last resets the counters: no thread takes from them any more, and the barrier
  // after this kernel shows the reset to all.
  if (work.leaving_.fetch_add(1, std::memory_order_acq_rel) + 1 == worker.count) {
    work.next_.store(0, std::memory_order_relaxed);
    work.leaving_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace penstock
