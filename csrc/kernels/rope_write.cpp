#include "rope_write.h"

#include "../pool.h"
#include "cache_write.h"
#include "head_rows.h"

namespace penstock {
namespace {

// Heads [some.begin, some.end) of all tokens' queries, keys and values.
template <class Keys, class Values>
void rope_write_heads(const RopeWriteArgs& args, const StepView& step, const TiledHeads& heads,
                      Share some) {
  const int dim = args.kv.head_dim;
  alignas(64) float x[kMostHeadDim];
  const CacheWriter<Keys, Values> cache(args.kv);
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  for (int64_t i = some.begin; i < some.end; ++i) {
    const auto [token, unit] = heads[i];
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
      norm_head(x, dim, weight, args.eps);
    rotate(x, args.rotation, step.positions[token]);
    if (key_head >= 0)
      cache.key(block, key_head, x, offset);
    else
      store_head(args.q, token, int64_t(unit) * dim, x, dim);
  }
}

}  // namespace

void rope_write(const RopeWriteArgs& args, const StepView& step, Worker& worker) {
  const TiledHeads heads(step.tokens, args.heads + 2 * args.kv.kv_heads);
  with_cache_element(args.kv.elem, [&]<class Keys, class Values>() {
    Tickets::Phase phase = worker.tickets->open(worker, heads.size(), kLeastHeads);
    for (Share some = phase.next(); !some.empty(); some = phase.next())
      rope_write_heads<Keys, Values>(args, step, heads, some);
  });
}

}  // namespace penstock
