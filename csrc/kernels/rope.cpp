#include "rope.h"

#include "../pool.h"
#include "head_rows.h"

namespace penstock {
namespace {

// f(row, head) changes a head in place, in float32, on its way from x to out.
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
      f(row, head);
      store_head(out, row, column, head, head_dim);
    }
}

}  // namespace

void rope(const RopeArgs& args, const StepView& step, const Worker& worker) {
  each_head(args.x, args.out, args.head_dim, step.tokens, worker, [&](int64_t token, float* head) {
    rotate(head, args.rotation, step.positions[token]);
  });
}

void head_norm(const HeadNormArgs& args, int64_t rows, const Worker& worker) {
  each_head(args.x, args.out, args.head_dim, rows, worker, [&](int64_t, float* head) {
    norm_head(head, args.head_dim, args.weight, args.eps);
  });
}

}  // namespace penstock
