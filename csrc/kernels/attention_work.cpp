// The work list of a step's attention: tiles, and which of them are cut to feed every thread.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "../integers.h"
#include "attention.h"
#include "draft_tree.h"

namespace penstock {
namespace {

// Items a worker gets if all tiles are as large as the largest allowed: enough that the last to
// finish costs the others at most about a quarter of their time.
constexpr int kItemsPerWorker = 4;

// What partials may take. They are an optimization: a tile that finds no room is not cut.
constexpr int64_t kPartialBytes = int64_t(64) << 20;

constexpr int kPanelRows = 16;

int cut_capacity(const AttentionLimits& limits) {
  return limits.workers > 1 ? kItemsPerWorker * limits.workers : 0;
}

}  // namespace

AttentionWork::AttentionWork(const AttentionShape& shape, const AttentionLimits& limits)
    : shape_(shape), limits_(limits) {
  if (shape.kv_heads < 1 || shape.heads < 1 || shape.heads % shape.kv_heads != 0)
    throw std::invalid_argument("attention: " + std::to_string(shape.heads) +
                                " query heads are not a multiple of " +
                                std::to_string(shape.kv_heads) + " KV heads");
  const bool latent = shape.value_dim > 0;
  if (latent ? shape.value_dim > shape.head_dim || shape.head_dim > kMostLatentDim
             : shape.value_dim < 0)
    throw std::invalid_argument("attention: latents have up to " + std::to_string(kMostLatentDim) +
                                " components, and values are the first of them");
  if (!latent &&
      (shape.head_dim < 2 || shape.head_dim > kMostHeadDim || shape.head_dim % 2 != 0))
    throw std::invalid_argument("attention: head_dim must be even and at most " +
                                std::to_string(kMostHeadDim) + ", not " +
                                std::to_string(shape.head_dim));
  if (shape.window < 0 || shape.chunk < 0 || (shape.window > 0 && shape.chunk > 0))
    throw std::invalid_argument("attention: a layer has a window, or chunks, or neither");
  if (limits.max_tokens < 1 || limits.max_sequences < 1 ||
      limits.max_context < 1 || limits.workers < 1)
    throw std::invalid_argument("attention: limits must be positive");

  const int group = shape.heads / shape.kv_heads;
  const int64_t rows = int64_t(limits.max_tokens) * group;
  // Rows, tiles, positions and (cut tile, KV head) are counted in 32 bits.
  if (rows > INT32_MAX - kTileRows || limits.max_context > kMostPositions ||
      int64_t(kItemsPerWorker) * limits.workers * shape.kv_heads > INT32_MAX)
    throw std::invalid_argument("attention: " + std::to_string(limits.max_tokens) +
                                " tokens a step, contexts of " +
                                std::to_string(limits.max_context) + " or " +
                                std::to_string(limits.workers) +
                                " threads are too many for so many heads");
  const int cuts = cut_capacity(limits);
  // A cut tile becomes at most one item more than its share of cuts, and cut tiles are at most
  // `cuts`. The rows before a fork and those behind it may each end in a tile that is not full.
  items_.reserve(size_t(rows / kTileRows + 2 * int64_t(limits.max_sequences) + 2 * cuts + 1));

  partial_stride_ = (shape.out_dim() + 2 + 15) / 16 * 16;
  const int64_t splits = ceil_div(limits.max_context, kSplitTokens);
  partial_capacity_ = std::min(int64_t(cuts) * std::min<int64_t>(kTileRows, rows) * splits,
                               kPartialBytes / int64_t(partial_stride_ * sizeof(float)));
  if (partial_capacity_ > 0)
    partials_ = Memory(size_t(partial_capacity_ * partial_stride_) * sizeof(float));
  tile_capacity_ = cuts;
  tile_items_.resize(size_t(cuts));
  pending_ = std::make_unique<std::atomic<int32_t>[]>(size_t(cuts) * size_t(shape.kv_heads));
}

void build_attention_work(const StepView& step, AttentionWork& work) {
  const AttentionShape& shape = work.shape_;
  const AttentionLimits& limits = work.limits_;
  if (step.tokens > limits.max_tokens || step.sequences > limits.max_sequences)
    throw std::length_error("attention: a step of " + std::to_string(step.tokens) + " tokens in " +
                            std::to_string(step.sequences) + " sequences exceeds the bound " +
                            std::to_string(limits.max_tokens) + ", " +
                            std::to_string(limits.max_sequences));
  const int group = shape.heads / shape.kv_heads;
  auto& items = work.items_;
  items.clear();

  int64_t total = 0;
  for (int s = 0; s < step.sequences; ++s) {
    const int tokens = step.query_starts[s + 1] - step.query_starts[s];
    const int context = step.context_lens[s];
    if (context > limits.max_context)
      throw std::length_error("attention: a context of " + std::to_string(context) +
                              " tokens exceeds the bound " + std::to_string(limits.max_context));
    const int32_t* parents =
        step.tree_parents ? step.tree_parents + step.query_starts[s] : nullptr;
    const int trunk = parents ? trunk_rows(parents, tokens) : tokens;
    const auto push = [&](int row, int rows, int first, int last, int fork) {
      const int low = first_seen(shape.window, shape.chunk, first);
      const int first_split = low / kSplitTokens;
      const int splits = last / kSplitTokens + 1 - first_split;
      const int64_t cost = int64_t(last + 1 - low) * ceil_div(rows, kPanelRows);
      items.push_back({s, row, rows, first_split, splits, first_split, splits, -1, 0, cost, fork});
      total += cost;
    };
    for (int row = 0; row < trunk * group; row += kTileRows) {
      const int rows = std::min(kTileRows, trunk * group - row);
      push(row, rows, context - tokens + row / group,
           context - tokens + (row + rows - 1) / group, kNoFork);
    }
    for (int row = trunk * group; row < tokens * group; row += kTileRows) {
      const int rows = std::min(kTileRows, tokens * group - row);
      const int32_t* positions = step.positions + step.query_starts[s];
      const auto [first, last] = std::minmax_element(positions + row / group,
                                                     positions + (row + rows - 1) / group + 1);
      push(row, rows, *first, *last, context - tokens + trunk);
    }
  }

  // Cut every tile of which a worker would get too few. The choice depends on the step and on the
  // number of workers; results do not, because partials are per split either way.
  const int64_t shares = int64_t(kItemsPerWorker) * limits.workers;
  const int64_t limit =
      std::max<int64_t>(kSplitTokens, (total * shape.kv_heads + shares - 1) / shares);
  const size_t tiles = items.size();
  int cut_tiles = 0;
  int64_t partial_rows = 0;
  for (size_t i = 0; i < tiles; ++i) {
    const AttentionItem whole = items[i];
    if (whole.splits == 1 || whole.cost <= limit || cut_tiles == work.tile_capacity_) continue;
    const int64_t needed = int64_t(shape.kv_heads) * whole.rows * whole.splits;
    if (partial_rows + needed > work.partial_capacity_) continue;
    const int parts = int(std::min<int64_t>(whole.splits, (whole.cost + limit - 1) / limit));
    const int run = int(ceil_div(whole.splits, parts));
    for (int at = 0; at < whole.splits; at += run) {
      AttentionItem part = whole;
      part.first_split = whole.first_split + at;
      part.splits = std::min(run, whole.splits - at);
      part.tile = cut_tiles;
      part.partial_row = partial_rows;
      part.cost = whole.cost * part.splits / whole.splits;
      if (at == 0)
        items[i] = part;
      else
        items.push_back(part);
    }
    const int count = int(ceil_div(whole.splits, run));
    work.tile_items_[size_t(cut_tiles)] = count;
    for (int h = 0; h < shape.kv_heads; ++h)
      work.pending_[size_t(cut_tiles * shape.kv_heads + h)].store(count,
                                                                  std::memory_order_relaxed);
    ++cut_tiles;
    partial_rows += needed;
  }
  std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    if (a.sequence != b.sequence) return a.sequence < b.sequence;
    if (a.first_row != b.first_row) return a.first_row < b.first_row;
    return a.first_split < b.first_split;
  });
}

}  // namespace penstock
