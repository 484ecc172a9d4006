#include "rope_write.h"

#include <algorithm>
#include <limits>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

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
  bf16 row[kMostHeadDim];
  store_row(row, x, n);
  for (int d = 0; d < n; d += 2)
    std::memcpy(tile + d * kBlockSize + offset * 2, row + d, 2 * sizeof(bf16));
}

template <class T>
void store_value(T* tile, const float* x, int n, int offset) {
  store_row(tile + offset * n, x, n);
}

void store_value(bf16* tile, const float* x, int n, int offset) {
  bf16 row[kMostHeadDim];
  store_row(row, x, n);
  bf16* out = tile + (offset / 2) * 2 * n + offset % 2;
  for (int d = 0; d < n; ++d) out[2 * d] = row[d];
}

// Symmetric codes of x and their scale, max|x| / 127 in bf16: codes are of the scale as it is kept,
// so rounding it costs half a percent of a step and no code leaves [-127, 127]. A row of zeros has
// scale 0; one with a value that is not finite has scale NaN; either has codes 0.
bf16 quantize(const float* x, int n, int8_t* codes) {
  const f32x16 zero = f32x16::zero();
  f32x16 most = zero, bad = zero;
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count);
    most = max(abs(v), most);
    bad = fma(v, zero, bad);
  });
  if (!(hsum(bad) == 0.0f)) {
    std::fill_n(codes, n, int8_t(0));
    return to_bf16(std::numeric_limits<float>::quiet_NaN());
  }
  const bf16 kept = to_bf16(hmax(most) / 127.0f);
  const float scale = to_f32(kept);
  if (scale == 0.0f) {
    std::fill_n(codes, n, int8_t(0));
    return kept;
  }
  alignas(64) float rounded[kMostHeadDim];
  const f32x16 divisor = f32x16::broadcast(scale);
  const f32x16 low = f32x16::broadcast(-127.0f), high = f32x16::broadcast(127.0f);
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count) / divisor;
    round_even(max(min(v, high), low)).store(rounded + i);
  });
  for (int i = 0; i < n; ++i) codes[i] = int8_t(rounded[i]);
  return kept;
}

// How a token's row of a head goes into the cache, by the cache's element.
template <class T>
struct Writer {
  const KvLayer& kv;

  void key(int64_t block, int head, const float* x, int offset) const {
    store_key(reinterpret_cast<T*>(kv.keys(block, head)), x, kv.head_dim, offset);
  }
  void value(int64_t block, int head, const float* x, int offset) const {
    store_value(reinterpret_cast<T*>(kv.values(block, head)), x, kv.head_dim, offset);
  }
};

template <>
struct Writer<int8_t> {
  const KvLayer& kv;

  void key(int64_t block, int head, const float* x, int offset) const {
    std::byte* tile = kv.keys(block, head);
    alignas(64) int8_t codes[kMostHeadDim + 4];
    store_scale(tile, quantize(x, kv.head_dim, codes), offset);
    std::fill(codes + kv.head_dim, codes + kv.padded_dim(), int8_t(0));
    for (int d = 0; d < kv.head_dim; d += 4)
      std::memcpy(tile + d * kBlockSize + offset * 4, codes + d, 4);
  }
  void value(int64_t block, int head, const float* x, int offset) const {
    std::byte* tile = kv.values(block, head);
    alignas(64) int8_t codes[kMostHeadDim];
    store_scale(tile, quantize(x, kv.head_dim, codes), offset);
    auto* out = reinterpret_cast<int8_t*>(tile) + offset / 4 * 4 * kv.padded_dim() + offset % 4;
    for (int d = 0; d < kv.head_dim; ++d) out[4 * d] = codes[d];
  }
  void store_scale(std::byte* tile, bf16 scale, int offset) const {
    reinterpret_cast<bf16*>(tile + kv.tile_bytes())[offset] = scale;
  }
};

// Heads [some.begin, some.end) of all tokens' queries, keys and values.
template <class Cache>
void rope_write_heads(const RopeWriteArgs& args, const StepView& step, Share some) {
  const int dim = args.kv.head_dim;
  const int half = args.rope_dim / 2;
  const int units = args.heads + 2 * args.kv.kv_heads;
  alignas(64) float x[kMostHeadDim];
  const Writer<Cache> cache{args.kv};
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  for (int64_t i = some.begin; i < some.end; ++i) {
    const int64_t token = i / units;
    const int unit = int(i % units);
    const float* in = args.qkv.row<const float>(token) + int64_t(unit) * dim;
    const int64_t block = slots[token] / kBlockSize;
    const int offset = slots[token] % kBlockSize;

    const int value_head = unit - args.heads - args.kv.kv_heads;
    if (value_head >= 0) {
      cache.value(block, value_head, in, offset);
      continue;
    }
    std::copy_n(in, dim, x);
    const int key_head = unit - args.heads;
    if (const float* weight = key_head >= 0 ? args.k_norm : args.q_norm)
      rms_norm(x, dim, weight, args.eps);
    const int64_t angle = int64_t(step.positions[token]) * half;
    rotate(x, args.cos + angle, args.sin + angle, half);
    if (key_head >= 0)
      cache.key(block, key_head, x, offset);
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
    case Elem::i8:
      return rope_write_typed<int8_t>(args, step, worker);
    default:
      return rope_write_typed<float>(args, step, worker);
  }
}

}  // namespace penstock
