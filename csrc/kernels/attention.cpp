// One item of attention: scores, softmax and weighted values split by split, and their merge.

#include "attention.h"

#include <algorithm>
#include <type_traits>

#include "../simd.h"
#include "attention_amx.h"
#include "attention_softmax.h"
#include "attention_tiles.h"

namespace penstock {
namespace {

constexpr int kStreamRows = 16;  // up to here time goes to reading the cache

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
  int rows;
  int begin[kTileRows];      // row r sees positions [begin, end)
  int end[kTileRows];
  int64_t offset[kTileRows];  // of row r in q and out, in elements

  Tile(const AttentionArgs& args, const StepView& step, const AttentionItem& item, int kv_head)
      : args(args),
        blocks(step.block_ids + step.block_starts[item.sequence]),
        kv_head(kv_head),
        rows(item.rows) {
    const int group = args.heads / args.kv.kv_heads;
    const int first = step.query_starts[item.sequence];
    const int tokens = step.query_starts[item.sequence + 1] - first;
    int token = item.first_row / group, head = item.first_row % group;
    for (int r = 0; r < rows; ++r) {
      end[r] = step.context_lens[item.sequence] - tokens + token + 1;
      begin[r] = args.window > 0 ? std::max(0, end[r] - args.window) : 0;
      offset[r] = (int64_t(first + token) * args.heads + kv_head * group + head) * dim();
      if (++head == group) head = 0, ++token;
    }
  }

