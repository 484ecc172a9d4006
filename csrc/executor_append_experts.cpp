// An executor's ops of mixtures of experts.
#include <algorithm>

#include "executor.h"
#include "refuse.h"

namespace penstock {

RowKind routed(RowKind rows, int64_t chosen) {
  if (rows.times != 1 || chosen > kMostRowsOfOne)
    refuse("a token has at most " + std::to_string(kMostRowsOfOne) + " experts");
  rows.times = int(chosen);
  return rows;
}

void Executor::append_route(BufferId logits, BufferId ids, BufferId shares, ConstantId choice_bias,
                            ConstantId share_scale, const Routing& routing) {
  RouteArgs args{typed(logits, {Elem::f32}, "scores of experts"),
                 typed(ids, {Elem::i32}, "ids of experts"),
                 typed(shares, {Elem::f32}, "shares of experts"), nullptr, nullptr, routing};
  const RowKind rows = bound(logits).rows;
  const int64_t experts = args.logits.cols, chosen = args.ids.cols;
  if (rows.times != 1 || bound(ids).rows != rows || bound(shares).rows != rows ||
      chosen != args.shares.cols || chosen > experts || experts > INT32_MAX)
    refuse("ids and shares of experts are as many, of equal rows, and of the experts with scores");
  const Routing& r = routing;
  const int64_t size = r.groups < 1 ? 0 : experts / r.groups;
  if (r.groups < 1 || size * r.groups != experts || r.groups_chosen < 1 ||
      r.groups_chosen > r.groups || chosen > r.groups_chosen * size ||
      (r.groups > 1 && r.top2 && size < 2))
    refuse("groups of experts are equally large, and those that are chosen have experts enough");
  if (r.scores == Scores::sparsemixer && (r.groups > 1 || choice_bias != kNone))
    refuse("sparsemixer chooses among all experts, by their logits alone");
  require_apart(logits, ids), require_apart(logits, shares), require_apart(ids, shares);
  if (choice_bias != kNone) args.choice_bias = floats(choice_bias, experts, "a choice bias");
  if (share_scale != kNone) args.share_scale = floats(share_scale, experts, "a scale of shares");
  pool_.reserve_scratch(route_scratch_bytes(args));
  buffers_[size_t(ids)].below = experts;
  ops_.push_back(RouteOp{args, rows});
}

void Executor::append_expert_linear(MatrixId id, ConstantId bias, BufferId x, BufferId ids,
                                    BufferId out, Gating gate) {
  AnyMatrix w = matrix(id).packed;
  const int64_t experts = matrix(id).experts;
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "the input of experts");
  const Array& chosen = typed(ids, {Elem::i32}, "ids of experts");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "the output of experts");
  const RowKind tokens = bound(ids).rows, all = routed(tokens, chosen.cols), from = bound(x).rows;
  if (bound(out).rows != all || (from != tokens && from != all))
    refuse("experts have a row of output, and one or all of input, for each that a token has");
  if (bound(ids).below < 1 || bound(ids).below > experts)
    refuse("ids of experts are those that were chosen before, of as many experts");
  require_apart(x, out), require_apart(ids, out);
  const ExpertsArgs args{in, from == tokens && all.times != 1, chosen, y, experts, gate};
  std::visit(
      [&](auto& m) {
        if (in.cols != m.k || y.cols != m.n)
          refuse("input, matrices and output of experts differ in shape");
        if (m.gated == gate.is_none()) refuse("a gated matrix needs an activation");
        if (most_rows(all) > INT32_MAX ||
            expert_tasks(m.n, m.gated, experts) > Tickets::kMostTasks)
          refuse("experts have more rows or columns than threads can share");
        if (bias != kNone)
          m.bias = floats(bias, experts * (m.gated ? 2 * m.n : m.n), "the biases of experts");
        pool_.reserve_scratch(expert_scratch_bytes(m, args, most_rows(tokens)));
      },
      w);
  ops_.push_back(ExpertLinearOp{w, args, tokens});
}

void Executor::append_scale_rows(BufferId x, BufferId by, BufferId out, bool sigmoid) {
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "rows that are scaled");
  const Array& factors = typed(by, {Elem::f32}, "what rows are scaled by");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "scaled rows");
  const RowKind tokens = bound(by).rows, all = routed(tokens, factors.cols), from = bound(x).rows;
  if (bound(out).rows != all || (from != all && from != tokens) || in.cols != y.cols)
    refuse("rows, what they are scaled by, and what they become differ in shape");
  if (x != out) require_apart(x, out);
  require_apart(by, out);
  ops_.push_back(ScaleRowsOp{{in, from != all, factors, y, sigmoid}, tokens});
}

void Executor::append_combine_experts(BufferId x, BufferId shares, BufferId out) {
  CombineArgs args{typed(x, {Elem::f32}, "rows of experts"), {},
                   typed(out, {Elem::f32}, "a sum of experts"), bound(x).rows.times};
  const RowKind rows = bound(out).rows;
  if (shares != kNone) args.shares = typed(shares, {Elem::f32}, "shares of experts");
  if (bound(x).rows != routed(rows, args.chosen) || args.x.cols != args.out.cols ||
      (shares != kNone && (args.shares.cols != args.chosen || bound(shares).rows != rows)))
    refuse("a sum of experts has a row for each token, of one for each of its shares");
  require_apart(x, out);
  if (shares != kNone) require_apart(shares, out);
  ops_.push_back(CombineExpertsOp{args, rows});
}

}  // namespace penstock
