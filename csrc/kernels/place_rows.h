// Where rows of a head's tokens go in a tile of the cache.
#pragma once

#include <cstdint>
#include <cstring>

#include "../simd.h"
#include "../types.h"

namespace penstock {

// Tokens that lie side by side in a block, and within eight from a multiple of eight on: what is turned at a time.
constexpr int kRunTokens = 8;
static_assert(kBlockSize % kRunTokens == 0);

struct TokenRun {
  int64_t first;  // token of the step
  int count;      // 1..kRunTokens
  int64_t block;
  int offset;  // of the first token in the block
};

// f(run) for the tokens [first, end) of a step, in their order.
template <class F>
PENSTOCK_INLINE void for_runs(const int32_t* slots, int64_t first, int64_t end, F f) {
  while (first < end) {
    const int32_t slot = slots[first];
    const int most = int(std::min<int64_t>(end - first, kRunTokens - slot % kRunTokens));
    int count = 1;
    while (count < most && slots[first + count] == slot + count) ++count;
    f(TokenRun{first, count, slot / kBlockSize, slot % kBlockSize});
    first += count;
  }
}

using u32x8 = uint32_t __attribute__((vector_size(32)));

// Rows [8][stride] to columns: row r's number u goes to out[u * kBlockSize + r], eight numbers of each row.
PENSTOCK_INLINE void turn_eight(const uint32_t* rows, int64_t stride, uint32_t* out) {
  u32x8 a[8], b[8];
  for (int r = 0; r < 8; ++r) std::memcpy(&a[r], rows + r * stride, sizeof a[r]);
  for (int r = 0; r < 8; r += 2) {  // pairs of rows
    b[r] = __builtin_shufflevector(a[r], a[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[r + 1] = __builtin_shufflevector(a[r], a[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int r = 0; r < 8; r += 4)  // fours
    for (int i = 0; i < 2; ++i) {
      const u32x8 first = b[r + i], second = b[r + i + 2];
      a[r + 2 * i] = __builtin_shufflevector(first, second, 0, 1, 8, 9, 4, 5, 12, 13);
      a[r + 2 * i + 1] = __builtin_shufflevector(first, second, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int u = 0; u < 4; ++u) {
    b[u] = __builtin_shufflevector(a[u], a[u + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[u + 4] = __builtin_shufflevector(a[u], a[u + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int u = 0; u < 8; ++u) std::memcpy(out + u * kBlockSize, &b[u], sizeof b[u]);
}

// Both write single elements between those of other tokens, which other threads may be writing: only whole
// elements of these tokens, never a read-modify-write of a neighbour.

// Keys: rows [count][units] as columns of the tile [units][kBlockSize], from column `offset` on.
template <class Unit>
PENSTOCK_INLINE void place_columns(Unit* tile, const Unit* rows, int units, int offset, int count) {
  tile += offset;
  int u = 0;
  if constexpr (sizeof(Unit) == 4)
    if (count == kRunTokens)
      for (; u + 8 <= units; u += 8) turn_eight(rows + u, units, tile + u * kBlockSize);
  for (; u < units; ++u)
    for (int r = 0; r < count; ++r) tile[u * kBlockSize + r] = rows[r * units + u];
}

// Values: rows [count][padded] into the tile [kBlockSize / Group][padded][Group], from the row `offset` on; of each
// row the first n.
template <int Group, class T>
PENSTOCK_INLINE void place_groups(T* tile, const T* rows, int padded, int n, int offset, int count) {
  static_assert(kRunTokens % Group == 0);
  if (count == kRunTokens) {
    for (int r = 0; r < kRunTokens; r += Group) {
      T* const out = tile + int64_t(offset + r) * padded;
      const T* const in = rows + int64_t(r) * padded;
      for (int d = 0; d < n; ++d)
        for (int j = 0; j < Group; ++j) out[d * Group + j] = in[j * padded + d];
    }
    return;
  }
  for (int r = 0; r < count; ++r) {
    const int at = offset + r;
    T* const out = tile + int64_t(at / Group * Group) * padded + at % Group;
    for (int d = 0; d < n; ++d) out[d * Group] = rows[int64_t(r) * padded + d];
  }
}

}  // namespace penstock
