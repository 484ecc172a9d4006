// An executor's ops that work on rows by themselves: norms, and what is done element by element.
#include <cmath>

#include "executor.h"
#include "refuse.h"
#include "sizes.h"

namespace penstock {

RowKind Executor::check_elements(std::initializer_list<BufferId> inputs, BufferId out) const {
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "an output of elements");
  const RowKind rows = bound(out).rows;
  if (most_rows(rows) > Tickets::kMostTasks / pieces_of_row(y.cols))
    refuse("an op of elements has more rows and columns than threads can share");
  for (const BufferId input : inputs) {
    const Array& x = typed(input, {Elem::f32}, "an input of elements");
    if (x.cols != y.cols || bound(input).rows != rows)
      refuse("inputs and output of an op of elements differ in shape");
    if (input != out) require_apart(input, out);  // in place, or elsewhere
  }
  return rows;
}

void Executor::append_add_activated(BufferId x, BufferId y, BufferId out, Activation activation) {
  AddActivatedArgs args{};
  if (x != kNone) args.x = bound(x).array;
  args.y = bound(y).array;
  args.out = bound(out).array;
  args.activation = activation;
  ops_.push_back(AddActivatedOp{
      args, x == kNone ? check_elements({y}, out) : check_elements({x, y}, out)});
}

void Executor::append_gate(BufferId gate, BufferId up, BufferId out, Gating gating) {
  const RowKind rows = check_elements({gate, up}, out);
  if (gating.is_none()) refuse("a gate needs an activation");
  ops_.push_back(
      GateOp{{bound(gate).array, bound(up).array, bound(out).array, gating}, rows});
}

void Executor::append_scale(BufferId x, BufferId out, float factor) {
  const RowKind rows = check_elements({x}, out);
  if (!std::isfinite(factor)) refuse("a factor is a finite number");
  ops_.push_back(ScaleOp{{bound(x).array, bound(out).array, factor}, rows});
}

void Executor::append_scale_by(BufferId x, BufferId out, ConstantId factor) {
  const RowKind rows = check_elements({x}, out);
  ops_.push_back(
      ScaleOp{{bound(x).array, bound(out).array, 0, floats(factor, 1, "a factor")}, rows});
}

void Executor::append_soft_cap(BufferId x, BufferId out, float cap) {
  const RowKind rows = check_elements({x}, out);
  if (!(cap > 0) || !std::isfinite(cap)) refuse("a soft cap is a positive number");
  ops_.push_back(SoftCapOp{{bound(x).array, bound(out).array, cap}, rows});
}

Turn Executor::turn_of(const TurnSpec& spec, int64_t cols) const {
  constexpr int64_t most = 1 << 12;  // of a base, whose matrix has as many squared
  if (spec.doubled < 1 || (spec.doubled & (spec.doubled - 1)) != 0 || spec.base < 1 ||
      spec.base > most || spec.doubled > cols || cols % (spec.doubled * spec.base) != 0)
    refuse("rows are turned by blocks that are no part of them");
  const float* const matrix =
      spec.base == 1 ? nullptr : floats(spec.base_matrix, spec.base * spec.base, "a base of turns");
  return {floats(spec.signs, cols, "signs of a turn"), matrix, spec.doubled, spec.base,
          1 / std::sqrt(float(spec.doubled * spec.base))};
}

void Executor::append_turn_rows(BufferId x, BufferId out, const TurnSpec& turn) {
  const Array& from = typed(x, {Elem::f32, Elem::bf16}, "what is turned");
  const Array& to = typed(out, {Elem::f32, Elem::bf16}, "turned rows");
  if (from.cols != to.cols || bound(x).rows != bound(out).rows)
    refuse("turned rows have the shape of what is turned");
  require_apart(x, out);
  ops_.push_back(TurnRowsOp{{from, to, turn_of(turn, to.cols)}, bound(out).rows});
  pool_.reserve_scratch(turn_scratch_bytes(to.cols, turn.base));
}

