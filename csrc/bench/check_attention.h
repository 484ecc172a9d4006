// Attention, and the rotation and cache writes before it, against sums in double.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../kernels/attention.h"
#include "../kernels/kv_write.h"
#include "../kernels/rope.h"
#include "../kernels/rope_write.h"
#include "../memory.h"
#include "../pool.h"
#include "../simd.h"
#include "check_expect.h"

namespace penstock::check {

// The cache and the queries that rope_write() made, once more: rotated, and written, apart.
inline void check_parts(const RopeWriteArgs& whole, const StepView& step, const Memory& cache,
                 Pool& pool) {
  const int dim = whole.kv.head_dim;
  const int64_t keys = int64_t(whole.heads) * dim, width = int64_t(whole.kv.kv_heads) * dim;
  const auto columns = [&](int64_t first, int64_t count) {
    return Array{whole.qkv.data + size_t(first) * sizeof(float), Elem::f32, count, whole.qkv.cols};
  };
  std::vector<float> turned(size_t(step.tokens) * size_t(keys));
  Memory other(cache.bytes());
  KvLayer kv = whole.kv;
  kv.base = other.data();
  const RopeArgs turns{columns(0, keys),
                       {reinterpret_cast<std::byte*>(turned.data()), Elem::f32, keys},
                       dim,
                       whole.rotation};
  const KvWriteArgs writes{kv, columns(keys, width), columns(keys + width, width)};
  pool.run([&](Worker& worker) { rope(turns, step, worker); });
  pool.run([&](Worker& worker) { kv_write(writes, step, worker); });
  expect(std::memcmp(turned.data(), whole.q.data, turned.size() * sizeof(float)) == 0,
         "rotation apart is that of rope_write");
  expect(std::memcmp(other.data(), cache.data(), cache.bytes()) == 0,
         "a cache written apart is that of rope_write");
}

// A sequence of `context` tokens, the last `queries` of them in the step, through rope_write() and
// attention(), against sums in double.
inline void check_attention(Elem elem, int heads, int kv_heads, int dim, int context, Pool& pool,
                     std::mt19937& rng) {
  const int group = heads / kv_heads, blocks = (context + kBlockSize - 1) / kBlockSize;
  const int64_t width = int64_t(heads + 2 * kv_heads) * dim;
  std::normal_distribution<float> normal;
  std::vector<float> qkv(size_t(context * width)), q(size_t(context * heads * dim)), out(q.size());
  for (float& v : qkv) {
    v = normal(rng);
    if (elem == Elem::bf16) v = to_f32(to_bf16(v));
    if (elem == Elem::f16) v = to_f32(to_f16(v));
  }
  std::vector<int32_t> positions, slots, ids;
  for (int b = 0; b < blocks; ++b) ids.push_back(blocks - 1 - b);
  for (int i = 0; i < context; ++i) {
    positions.push_back(i);
    slots.push_back(ids[size_t(i / kBlockSize)] * kBlockSize + i % kBlockSize);
  }
  KvLayer kv = KvLayer::alone(nullptr, elem, kv_heads, dim);
  Memory cache(kv.block_bytes() * size_t(blocks));
  kv.base = cache.data();
  const int32_t starts[] = {0, context}, lens[] = {context}, block_starts[] = {0, blocks};
  StepView step{};
  const KvTables tables{slots.data(), block_starts, ids.data(), blocks};
  step.positions = positions.data(), step.query_starts = starts, step.context_lens = lens;
  step.groups = {&tables, 1};
  step.tokens = context, step.sequences = 1;

  const Array joined{reinterpret_cast<std::byte*>(qkv.data()), Elem::f32, width};
  const Array queries{reinterpret_cast<std::byte*>(q.data()), Elem::f32, int64_t(heads) * dim};
  const Array result{reinterpret_cast<std::byte*>(out.data()), Elem::f32, int64_t(heads) * dim};
  const RopeWriteArgs rope{kv, joined, queries, heads, {}, nullptr, nullptr, 0};
  const float scale = 1 / std::sqrt(float(dim));
  const AttentionArgs args{kv, queries, result, heads, scale, 0};
  const AttentionShape shape{heads, kv_heads, dim, 0};
  AttentionWork work(shape, {context, 1, context, pool.threads()});
  build_attention_work(step, work);
  pool.reserve_scratch(attention_scratch_bytes(shape));
  pool.run([&](Worker& worker) { rope_write(rope, step, worker); });
  check_parts(rope, step, cache, pool);
  pool.run([&](Worker& worker) { attention(args, step, work, worker); });

  const double bound = elem == Elem::bf16 ? 2e-2 : 1e-5;  // weights are rounded to bf16
  for (int t = 0; t < context; ++t)
    for (int h = 0; h < heads; ++h) {
      const auto at = [&](int token, int64_t column) {
        return double(qkv[size_t(token * width + column)]);
      };
      const int64_t key = int64_t(heads + h / group) * dim, value = key + int64_t(kv_heads) * dim;
      std::vector<double> weights(size_t(t) + 1);
      double total = 0;
      for (int s = 0; s <= t; ++s) {
        double score = 0;
        for (int d = 0; d < dim; ++d) score += at(t, int64_t(h) * dim + d) * at(s, key + d);
        total += weights[size_t(s)] = std::exp(score * scale);
      }
      for (int d = 0; d < dim; d += 7) {
        double sum = 0;
        for (int s = 0; s <= t; ++s) sum += weights[size_t(s)] / total * at(s, value + d);
        const double got = out[size_t((int64_t(t) * heads + h) * dim + d)];
        expect(std::fabs(got - sum) < bound, "attention of " + std::to_string(int(elem)) +
                                                 ", token " + std::to_string(t) + ": " +
                                                 text(got) + ", not " + text(sum));
      }
    }
}

}  // namespace penstock::check
