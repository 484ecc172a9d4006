#include "kv_write.h"

#include "../pool.h"
#include "cache_write.h"
#include "head_rows.h"

namespace penstock {
namespace {

// Keys and values of all heads.
template <class Keys, class Values>
void write_heads(const KvWriteArgs& args, const StepView& step, Worker& worker) {
  const int dim = args.kv.head_dim, kv_heads = args.kv.kv_heads;
  const TiledHeads heads(step.tokens, 2 * kv_heads);
  const CacheWriter<Keys, Values> cache(args.kv);
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  Tickets::Phase phase = worker.tickets->open(worker, heads.size(), heads.least());
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t i = some.begin; i < some.end; ++i) {
      const auto [first, end, unit] = heads[i];
      const int head = unit % kv_heads;
      for_runs(slots, first, end, [&](const TokenRun& run) {
        const Array& from = unit < kv_heads ? args.k : args.v;
        const float* const x = from.row<const float>(run.first) + int64_t(head) * dim;
        if (unit < kv_heads)
          cache.keys(run, head, x, from.stride);
        else
          cache.values(run, head, x, from.stride);
      });
    }
}

template <class Cache>
void write_latents(const KvWriteArgs& args, const StepView& step, Worker& worker) {
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  if constexpr (!std::is_same_v<Cache, Nibbles> && !std::is_same_v<Cache, Float8>) {  // no latents
    Tickets::Phase phase = worker.tickets->open(worker, step.tokens, 1);
    for (Share some = phase.next(); !some.empty(); some = phase.next())
      for (int64_t token = some.begin; token < some.end; ++token)
        write_latent<Cache>(args.kv, args.k.row<const float>(token), slots[token] / kBlockSize,
                            slots[token] % kBlockSize);
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, const StepView& step, Worker& worker) {
  with_cache_element(args.kv.elem, [&]<class Keys, class Values>() {
    args.kv.latent() ? write_latents<Values>(args, step, worker)
                     : write_heads<Keys, Values>(args, step, worker);
  });
}

}  // namespace penstock
