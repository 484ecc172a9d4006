// What an item of attention works on: its rows, its scratch, and the blocks of one split.
#pragma once

#include <algorithm>
#include <climits>
#include <type_traits>

#include "../simd.h"
#include "attention.h"
#include "attention_softmax.h"
#include "attention_tiles.h"
#include "draft_tree.h"
#include "wide_codes.h"

namespace penstock {

constexpr int kStreamRows = 16;  // up to here time goes to reading the cache

// Blocks that a draft tree's longest path lies in, wherever in a block it begins.
constexpr int kPathBlocks = (kMostTreeRows + kBlockSize - 2) / kBlockSize + 1;

// Components of a split's latents that are laid out at once are 64 in bfloat16, 32 floats.
constexpr int kLeastStripe = 32;

// A worker's scratch. Sizes are those of the widest element.
struct Scratch {
  std::byte* queries;     // [kTileRows][head_dim, padded as an INT8 cache pads it]
  float* scores;          // [kTileRows][kScoreStride]
  std::byte* weights;     // [kTileRows][kScoreStride]
  float* partial;         // [kTileRows][partial_stride]
  float* merged;          // [kTileRows][partial_stride]
  std::byte* values[2];   // value tiles with rows out of sight zeroed
  float* value_scales;    // [kSplitTokens], of an INT8 cache
  std::byte* path;        // [kPathBlocks] keys and values of a KV head, with their scales
  std::byte* codes;       // [kSplitBlocks][2] tiles of codes, widened
  float* transposed;      // [kBlockSize][kTileRows] scores, of latents
  std::byte* stripe;      // some columns of a split's latents as values, or all of them as floats
  size_t bytes;

  Scratch(std::byte* base, const AttentionShape& shape) {
    const int dim = (shape.head_dim + 3) / 4 * 4;  // as an INT8 cache pads it
    const int out_dim = shape.out_dim();
    const bool latent = shape.value_dim > 0;
    std::byte* at = base;
    const auto take = [&at](int64_t floats) {
      std::byte* start = at;
      at += (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
      return start;
    };
    queries = take(int64_t(kTileRows) * dim);
    scores = reinterpret_cast<float*>(take(int64_t(kTileRows) * kScoreStride));
    weights = take(int64_t(kTileRows) * kScoreStride);
    partial = reinterpret_cast<float*>(take(int64_t(kTileRows) * partial_stride(out_dim)));
    merged = reinterpret_cast<float*>(take(int64_t(kTileRows) * partial_stride(out_dim)));
    for (auto& tile : values) tile = take(int64_t(kBlockSize) * dim);
    value_scales = reinterpret_cast<float*>(take(kSplitTokens));
    path = take(int64_t(kPathBlocks) * 2 * kBlockSize * (dim + 1));
    codes = take(latent ? 0 : int64_t(kSplitBlocks) * 2 * kBlockSize * (2 * dim + 2) / 4);
    transposed = reinterpret_cast<float*>(take(latent ? kBlockSize * kTileRows : 0));
    stripe = take(latent ? int64_t(kSplitTokens) * std::max(dim, kLeastStripe) : 0);
    bytes = size_t(at - base);
  }
};

// What one unit of work sees: a tile of rows of one sequence under one KV head.
struct Tile {
  const AttentionArgs& args;
  const int32_t* blocks;  // of the sequence
  int kv_head;
  int rows;
  int fork;                   // of the item
  int first_path = INT_MAX;   // this block of the sequence and those behind it are at `path`
  const std::byte* path = nullptr;
  int end_split = 0;                // what is computed of it ends before this one
  const std::byte* next[kSplitBlocks];  // and then the worker reads these keys, and values behind them
  int next_blocks = 0;                  // so many of them
  int low = INT_MAX, high = 0;  // what any row sees
  int begin[kTileRows];         // row r sees positions [begin, end)
  int end[kTileRows];
  int64_t token[kTileRows];   // of row r in q and out
  int64_t column[kTileRows];  // and where its head begins there

