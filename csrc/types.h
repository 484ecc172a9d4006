// Types that every native file shares. The library is compiled once per instruction set from the
// same sources; nothing in a header may depend on which one except simd*.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

constexpr int kBlockSize = 32;  // tokens per KV block; cache/geometry.py has the reason

// Heads have at most so many components: what a thread keeps of one is on its stack, and sums of
// products of an INT8 cache fit 32 bits (attention_bytes.h).
constexpr int kMostHeadDim = 512;
// And rows of a cache of latents.
constexpr int kMostLatentDim = 2048;
// Columns of cached rows are padded to a multiple of these; cache/geometry.py has the same.
constexpr int kRowLanes = 16;
// So that positions, and those of the split of attention behind them, are 32-bit.
constexpr int kMostPositions = 1 << 30;

// Those behind i32 are of caches alone; k8v4 has keys in i8 and values in i4.
enum class Elem : uint8_t { f32, bf16, f16, i32, i8, i4, k8v4, e4m3 };

constexpr size_t elem_bytes(Elem e) {
  if (e == Elem::i4) return 1;  // a pair of codes
  return e == Elem::f32 || e == Elem::i32 ? 4 : e == Elem::i8 || e == Elem::e4m3 ? 1 : 2;
}

// Where a step's tokens lie in the cache of one group of layers.
struct KvTables {
  const int32_t* slots;
  const int32_t* block_starts;
  const int32_t* block_ids;
  int blocks;  // of block_ids
};

// Where a step's sequences keep what is not keys and values: a slot each (states.h).
struct Snapshot {
  int32_t sequence, tokens, slot;
};
struct StateTables {
  const int32_t* slots = nullptr;      // [S], each sequence its own; null where nothing is kept
  const int32_t* seen = nullptr;       // [S] tokens that are in the state; 0: it is all zeros
  const int32_t* tentative = nullptr;  // [S] last rows that are logged and not in what is stored
  std::span<const Snapshot> snapshots = {};  // ascending by sequence, then tokens
};

// One step, as borrowed arrays; interface/step.py documents each.
struct StepView {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* query_starts;
  const int32_t* context_lens;
  std::span<const KvTables> groups;  // as many as the cache has
  const int32_t* logit_rows;
  int tokens;
  int sequences;
  int logits;
  const int32_t* hidden_rows = nullptr;
  int hidden = 0;
  const int32_t* tree_parents = nullptr;  // null: no sequence branches
  const float* features = nullptr;        // [tokens, feature_cols]
  int64_t feature_cols = 0;
  StateTables states = {};

  // Rows that go on behind the last attention: first those with logits, then those without.
  int selected() const { return logits + hidden; }
};

// What a step changes in the cache before its ops run, in this order: pairs (from, to) of slots,
// each pair seeing what those before it wrote, then of block ids likewise, and of slots of states.
struct CacheEdits {
  std::span<const int32_t> slot_moves;
  std::span<const int32_t> block_copies;
  std::span<const int32_t> state_copies;

  bool empty() const {
    return slot_moves.empty() && block_copies.empty() && state_copies.empty();
  }
};

// A row-major array of activations inside the step's arena.
struct Array {
  std::byte* data;
  Elem elem;
  int64_t cols;
  int64_t stride = cols;  // elements from row to row

  template <class T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(data) + r * stride;
  }
};

// The cache of one layer: blocks of kBlockSize tokens, per KV head one key tile and one value tile.
// bf16:     keys [D/2][32][2], values [16][D][2]: both are right-hand operands of a bf16 dot
//           product (pairs innermost), so attention transposes nothing.
// i8:       keys [D/4][32][4], values [8][D][4], likewise for dots of bytes, with D rounded up to a
//           multiple of 4 (the codes that are added to keys are zeros); each tile is followed by a
//           scale per token, bf16 [32]: one cache line. Codes are of keys that are turned
//           (turn_head.h).
// i4:       as i8 of half as many components, D a multiple of 8: the byte of component d has the code
//           of d in its low half and that of d + D/2 in its high half. So a byte has codes of one
//           token alone. Values are turned, too.
// k8v4:     keys as i8, values as i4.
// e4m3:     as bf16 in bytes (float8.h), each tile followed by scales as in i8.
// f32, f16: keys [D][32], values [32][D].
// A cache of latents has no values but the first value_dim components of its keys, and its blocks
// are rows of tokens, [32][D]: one product of attention takes them as they lie, and the other as it
// would take values (attention_latent.h). D is rounded up to an even number, in i8 to a multiple of
// 4, with zeros; i8 has two rows of scales behind, of the values and of the other components.
// A cache of rows has one for each token, [rows][D] in a block: those of its last `rows` tokens, of
// the token at offset s in row s % rows. D is rounded up to whole registers.
// A block id is a page of the cache, which holds a block of tokens in every layer of one group: so
// from a layer's block to its next it is further than the layer's own bytes, or the layer has a part
// of all pages for itself (executor.h).
// One head's tile of keys, of values or of latents.
struct KvTile {
  Elem elem;
  int head_dim;
  bool latent;

