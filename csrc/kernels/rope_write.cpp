#include "rope_write.h"

#include <algorithm>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int64_t kLeastHeads = 16;  // to take at a time: about 1 us
constexpr int kLanes = f32x16::lanes;

// f(first component, number of components), for each register of n components.
template <class F>
PENSTOCK_INLINE void for_lanes(int n, F f) {
  for (int i = 0; i < n; i += kLanes) f(i, std::min(kLanes, n - i));
}

// x = x * rsqrt(mean(x^2) + eps) * weight. Lane i sums components i, i + 16, ...
void rms_norm(float* x, int n, const float* weight, float eps) {
  f32x16 squares = f32x16::zero();
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count);
    squares = fma(v, v, squares);
  });
  const f32x16 factor = rsqrt(f32x16::broadcast(hsum(squares) / float(n) + eps));
  for_lanes(n, [&](int i, int count) {
    (f32x16::load_n(x + i, count) * factor * f32x16::load_n(weight + i, count))
        .store_n(x + i, count);
  });
}

void rotate(float* x, const float* cos, const float* sin, int half) {
  for_lanes(half, [&](int i, int count) {
    const f32x16 a = f32x16::load_n(x + i, count);
    const f32x16 b = f32x16::load_n(x + half + i, count);
    const f32x16 c = f32x16::load_n(cos + i, count);
    const f32x16 s = f32x16::load_n(sin + i, count);
    (a * c - b * s).store_n(x + i, count);
    (b * c + a * s).store_n(x + half + i, count);
  });
}

template <class T>
void store_row(T* out, const float* x, int n) {
  for_lanes(n, [&](int i, int count) { f32x16::load_n(x + i, count).store_n(out + i, count); });
}

// Both write single elements between those of other tokens, which other threads may be writing:
// only whole-element stores, never a read-modify-write of a neighbour.
template <class T>
void store_key(T* tile, const float* x, int n, int offset) {
  for (int d = 0; d < n; ++d) tile[d * kBlockSize + offset] = from_f32<T>(x[d]);
}

void store_key(bf16* tile, const float* x, int n, int offset) {
  bf16 row[kMaxHeadDim];
  store_row(row, x, n);
  for (int d = 0; d < n; d += 2)
    std::memcpy(tile + d * kBlockSize + offset * 2, row + d, 2 * sizeof(bf16));
}

template <class T>
void store_value(T* tile, const float* x, int n, int offset) {
  store_row(tile + offset * n, x, n);
}

void store_value(bf16* tile, const float* x, int n, int offset) {
  bf16 row[kMaxHeadDim];
  store_row(row, x, n);
  bf16* out = tile + (offset / 2) * 2 * n + offset % 2;
  for (int d = 0; d < n; ++d) out[2 * d] = row[d];
}

// Heads [some.begin, some.end) of all tokens' queries, keys and values.
template <class Cache>
void rope_write_heads(const RopeWriteArgs& args, const StepView& step, Share some) {
  const int dim = args.kv.head_dim;
  const int half = args.rope_dim / 2;
  const int units = args.heads + 2 * args.kv.kv_heads;
  alignas(64) float x[kMaxHeadDim];
  for (int64_t i = some.begin; i < some.end; ++i) {
    const int64_t token = i / units;
    const int unit = int(i % units);
    const float* in = args.qkv.row<const float>(token) + int64_t(unit) * dim;
    const int64_t block = step.slots[token] / kBlockSize;
    const int offset = step.slots[token] % kBlockSize;

    const int value_head = unit - args.heads - args.kv.kv_heads;
    if (value_head >= 0) {
      store_value(reinterpret_cast<Cache*>(args.kv.values(block, value_head)), in, dim, offset);
      continue;
    }
    std::copy_n(in, dim, x);
    const int key_head = unit - args.heads;
    if (const float* weight = key_head >= 0 ? args.k_norm : args.q_norm)
      rms_norm(x, dim, weight, args.eps);
    const int64_t angle = int64_t(step.positions[token]) * half;
    rotate(x, args.cos + angle, args.sin + angle, half);
    if (key_head >= 0)
      store_key(reinterpret_cast<Cache*>(args.kv.keys(block, key_head)), x, dim, offset);
    else if (args.q.elem == Elem::bf16)
      store_row(args.q.row<bf16>(token) + int64_t(unit) * dim, x, dim);
    else
      store_row(args.q.row<float>(token) + int64_t(unit) * dim, x, dim);
  }
}

template <class Cache>
void rope_write_typed(const RopeWriteArgs& args, const StepView& step, const Worker& worker) {
  const int64_t heads = int64_t(step.tokens) * (args.heads + 2 * args.kv.kv_heads);
  Tickets::Phase phase = worker.tickets->open(worker, heads, kLeastHeads);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    rope_write_heads<Cache>(args, step, some);
}

}  // namespace

void rope_write(const RopeWriteArgs& args, const StepView& step, Worker& worker) {
  switch (args.kv.elem) {
    case Elem::bf16:
      return rope_write_typed<bf16>(args, step, worker);
    case Elem::f16:
      return rope_write_typed<f16>(args, step, worker);
    default:
      return rope_write_typed<float>(args, step, worker);
  }
}

}  // namespace penstock
