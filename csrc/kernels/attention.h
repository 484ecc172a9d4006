// Causal attention over the paged cache: the `Attention` op of plan/ops.
//
// A row is one (query token, query head); the heads that share a KV head are folded into rows, so
// row r of a sequence is token r / group and head r % group. A tile is up to kTileRows consecutive
// rows of one sequence. The context is cut at absolute positions into splits of kSplitTokens. For
// each split a row gets a partial result (maximum, sum, weighted values), and partials are merged
// from the first split to the last by one piece of code, which then adds the row's sink, if it has
// one, to the sum. What a row computes therefore depends on
// its own sequence alone: not on how it was chunked into tiles, which tiles were cut into several
// items to feed more threads, or who merged them.
//
// Rows of a draft tree see the trunk and their ancestors, whose keys lie in the order of the step's
// rows, not of positions. Splits before the fork are read as they are, by tiles of rows together.
// From the fork's split on, each token works on a copy in which its ancestors lie where they would
// without a tree, and does with it what any row does: the bits are those of plain decoding.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "../memory.h"
#include "../types.h"

namespace penstock {

constexpr int kTileRows = 32;       // two AMX row panels; shares each key tile load between them
constexpr int kSplitTokens = 256;   // scores of a tile (32 KiB) stay near L1; a multiple of blocks
constexpr int kSplitBlocks = kSplitTokens / kBlockSize;

struct AttentionArgs {
  KvLayer kv;
  Array q;    // [T, heads * head_dim] f32 or bf16
  Array out;  // [T, heads * kv.out_dim()] f32 or bf16
  int heads;
  float scale;  // positive
  int window;  // positions a query sees, itself included; 0 is all
  float softcap = 0;              // a score becomes softcap * tanh(score / softcap); 0: it does not
  const float* slopes = nullptr;  // [heads]; times the key's position less the query's, added
  const float* sinks = nullptr;   // [heads]; a score in each softmax that has no value
  // Not 0: positions, and slopes times them, are rounded to bf16, and differences multiplied by this.
  float slope_factor = 0;
  int chunk = 0;  // positions of which a query sees its own chunk alone; 0: there are no chunks

  // Whether a score becomes something else before its softmax.
  bool shapes_scores() const { return softcap > 0 || slopes; }
};

// Layers with equal shapes share one work list.
struct AttentionShape {
  int heads;
  int kv_heads;
  int head_dim;  // even, 2..kMostHeadDim; of latents 1..kMostLatentDim
  int window;    // 0 is none
  int value_dim = 0;  // of a cache of latents
  int chunk = 0;      // 0 is none; at most one of window and chunk is not

  int out_dim() const { return value_dim > 0 ? value_dim : head_dim; }

  bool operator==(const AttentionShape&) const = default;
};

// The first position that a query at `position` sees.
inline int first_seen(int window, int chunk, int position) {
  if (chunk > 0) return position / chunk * chunk;
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Upper bounds of any step, known at bind.
struct AttentionLimits {
  int max_tokens;
  int max_sequences;
  int max_context;  // of one sequence
  int workers;
};

constexpr int kNoFork = -1;

// Some splits of one tile, for every KV head.
struct AttentionItem {
  int32_t sequence;
  int32_t first_row;    // of the sequence's rows in this step
  int32_t rows;         // 1..kTileRows
  int32_t first_split;  // absolute
  int32_t splits;
  int32_t tile_first_split;  // of the whole tile
  int32_t tile_splits;
  int32_t tile;          // index of the shared counters; -1: the item is a whole tile
  int64_t partial_row;   // first row of the tile's partials, KV head 0, tile_first_split
  int64_t cost;          // in keys times row panels
  int32_t fork;          // position where the tree forks that the rows are behind; or kNoFork
};

// What one step's attention consists of, and the state its threads share. Allocated once;
// rebuilt every step by build_attention_work; used by one attention call at a time. The counters
// clean up after themselves, so any number of layers run from one build.
class AttentionWork {
 public:
  // Throws std::invalid_argument on a shape that the kernels cannot run.
  AttentionWork(const AttentionShape& shape, const AttentionLimits& limits);

  const AttentionShape& shape() const { return shape_; }

 private:
  friend void build_attention_work(const StepView& step, AttentionWork& work);
  friend void attention(const AttentionArgs& args, const StepView& step, AttentionWork& work,
                        Worker& worker);
  friend struct AttentionUnit;

  float* partial(int64_t row) const {
    return reinterpret_cast<float*>(partials_.data()) + row * partial_stride_;
  }

  AttentionShape shape_;
  AttentionLimits limits_;
  std::vector<AttentionItem> items_;  // largest first; the size is the step's
  int64_t partial_stride_;            // floats: out_dim() values, maximum, sum, padding
  int64_t partial_capacity_;          // rows
  Memory partials_;                   // of what is allowed, the system gives what is touched
  int tile_capacity_;                                // split tiles
  std::unique_ptr<std::atomic<int32_t>[]> pending_;  // [split tile][KV head] items unfinished
  std::vector<int32_t> tile_items_;                  // [split tile] what pending_ restarts from
  std::atomic<int64_t> next_{0};                     // unit to take: item * kv_heads + head
  std::atomic<int32_t> leaving_{0};                  // threads that found nothing left
};

// Lists the step's items. One thread calls it, before any thread runs attention on the step.
// Allocates nothing. Throws std::length_error if the step exceeds the limits.
void build_attention_work(const StepView& step, AttentionWork& work);

// Worker::scratch that attention needs.
size_t attention_scratch_bytes(const AttentionShape& shape);

// Every worker calls it once per layer; `work` was built from `step` for the shape of `args`.
// out may not alias q.
void attention(const AttentionArgs& args, const StepView& step, AttentionWork& work,
               Worker& worker);

}  // namespace penstock
