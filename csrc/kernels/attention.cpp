// One item of attention: scores, softmax and weighted values split by split, and their merge.

#include "attention.h"

#include <algorithm>

#include "../simd.h"
#include "attention_amx.h"
#include "attention_bytes.h"
#include "attention_bytes_amx.h"
#include "attention_float8.h"
#include "attention_int8.h"
#include "attention_item.h"
#include "attention_latent.h"
#include "attention_path.h"
#include "attention_softmax.h"
#include "attention_tiles.h"

namespace penstock {
namespace {

// Partial results of the tile's rows for one split, from a cache of floats of type T.
template <class Kernel, class T>
class FloatSplits {
 public:
  FloatSplits(const Tile& tile, const Scratch& scratch)
      : tile_(tile), scratch_(scratch), kernel_(tile.rows, tile.dim()) {
    pack_queries(tile, queries());
  }

  void run(int split, float* out) const {
    SplitBlocks blocks = gather<T>(tile_, split, scratch_);
    auto* weights = reinterpret_cast<Operand*>(scratch_.weights);
    kernel_.scores(queries(), tile_.dim(), blocks, scratch_.scores);
    hide_unseen<T>(tile_, split, scratch_, blocks);
    softmax(tile_, split, blocks, scratch_.scores, weights, out);
    kernel_.weigh(weights, blocks, out, partial_stride(tile_.dim()));
  }

 private:
  using Operand = typename Kernel::Operand;

  Operand* queries() const { return reinterpret_cast<Operand*>(scratch_.queries); }

