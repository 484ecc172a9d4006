#include "rope_write.h"

#include "../pool.h"
#include "cache_write.h"
#include "head_rows.h"

namespace penstock {
namespace {

// Writes queries, keys and values of some heads.
template <class Keys, class Values>
class HeadsWriter {
 public:
  HeadsWriter(const RopeWriteArgs& args, const StepView& step)
      : args_(args),
        positions_(step.positions),
        slots_(step.groups[size_t(args.kv.group)].slots),
        cache_(args.kv) {}

  void write(const TiledHeads::Tile& tile) const {
    const int key_head = tile.head - args_.heads, value_head = key_head - args_.kv.kv_heads;
    if (value_head >= 0)
      for_runs(slots_, tile.first, tile.end, [&](const TokenRun& run) {
        cache_.values(run, value_head, row(run.first, tile.head), args_.qkv.stride);
      });
    else if (key_head >= 0)
      for_runs(slots_, tile.first, tile.end,
               [&](const TokenRun& run) { write_keys(run, key_head); });
    else
      for (int64_t token = tile.first; token < tile.end; ++token) write_query(token, tile.head);
  }

 private:
  void write_query(int64_t token, int head) const {
    alignas(64) float x[kMostHeadDim];
    turn(token, head, args_.q_norm, x);
    store_head(args_.q, token, int64_t(head) * dim(), x, dim());
  }
  void write_keys(const TokenRun& run, int head) const {
    alignas(64) float x[kRunTokens * kMostHeadDim];
    for (int r = 0; r < run.count; ++r)
      turn(run.first + r, args_.heads + head, args_.k_norm, x + r * dim());
    cache_.keys(run, head, x, dim());
  }
  // A head of a token, normalized where it has a weight, and rotated.
  void turn(int64_t token, int head, const float* norm, float* x) const {
    std::copy_n(row(token, head), dim(), x);
    if (norm) norm_head(x, dim(), norm, args_.eps);
    rotate(x, args_.rotation, positions_[token]);
  }
  const float* row(int64_t token, int head) const {
    return args_.qkv.row<const float>(token) + int64_t(head) * dim();
  }
  int dim() const { return args_.kv.head_dim; }

  const RopeWriteArgs& args_;
  const int32_t* const positions_;
  const int32_t* const slots_;
  const CacheWriter<Keys, Values> cache_;
};

}  // namespace

void rope_write(const RopeWriteArgs& args, const StepView& step, Worker& worker) {
  const TiledHeads heads(step.tokens, args.heads + 2 * args.kv.kv_heads);
  with_cache_element(args.kv.elem, [&]<class Keys, class Values>() {
    const HeadsWriter<Keys, Values> writer(args, step);
    Tickets::Phase phase = worker.tickets->open(worker, heads.size(), heads.least());
    for (Share some = phase.next(); !some.empty(); some = phase.next())
      for (int64_t i = some.begin; i < some.end; ++i) writer.write(heads[i]);
  });
}

}  // namespace penstock
