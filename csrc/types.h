// Types that every native file shares. The library is compiled once per instruction set from the
// same sources; nothing in a header may depend on which one except simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

constexpr int kBlockSize = 32;  // tokens per KV block; cache/geometry.py has the reason

enum class Elem : uint8_t { f32, bf16, f16, i32 };

constexpr size_t elem_bytes(Elem e) { return e == Elem::f32 || e == Elem::i32 ? 4 : 2; }

// One step, as borrowed int32 arrays; engine/step.py documents each.
struct StepView {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* slots;
  const int32_t* query_starts;
  const int32_t* context_lens;
  const int32_t* block_starts;
  const int32_t* block_ids;
  const int32_t* logit_rows;
  int tokens;
  int sequences;
  int logits;
};

// A row-major array of activations inside the step's arena.
struct Array {
  std::byte* data;
  Elem elem;
  int64_t cols;  // the row stride too

  template <class T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(data) + r * cols;
  }
};

// The cache of one layer: blocks of kBlockSize tokens, per KV head one key tile and one value tile.
// bf16:     keys [D/2][32][2], values [16][D][2]: both are right-hand operands of a bf16 dot
//           product (pairs innermost), so attention transposes nothing.
// f32, f16: keys [D][32], values [32][D].
struct KvLayer {
  std::byte* base;
  Elem elem;
  int kv_heads;
  int head_dim;

  size_t tile_bytes() const { return size_t(head_dim) * kBlockSize * elem_bytes(elem); }
  size_t block_bytes() const { return 2 * tile_bytes() * kv_heads; }
  std::byte* keys(int64_t block, int head) const {
    return base + block * block_bytes() + 2 * tile_bytes() * head;
  }
  std::byte* values(int64_t block, int head) const { return keys(block, head) + tile_bytes(); }
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