void Executor::append_turn_back(BufferId x, BufferId second, BufferId out, int64_t first, float by,
                                ConstantId scale, ConstantId bias, const TurnSpec& turn) {
  const Array& to = typed(out, {Elem::f32, Elem::bf16}, "rows that are turned back");
  TurnBackArgs args{{}, {}, to, first, by, floats(scale, 1, "a scale"), nullptr, {}};
  for (const BufferId each : {x, second}) {
    if (each == kNone) continue;
    const Array& from = typed(each, {Elem::f32}, "what is turned back");
    if (!lies_within(first, to.cols, from.cols) || bound(each).rows != bound(out).rows)
      refuse("what is turned back has no such columns");
    require_apart(each, out);
    (each == x ? args.x : args.second) = from;
  }
  if (!std::isfinite(by)) refuse("a factor is a finite number");
  if (bias != kNone) args.bias = floats(bias, to.cols, "a bias");
  args.turn = turn_of(turn, to.cols);
  ops_.push_back(TurnBackOp{args, bound(out).rows});
  pool_.reserve_scratch(turn_scratch_bytes(to.cols, turn.base));
}

void Executor::append_xielu(BufferId x, BufferId out, ConstantId p, ConstantId n, ConstantId beta,
                            ConstantId eps) {
  const RowKind rows = check_elements({x}, out);
  const auto number = [&](ConstantId id) { return floats(id, 1, "a number of xIELU"); };
  ops_.push_back(XieluOp{{bound(x).array, bound(out).array, number(p), number(n), number(beta),
                          number(eps)},
                         rows});
}

void Executor::append_clamp(BufferId x, BufferId out, float limit) {
  const RowKind rows = check_elements({x}, out);
  if (!(limit >= 0)) refuse("a limit of values is a number from 0 on");
  ops_.push_back(ClampOp{{bound(x).array, bound(out).array, limit}, rows});
}

void Executor::append_scale_by_position(BufferId x, BufferId out, ConstantId factors,
                                        int64_t period, int64_t offset) {
  if (check_elements({x}, out) != RowKind::tokens) refuse("positions are of token rows");
  if (period < 1 || offset < 0 || offset > kMostPositions)
    refuse("factors of positions have a period from 1 and an offset from 0 on");
  const int64_t count = (shape_.max_positions - 1 + offset) / period + 1;
  ops_.push_back(ScaleByPositionOp{{bound(x).array, bound(out).array,
                                    floats(factors, count, "factors of positions"), period,
                                    offset}});
}

void Executor::append_add_norm(BufferId residual, BufferId delta, BufferId out,
                               ConstantId weight, float eps) {
  AddNormArgs args{};
  args.residual = typed(residual, {Elem::f32}, "a residual");
  if (delta != kNone) args.delta = typed(delta, {Elem::f32}, "a delta");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "a norm's output");
  args.weight = optional_floats(weight, args.residual.cols, "a norm's weight");
  args.eps = eps;
  const RowKind rows = bound(residual).rows;
  if (args.out.cols != args.residual.cols || bound(out).rows != rows ||
      (delta != kNone && (args.delta.cols != args.residual.cols || bound(delta).rows != rows)))
    refuse("residual, delta and output of a norm differ in shape");
  require_apart(residual, out);
  if (delta != kNone) require_apart(delta, out), require_apart(delta, residual);
  ops_.push_back(AddNormOp{args, rows});
}

NormArgs Executor::norm(BufferId x, BufferId out, ConstantId weight, ConstantId bias,
                        float eps) const {
  NormArgs args{};
  args.x = typed(x, {Elem::f32}, "a norm's input");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "a norm's output");
  args.weight = optional_floats(weight, args.x.cols, "a norm's weight");
  args.bias = optional_floats(bias, args.x.cols, "a norm's bias");
  args.eps = eps;
  if (args.out.cols != args.x.cols || bound(out).rows != bound(x).rows)
    refuse("input and output of a norm differ in shape");
  if (x != out) require_apart(x, out);  // in place, or elsewhere
  return args;
}

void Executor::append_rms_norm(BufferId x, BufferId out, ConstantId weight, float eps) {
  ops_.push_back(RmsNormOp{norm(x, out, weight, kNone, eps), bound(x).rows});
}

void Executor::append_layer_norm(BufferId x, BufferId out, ConstantId weight, ConstantId bias,
                                 float eps) {
  ops_.push_back(LayerNormOp{norm(x, out, weight, bias, eps), bound(x).rows});
}

}  // namespace penstock