  Tile(const AttentionArgs& args, const StepView& step, const AttentionItem& item, int kv_head)
      : args(args),
        blocks(step.groups[size_t(args.kv.group)].block_ids +
               step.groups[size_t(args.kv.group)].block_starts[item.sequence]),
        kv_head(kv_head),
        rows(item.rows),
        fork(item.fork),
        end_split(item.first_split + item.splits) {
    const int group = args.heads / args.kv.kv_heads;
    const int first = step.query_starts[item.sequence];
    const int tokens = step.query_starts[item.sequence + 1] - first;
    int token = item.first_row / group, head = item.first_row % group;
    for (int r = 0; r < rows; ++r) {
      end[r] = fork == kNoFork ? step.context_lens[item.sequence] - tokens + token + 1
                               : step.positions[first + token] + 1;
      begin[r] = first_seen(args.window, args.chunk, end[r] - 1);
      low = std::min(low, begin[r]);
      high = std::max(high, end[r]);
      this->token[r] = first + token;
      column[r] = int64_t(kv_head * group + head) * dim();
      if (++head == group) head = 0, ++token;
    }
  }

  // Rows [first, first + count) of `whole`, of one token whose path from the fork on is at `path`.
  Tile(const Tile& whole, int first, int count, const std::byte* path)
      : args(whole.args),
        blocks(whole.blocks),
        kv_head(whole.kv_head),
        rows(count),
        fork(whole.fork),
        first_path(whole.fork / kBlockSize),
        path(path),
        end_split(whole.end_split),
        low(whole.begin[first]),
        high(whole.end[first]) {
    std::copy_n(whole.begin + first, count, begin);
    std::copy_n(whole.end + first, count, end);
    std::copy_n(whole.token + first, count, token);
    std::copy_n(whole.column + first, count, column);
  }

