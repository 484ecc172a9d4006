// An executor's ops of mixtures of experts.
#include <algorithm>

#include "executor.h"
#include "refuse.h"

namespace penstock {

void Executor::append_route(BufferId logits, BufferId ids, BufferId shares, bool over_all,
                            bool normalize) {
  const Array& scores = typed(logits, {Elem::f32}, "scores of experts");
  const Array& chosen = typed(ids, {Elem::i32}, "ids of experts");
  const Array& share = typed(shares, {Elem::f32}, "shares of experts");
  const RowKind rows = bound(logits).rows;
  if (rows.times != 1 || bound(ids).rows != rows || bound(shares).rows != rows ||
      chosen.cols != share.cols || chosen.cols > scores.cols || scores.cols > INT32_MAX)
    refuse("ids and shares of experts are as many, of equal rows, and of the experts with scores");
  require_apart(logits, ids), require_apart(logits, shares), require_apart(ids, shares);
  buffers_[size_t(ids)].below = scores.cols;
  ops_.push_back(RouteOp{{scores, chosen, share, over_all, normalize}, rows});
}

void Executor::append_expert_linear(MatrixId id, ConstantId bias, BufferId x, BufferId ids,
                                    BufferId out, Activation gate) {
  AnyMatrix w = matrix(id).packed;
  const int64_t experts = matrix(id).experts;
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "the input of experts");
  const Array& chosen = typed(ids, {Elem::i32}, "ids of experts");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "the output of experts");
  const RowKind tokens = bound(ids).rows;
  RowKind routed = tokens;
  if (tokens.times != 1 || chosen.cols > kMostRowsOfOne)
    refuse("a token has at most " + std::to_string(kMostRowsOfOne) + " experts");
  routed.times = int(chosen.cols);
  const RowKind from = bound(x).rows;
  if (bound(out).rows != routed || (from != tokens && from != routed))
    refuse("experts have a row of output, and one or all of input, for each that a token has");
  if (bound(ids).below < 1 || bound(ids).below > experts)
    refuse("ids of experts are those that were chosen before, of as many experts");
  require_apart(x, out), require_apart(ids, out);
  const ExpertsArgs args{in, from == tokens && routed.times != 1, chosen, y, experts, gate};
  std::visit(
      [&](auto& m) {
        if (in.cols != m.k || y.cols != m.n)
          refuse("input, matrices and output of experts differ in shape");
        if (m.gated != (gate != Activation::none)) refuse("a gated matrix needs an activation");
        if (most_rows(routed) > INT32_MAX ||
            expert_tasks(m.n, m.gated, experts) > Tickets::kMostTasks)
          refuse("experts have more rows or columns than threads can share");
        if (bias != kNone)
          m.bias = floats(bias, experts * (m.gated ? 2 * m.n : m.n), "the biases of experts");
        pool_.reserve_scratch(expert_scratch_bytes(m, args, most_rows(tokens)));
      },
      w);
  ops_.push_back(ExpertLinearOp{w, args, tokens});
}

void Executor::append_combine_experts(BufferId x, BufferId shares, BufferId out) {
  const Array& in = typed(x, {Elem::f32}, "rows of experts");
  const Array& share = typed(shares, {Elem::f32}, "shares of experts");
  const Array& y = typed(out, {Elem::f32}, "a sum of experts");
  const RowKind rows = bound(out).rows;
  RowKind routed = rows;
  routed.times = int(std::min<int64_t>(share.cols, kMostRowsOfOne));
  if (rows.times != 1 || bound(shares).rows != rows || bound(x).rows != routed ||
      share.cols > kMostRowsOfOne || in.cols != y.cols)
    refuse("a sum of experts has a row for each token, of one for each of its shares");
  require_apart(x, out), require_apart(shares, out);
  ops_.push_back(CombineExpertsOp{{in, share, y}, rows});
}

}  // namespace penstock
