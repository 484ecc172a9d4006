#include "kv_write.h"

#include "../pool.h"
#include "cache_write.h"
#include "head_rows.h"

namespace penstock {
namespace {

// Heads [some.begin, some.end) of all tokens' keys and values.
template <class Keys, class Values>
void kv_write_heads(const KvWriteArgs& args, const StepView& step, Share some) {
  const int dim = args.kv.head_dim, heads = args.kv.kv_heads;
  const TiledHeads places(step.tokens, 2 * heads);
  const CacheWriter<Keys, Values> cache(args.kv);
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  for (int64_t i = some.begin; i < some.end; ++i) {
    const auto [token, unit] = places[i];
    const int head = unit % heads;
    const int64_t block = slots[token] / kBlockSize;
    const int offset = slots[token] % kBlockSize;
    if (unit < heads)
      cache.key(block, head, args.k.row<const float>(token) + int64_t(head) * dim, offset);
    else
      cache.value(block, head, args.v.row<const float>(token) + int64_t(head) * dim, offset);
  }
}

// Tokens [some.begin, some.end).
template <class Cache>
void write_latents(const KvWriteArgs& args, const StepView& step, Share some) {
  const int32_t* const slots = step.groups[size_t(args.kv.group)].slots;
  if constexpr (!std::is_same_v<Cache, Nibbles> && !std::is_same_v<Cache, Float8>) {  // no latents
    for (int64_t token = some.begin; token < some.end; ++token)
      write_latent<Cache>(args.kv, args.k.row<const float>(token), slots[token] / kBlockSize,
                          slots[token] % kBlockSize);
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, const StepView& step, const Worker& worker) {
  const bool latent = args.kv.latent();
  const int64_t heads = int64_t(step.tokens) * (latent ? 1 : 2 * args.kv.kv_heads);
  with_cache_element(args.kv.elem, [&]<class Keys, class Values>() {
    Tickets::Phase phase = worker.tickets->open(worker, heads, latent ? 1 : kLeastHeads);
    for (Share some = phase.next(); !some.empty(); some = phase.next())
      latent ? write_latents<Values>(args, step, some)
             : kv_write_heads<Keys, Values>(args, step, some);
  });
}

}  // namespace penstock