  int dim() const { return args.kv.head_dim; }
};

template <class To, class From>
PENSTOCK_INLINE void convert(To* to, const From* from, int n) {
  if constexpr (std::is_same_v<To, From>) {
    std::copy_n(from, n, to);
  } else {
    for (int i = 0; i < n; i += f32x16::lanes) {
      const int count = std::min(f32x16::lanes, n - i);
      f32x16::load_n(from + i, count).store_n(to + i, count);
    }
  }
}

template <class T>
void pack_queries(const Tile& tile, T* out) {
  const Array& q = tile.args.q;
  for (int r = 0; r < tile.rows; ++r, out += tile.dim()) {
    if (q.elem == Elem::bf16)
      convert(out, q.row<const bf16>(0) + tile.offset[r], tile.dim());
    else
      convert(out, q.row<const float>(0) + tile.offset[r], tile.dim());
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

// The blocks of a split that any row of the tile sees. A tile of few rows streams the cache: its
// values are fetched while scores are computed, and the next split's keys with the values.
template <class T>
SplitBlocks gather(const Tile& tile, int split, const Scratch& scratch) {
  const int base = split * kSplitTokens;
  const int begin = std::max(tile.begin[0] - base, 0);
  const int end = std::min(tile.end[tile.rows - 1] - base, kSplitTokens);
  SplitBlocks out{};
  out.first = begin / kBlockSize;
  out.last = (end + kBlockSize - 1) / kBlockSize;
  const int32_t* blocks = tile.blocks + split * kSplitBlocks;
  for (int b = out.first; b < out.last; ++b) {
    out.keys[b] = tile.args.kv.keys(blocks[b], tile.kv_head);
    out.values[b] = tile.args.kv.values(blocks[b], tile.kv_head);
    if (tile.rows <= kStreamRows) {
      const int ahead = b + kSplitBlocks;
      out.fetch_values[b] = out.values[b];
      if (base + ahead * kBlockSize < tile.end[0])
        out.fetch_keys[b] = tile.args.kv.keys(blocks[ahead], tile.kv_head);
    }
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

// Rows of scores to rows of weights, with each row's maximum and sum. All maxima come first: the
// latency of one then does not hold up the next.
template <class T>
void softmax(const Tile& tile, int split, const SplitBlocks& blocks, float* scores, T* weights,
             float* out) {
  const int dim = tile.dim();
  const int stride = partial_stride(dim);
  const float scale = tile.args.scale;
  for (int r = 0; r < tile.rows; ++r) {
    const Columns columns(tile.begin[r], tile.end[r], split);
    out[r * stride + dim] =
        columns.empty() ? kNoScore : mask_and_max(scores + r * kScoreStride, columns) * scale;
  }
  const int first = blocks.first * kBlockSize, last = blocks.last * kBlockSize;
  for (int r = 0; r < tile.rows; ++r) {
    const Columns columns(tile.begin[r], tile.end[r], split);
    T* to = weights + r * kScoreStride;
    if (columns.empty()) std::fill(to + first, to + last, T{});
    out[r * stride + dim + 1] =
        columns.empty() ? 0.0f
                        : exponentials(scores + r * kScoreStride, to, scale,
                                       out[r * stride + dim], columns, first, last);
  }
}

// Partial results of the tile's rows for one split.
template <class Kernel, class T>
void run_split(const Tile& tile, const Kernel& kernel, int split, const Scratch& scratch,
               float* out) {
  using Operand = typename Kernel::Operand;
  const int dim = tile.dim();
  const SplitBlocks blocks = gather<T>(tile, split, scratch);
  auto* weights = reinterpret_cast<Operand*>(scratch.weights);
  kernel.scores(reinterpret_cast<const Operand*>(scratch.queries), dim, blocks, scratch.scores);
  softmax(tile, split, blocks, scratch.scores, weights, out);
  kernel.weigh(weights, blocks, out, partial_stride(dim));
}

void merge_rows(float* merged, const float* partial, int rows, int dim) {
  const int stride = partial_stride(dim);
  for (int r = 0; r < rows; ++r) merge(merged + r * stride, partial + r * stride, dim);
}

// Divides by the sum. Adding zero makes a negative zero positive: its sign is the one thing that
// a masked product may change.
template <class T>
void finish(const Tile& tile, const float* merged) {
  const int dim = tile.dim();
  for (int r = 0; r < tile.rows; ++r, merged += partial_stride(dim)) {
    T* out = tile.args.out.row<T>(0) + tile.offset[r];
    const f32x16 factor = f32x16::broadcast(1.0f / merged[dim + 1]);
    for (int i = 0; i < dim; i += f32x16::lanes) {
      const int count = std::min(f32x16::lanes, dim - i);
      (f32x16::load_n(merged + i, count) * factor + f32x16::zero()).store_n(out + i, count);
    }
  }
}

void finish(const Tile& tile, const float* merged) {
  if (tile.args.out.elem == Elem::bf16)
    finish<bf16>(tile, merged);
  else
    finish<float>(tile, merged);
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
    run_split<Kernel, T>(tile, kernel, item.first_split, scratch, scratch.merged);
    for (int split = item.first_split + 1; split < end; ++split) {
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
    float* merged = partial(item.tile_first_split);
    for (int i = 1; i < item.tile_splits; ++i)
      merge_rows(merged, partial(item.tile_first_split + i), tile.rows, tile.dim());
    finish(tile, merged);
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
// smallest. The last finisher of a cut tile merges it: a second phase would wait for all threads
// before a merge of a few rows.
void attention(const AttentionArgs& args, const StepView& step, AttentionWork& work,
               Worker& worker) {
  const Scratch scratch(worker.scratch, args.kv.head_dim);
  const int64_t items = int64_t(work.items_.size());
  const int64_t units = items * args.kv.kv_heads;
  for (;;) {
    const int64_t unit = work.next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units) break;
    const AttentionItem& item = work.items_[size_t(unit % items)];
    AttentionUnit{work, item, Tile(args, step, item, int(unit / items)), scratch}.dispatch();
  }
  // Whoever leaves last resets the counters: no thread takes from them any more, and the barrier
  // after this kernel shows the reset to all.
  if (work.leaving_.fetch_add(1, std::memory_order_acq_rel) + 1 == worker.count) {
    work.next_.store(0, std::memory_order_relaxed);
    work.leaving_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace penstock
