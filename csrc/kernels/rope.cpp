#include "rope.h"

#include "../pool.h"
#include "head_rows.h"

namespace penstock {
namespace {

// f(row, head, i) changes head i of a row in place, in float32, on its way from x to out.
template <class F>
void each_head(const Array& x, const Array& out, int head_dim, int64_t rows, const Worker& worker,
               F f) {
  const int64_t heads = x.cols / head_dim;
  alignas(64) float head[kMostHeadDim];
  Tickets::Phase phase = worker.tickets->open(worker, rows * heads, kLeastHeads);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t i = some.begin; i < some.end; ++i) {
      const int64_t row = i / heads, column = i % heads * head_dim;
      std::copy_n(x.row<const float>(row) + column, head_dim, head);
      f(row, head, i % heads);
      store_head(out, row, column, head, head_dim);
    }
}

}  // namespace

void rope(const RopeArgs& args, const StepView& step, const Worker& worker) {
  each_head(args.x, args.out, args.head_dim, step.tokens, worker, [&](int64_t token, float* head,
                                                                     int64_t) {
    rotate(head, args.rotation, step.positions[token]);
  });
}

void head_norm(const HeadNormArgs& args, int64_t rows, const Worker& worker) {
  const int dim = args.head_dim;
  each_head(args.x, args.out, dim, rows, worker, [&](int64_t, float* head, int64_t index) {
    const int64_t own = args.each_head ? index * dim : 0;
    const float* weight = args.weight ? args.weight + own : nullptr;
    if (args.layer)
      layer_norm_head(head, dim, weight, args.bias ? args.bias + own : nullptr, args.eps);
    else if (weight)
      norm_head(head, dim, weight, args.eps);
    else
      norm_head(head, dim, args.eps);
  });
}

}  // namespace penstock