  int dim() const { return args.kv.head_dim; }
  int out_dim() const { return args.kv.out_dim(); }
  int head(int row) const { return int(column[row] / dim()); }
  // Where AttentionArgs::shapes_scores(), a row's scores in a split, which shape_scores() changes.
  void shape_row(int row, int split, const ScoreColumns& columns, float scale, float* scores) const {
    if (columns.empty()) return;
    const float slope = args.slopes ? args.slopes[head(row)] : 0.0f;
    const int first = split * kSplitTokens, position = end[row] - 1;
    if (args.slope_factor != 0)
      shape_scores_rounded(scores, columns, scale, args.softcap, slope, args.slope_factor, first,
                           position);
    else
      shape_scores(scores, columns, scale, args.softcap, slope, first - position);
  }
  // The tiles of a block of the sequence; values are behind keys.
  const std::byte* keys(int block) const {
    if (block < first_path) return args.kv.keys(blocks[block], kv_head);
    return path + int64_t(block - first_path) * int64_t(args.kv.head_bytes());
  }
};

template <class To, class From>
PENSTOCK_INLINE void convert(To* to, const From* from, int n) {
  if constexpr (std::is_same_v<To, From>) {
    std::copy_n(from, n, to);
  } else if constexpr (std::is_same_v<To, WideBf16>) {
    for (int i = 0; i < n; ++i) to[i].value = to_f32(from_f32<bf16>(to_f32(from[i])));
  } else {
    for (int i = 0; i < n; i += f32x16::lanes) {
      const int count = std::min(f32x16::lanes, n - i);
      f32x16::load_n(from + i, count).store_n(to + i, count);
    }
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

// q's rows, [rows][dim].
template <class T>
inline void pack_queries(const Tile& tile, T* out) {
  const Array& q = tile.args.q;
  for (int r = 0; r < tile.rows; ++r, out += tile.dim()) {
    if (q.elem == Elem::bf16)
      convert(out, q.row<const bf16>(tile.token[r]) + tile.column[r], tile.dim());
    else
      convert(out, q.row<const float>(tile.token[r]) + tile.column[r], tile.dim());
  }
}

// What is read after a split of the tile: keys and values of its next one, or of what the worker computes then.
inline void look_ahead(const Tile& tile, int split, SplitBlocks& out) {
  const bool goes_on = split + 1 < tile.end_split;
  const int first = (split + 1) * kSplitBlocks;
  const int count =
      goes_on ? (tile.high + kBlockSize - 1) / kBlockSize - first : tile.next_blocks;
  out.streams = tile.rows <= kStreamRows && count > 0;
  if (!out.streams) return;
  const size_t key_bytes = tile.args.kv.latent() ? 0 : tile.args.kv.key_tile().bytes();
  for (int b = 0; b < kSplitBlocks; ++b) {
    const int at = std::min(b, count - 1);
    out.next_keys[b] = goes_on ? tile.keys(first + at) : tile.next[at];
    out.next_values[b] = out.next_keys[b] + key_bytes;
  }
}

// The blocks of a split that any row of the tile sees, of a cache of elements T: int8_t of any codes, which get a byte
// each, and of floats of 8 bits, which become bfloat16.
template <class T>
SplitBlocks gather(const Tile& tile, int split, const Scratch& scratch) {
  const int base = split * kSplitTokens;
  const int begin = std::max(tile.low - base, 0);
  const int end = std::min(tile.high - base, kSplitTokens);
  const KvTile keys_of = tile.args.kv.key_tile(), values_of = tile.args.kv.value_tile();
  SplitBlocks out{};
  out.first = begin / kBlockSize;
  out.last = (end + kBlockSize - 1) / kBlockSize;
  look_ahead(tile, split, out);
  for (int b = out.first; b < out.last; ++b) {
    out.keys[b] = tile.keys(split * kSplitBlocks + b);
    out.values[b] = out.keys[b] + keys_of.bytes();
    if (std::is_same_v<T, int8_t> && values_of.elem != Elem::i8) {
      const size_t wide = wide_bytes(values_of);
      std::byte* const keys = scratch.codes + size_t(b) * 2 * wide;
      std::byte* const values = keys + wide;
      if (values_of.elem == Elem::i4)
        widen_values(values_of, out.values[b], values);
      else
        widen_floats(values_of, out.values[b], values);
      out.values[b] = values;
      if (keys_of.elem != Elem::i8) {
        if (keys_of.elem == Elem::i4)
          widen_keys(keys_of, out.keys[b], keys);
        else
          widen_floats(keys_of, out.keys[b], keys);
        out.keys[b] = keys;
      }
    }
  }
  return out;
}

// Has no row read values out of its sight, of a cache of floats. After the scores, in whose time the
// values have come.
template <class T>
void hide_unseen(const Tile& tile, int split, const Scratch& scratch, SplitBlocks& blocks) {
  const int base = split * kSplitTokens;
  const int begin = std::max(tile.low - base, 0);
  const int end = std::min(tile.high - base, kSplitTokens);
  for (int b = blocks.first; b < blocks.last; b = std::max(b + 1, blocks.last - 1)) {  // others are seen whole
    const int low = std::max(begin - b * kBlockSize, 0);
    const int high = std::min(end - b * kBlockSize, kBlockSize);
    if (low <= 0 && high >= kBlockSize) continue;
    std::byte* const copy = scratch.values[b == blocks.first ? 0 : 1];
    const auto* const from = reinterpret_cast<const T*>(blocks.values[b]);
    copy_visible(reinterpret_cast<T*>(copy), from, tile.dim(), low, high);
    blocks.values[b] = copy;
  }
}

// Rows of scores to rows of weights, with each row's maximum and sum. All maxima come first: the
// latency of one then does not hold up the next.
template <class T>
inline void softmax(const Tile& tile, int split, const SplitBlocks& blocks, float* scores, T* weights,
             float* out) {
  const int dim = tile.out_dim();
  const int stride = partial_stride(dim);
  const bool shaped = tile.args.shapes_scores();
  const float scale = shaped ? 1.0f : tile.args.scale;
  for (int r = 0; r < tile.rows; ++r) {
    const ScoreColumns columns(tile.begin[r], tile.end[r], split);
    if (shaped) tile.shape_row(r, split, columns, tile.args.scale, scores + r * kScoreStride);
    out[r * stride + dim] =
        columns.empty() ? kNoScore : mask_and_max(scores + r * kScoreStride, columns) * scale;
  }
  const int first = blocks.first * kBlockSize, last = blocks.last * kBlockSize;
  for (int r = 0; r < tile.rows; ++r) {
    const ScoreColumns columns(tile.begin[r], tile.end[r], split);
    T* to = weights + r * kScoreStride;
    if (columns.empty()) std::fill(to + first, to + last, T{});
    out[r * stride + dim + 1] =
        columns.empty() ? 0.0f
                        : exponentials(scores + r * kScoreStride, to, scale,
                                       out[r * stride + dim], columns, first, last);
  }
}

}  // namespace penstock