  bool coded() const { return elem == Elem::i8 || elem == Elem::i4 || elem == Elem::e4m3; }
  // Elements of a token's head as they lie in a tile; of i4 bytes.
  int padded_dim() const {
    if (elem == Elem::i8) return (head_dim + 3) / 4 * 4;
    if (elem == Elem::i4) return (head_dim + 7) / 8 * 4;
    return latent ? (head_dim + 1) / 2 * 2 : head_dim;
  }
  size_t scale_bytes() const { return coded() ? size_t(latent ? 4 : 2) * kBlockSize : 0; }
  // Of the elements alone; the scales, where there are any, begin here.
  size_t element_bytes() const { return size_t(padded_dim()) * kBlockSize * elem_bytes(elem); }
  size_t bytes() const { return element_bytes() + scale_bytes(); }
  // This tile as kernels multiply it: a byte for each code, bfloat16 for each float of 8 bits.
  KvTile widened() const {
    return {elem == Elem::i4 ? Elem::i8 : elem == Elem::e4m3 ? Elem::bf16 : elem, head_dim, latent};
  }
};

struct KvLayer {
  std::byte* base;  // of block 0
  Elem elem;
  int kv_heads;
  int head_dim;
  size_t stride;  // bytes from block to block
  int group = 0;      // of StepView::groups
  int value_dim = 0;  // of a cache of latents; 0: values lie beside keys
  int rows = 0;       // of a cache of rows: so many of a block
  // Of an INT4 cache, or null: a center of each component of the keys, [kv_heads * head_dim], then
  // what keys are divided by, less their center, and queries multiplied by.
  const float* key_columns = nullptr;

  // A layer whose blocks lie one behind the other.
  static KvLayer alone(std::byte* base, Elem elem, int kv_heads, int head_dim, int value_dim = 0) {
    KvLayer layer{base, elem, kv_heads, head_dim, 0, 0, value_dim};
    layer.stride = layer.block_bytes();
    return layer;
  }

  bool latent() const { return value_dim > 0; }
  // Components of what attention makes of values.
  int out_dim() const { return latent() ? value_dim : head_dim; }
  // Of keys, or of latents.
  KvTile key_tile() const {
    return {elem == Elem::k8v4 ? Elem::i8 : elem, head_dim, latent()};
  }
  KvTile value_tile() const {
    return {elem == Elem::k8v4 ? Elem::i4 : elem, head_dim, latent()};
  }
  // Whether keys, and values, are turned before they are rounded (turn_head.h).
  bool turns_keys() const {
    return !latent() && (elem == Elem::i8 || elem == Elem::k8v4 || elem == Elem::i4);
  }
  bool turns_values() const { return !latent() && (elem == Elem::k8v4 || elem == Elem::i4); }
  const float* key_centers(int head) const { return key_columns + int64_t(head) * head_dim; }
  const float* key_factors(int head) const { return key_centers(kv_heads + head); }
  // A head's block: keys and values, or latents.
  size_t head_bytes() const {
    return key_tile().bytes() + (latent() ? 0 : value_tile().bytes());
  }
  size_t block_bytes() const {
    if (rows) return size_t(rows) * size_t(row_columns()) * elem_bytes(elem);
    return head_bytes() * kv_heads;
  }
  // Of a cache of rows: elements from row to row.
  int row_columns() const { return (head_dim + kRowLanes - 1) / kRowLanes * kRowLanes; }
  std::byte* keys(int64_t block, int head) const {
    return base + size_t(block) * stride + head_bytes() * head;
  }
  std::byte* values(int64_t block, int head) const { return keys(block, head) + key_tile().bytes(); }
};

// What a kernel knows of the thread it runs on. Every kernel is called once by each of `count`
// threads and takes its own share; the executor puts a barrier after it. How work is shared may
// depend on `count`; the order of arithmetic within a row may not.
class Barrier;
class Tickets;
struct Worker {
  int id;
  int count;
  std::byte* scratch;  // private, 64-byte aligned
  size_t scratch_bytes;
  Barrier* barrier;  // for kernels of several phases: wait(*this)
  Tickets* tickets;  // for shares that even themselves out: open(*this, ...)
};

}  // namespace penstock