  const Tile& tile_;
  const Scratch& scratch_;
  const Kernel kernel_;
};

void merge_rows(float* merged, const float* partial, int rows, int dim) {
  const int stride = partial_stride(dim);
  for (int r = 0; r < rows; ++r) merge(merged + r * stride, partial + r * stride, dim);
}

// Divides by the sum, which the sink is part of, and turns back what is weighed of turned values. Adding zero makes
// a negative zero positive: its sign is the one thing that a masked product may change.
template <class T>
void finish(const Tile& tile, const float* merged) {
  const int dim = tile.out_dim();
  for (int r = 0; r < tile.rows; ++r, merged += partial_stride(dim)) {
    T* out = tile.args.out.row<T>(tile.token[r]) + int64_t(tile.head(r)) * dim;
    const float* sinks = tile.args.sinks;
    const f32x16 factor = f32x16::broadcast(
        sinks ? factor_with_sink(merged[dim], merged[dim + 1], sinks[tile.head(r)])
              : 1.0f / merged[dim + 1]);
    alignas(64) float turned[kMostHeadDim];
    const float* from = merged;
    if (tile.args.kv.turns_values()) {
      std::copy_n(merged, dim, turned);
      turn_head(turned, dim);
      from = turned;
    }
    for (int i = 0; i < dim; i += f32x16::lanes) {
      const int count = std::min(f32x16::lanes, dim - i);
      (f32x16::load_n(from + i, count) * factor + f32x16::zero()).store_n(out + i, count);
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
  const StepView& step;
  const AttentionItem& item;
  const Tile tile;
  const Scratch& scratch;

  float* partial(int split) const {
    const int64_t row =
        item.partial_row +
        (int64_t(tile.kv_head) * item.tile_splits + (split - item.tile_first_split)) * item.rows;
    return work.partial(row);
  }

  // Splits is FloatSplits, ByteSplits, CodeSplits, Float8Splits or LatentSplits: run(split, out) puts the rows' partial
  // results at out.
  template <class Splits>
  void run() const {
    if (item.fork == kNoFork) return run_splits(Splits(tile, scratch));
    run_splits(PathSplits<Splits>(tile, TreePlace(step, item.sequence), scratch));
  }

  template <class Splits>
  void run_splits(Splits&& splits) const {
    const int end = item.first_split + item.splits;
    if (item.tile >= 0) {
      for (int split = item.first_split; split < end; ++split) splits.run(split, partial(split));
      if (last_of_tile()) merge_partials();
      return;
    }
    splits.run(item.first_split, scratch.merged);
    for (int split = item.first_split + 1; split < end; ++split) {
      splits.run(split, scratch.partial);
      merge_rows(scratch.merged, scratch.partial, tile.rows, tile.out_dim());
    }
    finish(tile, scratch.merged);
  }

  // Whether the tile's other items are done. Releases this item's partials to the thread that merges, and
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
      merge_rows(merged, partial(item.tile_first_split + i), tile.rows, tile.out_dim());
    finish(tile, merged);
  }

  void dispatch() const {
    if (tile.args.kv.latent()) return dispatch_latent();
    switch (tile.args.kv.elem) {
      case Elem::bf16:
#if defined(__AMX_BF16__)
        if (AmxTiles::supports(tile.dim())) return run<FloatSplits<AmxTiles, bf16>>();
#endif
        return run<FloatSplits<VectorTiles<PackedPairDot>, bf16>>();
      case Elem::f16:
        return run<FloatSplits<VectorTiles<FloatDot<f16>>, f16>>();
      case Elem::i8:
      case Elem::i4:
      case Elem::k8v4:
#if defined(__AMX_INT8__)
        if (AmxByteTiles::supports(tile.dim())) return run<ByteSplits<AmxByteTiles>>();
#endif
#if defined(__AVX512VNNI__)
        return run<ByteSplits<VectorByteTiles>>();
#else
        return run<CodeSplits>();
#endif
      case Elem::e4m3:
#if defined(__AMX_BF16__)
        if (AmxTiles::supports(tile.dim())) return run<Float8Splits<AmxTiles>>();
#endif
        return run<Float8Splits<VectorTiles<PackedPairDot, 1>>>();
      default:
        return run<FloatSplits<VectorTiles<FloatDot<float>>, float>>();
    }
  }

  void dispatch_latent() const {
    switch (tile.args.kv.elem) {
      case Elem::bf16: return run<LatentSplits<bf16>>();
      case Elem::f16: return run<LatentSplits<f16>>();
      case Elem::i8: return run<LatentSplits<int8_t>>();
      default: return run<LatentSplits<float>>();
    }
  }
};

size_t attention_scratch_bytes(const AttentionShape& shape) {
  return Scratch(nullptr, shape).bytes;
}

// Units are taken from a counter, so that a thread that was interrupted takes fewer. Heads vary
// slowest: threads then share one head's blocks in the outer caches, and the last units are the
// smallest. The last finisher of a cut tile merges it: a second phase would wait for all threads
// before a merge of a few rows.
void attention(const AttentionArgs& args, const StepView& step, AttentionWork& work,
               Worker& worker) {
  const Scratch scratch(worker.scratch, work.shape());
  const int64_t items = int64_t(work.items_.size());
  const int64_t units = items * args.kv.kv_heads;
  const auto take = [&] { return work.next_.fetch_add(1, std::memory_order_relaxed); };
  const KvTables& tables = step.groups[size_t(args.kv.group)];
  const auto look_at = [&](int64_t unit, Tile& tile) {
    if (unit >= units) return;
    const AttentionItem& item = work.items_[size_t(unit % items)];
    const int32_t* const blocks = tables.block_ids + tables.block_starts[item.sequence];
    const int first = item.first_split * kSplitBlocks;
    const int count = (step.context_lens[item.sequence] + kBlockSize - 1) / kBlockSize - first;
    tile.next_blocks = std::min(count, kSplitBlocks);
    for (int b = 0; b < tile.next_blocks; ++b) tile.next[b] = args.kv.keys(blocks[first + b], int(unit / items));
  };
  for (int64_t unit = take(), next; unit < units; unit = next) {
    next = take();  // now, so that what it reads first comes while this one is computed
    const AttentionItem& item = work.items_[size_t(unit % items)];
    Tile tile(args, step, item, int(unit / items));
    look_at(next, tile);
    AttentionUnit{work, step, item, tile, scratch}.dispatch();
  }
  // The thread that leaves last resets the counters: no thread takes from them any more, and the barrier
  // after this kernel shows the reset to all.
  if (work.leaving_.fetch_add(1, std::memory_order_acq_rel) + 1 == worker.count) {
    work.next_.store(0, std::memory_order_relaxed);
    work.leaving_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace penstock
