// An executor's ops: appended, each checked against the buffers and constants that it works on.
#include <algorithm>

#include "executor.h"
#include "refuse.h"
#include "sizes.h"

namespace penstock {
void Executor::require_apart(BufferId a, BufferId b) const {
  const auto end = [&](const Buffer& x) {
    return x.offset + size_t(most_rows(x.rows) * x.array.stride) * elem_bytes(x.array.elem);
  };
  const Buffer &x = bound(a), &y = bound(b);
  if (x.offset < end(y) && y.offset < end(x))
    refuse("what an op reads and what it writes lie in the same memory");
}

void Executor::append_embed(ConstantId table, Elem elem, BufferId out) {
  const Array& y = typed(out, {Elem::f32}, "an embedding's output");
  if (bound(out).rows != RowKind::tokens) refuse("an embedding's rows are tokens");
  if (elem == Elem::i32) refuse("an embedding table is of a float type");
  const int64_t bytes = checked_product("an embedding table",
                                        {shape_.vocabulary, y.cols, int64_t(elem_bytes(elem))});
  ops_.push_back(EmbedOp{{constant(table, size_t(bytes), "an embedding table"), elem, y}});
}

void Executor::append_add_norm(BufferId residual, BufferId delta, BufferId out,
                               ConstantId weight, float eps) {
  AddNormArgs args{};
  args.residual = typed(residual, {Elem::f32}, "a residual");
  if (delta != kNone) args.delta = typed(delta, {Elem::f32}, "a delta");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "a norm's output");
  args.weight = floats(weight, args.residual.cols, "a norm's weight");
  args.eps = eps;
  const RowKind rows = bound(residual).rows;
  if (args.out.cols != args.residual.cols || bound(out).rows != rows ||
      (delta != kNone && (args.delta.cols != args.residual.cols || bound(delta).rows != rows)))
    refuse("residual, delta and output of a norm differ in shape");
  require_apart(residual, out);
  if (delta != kNone) require_apart(delta, out), require_apart(delta, residual);
  ops_.push_back(AddNormOp{args, rows});
}

RowKind Executor::check_product(int64_t n, int64_t k, bool gated, BufferId x, BufferId out,
                                Activation gate) const {
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "a matrix product's input");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "a matrix product's output");
  const RowKind from = bound(x).rows, to = bound(out).rows;
  const bool narrows = from == RowKind::selected && to == RowKind::logits;
  if (in.cols != k || y.cols != n || (from != to && !narrows))
    refuse("input, matrix and output of a product differ in shape");
  if (gated != (gate != Activation::none)) refuse("a gated matrix needs an activation");
  require_apart(x, out);
  return to;
}

void Executor::reserve_shared(size_t bytes) {
  if (bytes > shared_.bytes()) shared_ = Memory(bytes);
}

void Executor::reserve_for(const LinearOp& op) {
  std::visit(
      [&](const auto& w) {
        pool_.reserve_scratch(linear_scratch_bytes(w, most_rows(op.rows)));
        reserve_shared(linear_shared_bytes(w, most_rows(op.rows)));
      },
      op.w);
}

void Executor::append_linear(MatrixId id, ConstantId bias, BufferId x, BufferId out,
                             Activation gate) {
  AnyMatrix w = matrix(id).packed;  // the bias is of this product, not of all with the matrix
  const RowKind rows = std::visit(
      [&](auto& m) {
        const RowKind kind = check_product(m.n, m.k, m.gated, x, out, gate);
        if (bias != kNone) m.bias = floats(bias, m.gated ? 2 * m.n : m.n, "a bias");
        return kind;
      },
      w);
  const LinearOp op{id, w, bound(x).array, bound(out).array, gate, rows};
  reserve_for(op);
  ops_.push_back(op);
}

void Executor::append_rope_write(const RopeWriteSpec& s) {
  RopeWriteArgs args{};
  args.kv = kv(s.layer);
  const int dim = args.kv.head_dim;
  args.qkv = typed(s.qkv, {Elem::f32}, "joined queries, keys and values");
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "rotated queries");
  args.heads = s.heads;
  const int64_t units = s.heads + 2 * int64_t(args.kv.kv_heads);
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * dim || args.qkv.cols != units * dim)
    refuse("queries, keys and values do not fit the layer's heads");
  if (shape_.max_tokens * units > Tickets::kMostTasks)
    refuse("a step of " + std::to_string(shape_.max_tokens) + " tokens has more than " +
           std::to_string(Tickets::kMostTasks) + " heads; lower the number of tokens");
  if (s.rope_dim < 0 || s.rope_dim > dim || s.rope_dim % 2 != 0)
    refuse("rotated components must be an even number within the head");
  if (bound(s.qkv).rows != RowKind::tokens || bound(s.q).rows != RowKind::tokens)
    refuse("rotation works on token rows");
  require_apart(s.qkv, s.q);
  const int64_t angles = int64_t(shape_.max_positions) * (s.rope_dim / 2);
  args.cos = floats(s.cos, angles, "a cosine table");
  args.sin = floats(s.sin, angles, "a sine table");
  args.rope_dim = s.rope_dim;
  args.q_norm = s.q_norm == kNone ? nullptr : floats(s.q_norm, dim, "a query norm");
  args.k_norm = s.k_norm == kNone ? nullptr : floats(s.k_norm, dim, "a key norm");
  args.eps = s.eps;
  ops_.push_back(RopeWriteOp{args});
}

void Executor::append_attention(const AttentionSpec& s) {
  AttentionArgs args{};
  args.kv = kv(s.layer);
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "queries");
  args.out = typed(s.out, {Elem::f32, Elem::bf16}, "attention's output");
  args.heads = s.heads;
  args.scale = s.scale;
  args.window = s.window;
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * args.kv.head_dim ||
      args.out.cols != args.q.cols)
    refuse("queries and output of attention do not fit the layer's heads");
  if (bound(s.q).rows != RowKind::tokens || bound(s.out).rows != RowKind::tokens)
    refuse("attention works on token rows");
  if (!(s.scale > 0)) refuse("attention: the scale must be positive");
  require_apart(s.q, s.out);
  const AttentionShape shape{s.heads, args.kv.kv_heads, args.kv.head_dim, s.window};
  AttentionWork* work = work_for(shape);
  pool_.reserve_scratch(attention_scratch_bytes(shape));
  ops_.push_back(AttentionOp{args, work});
}

void Executor::append_select_rows(BufferId x, BufferId out, int64_t first) {
  const Buffer &from = bound(x), &to = bound(out);
  if (!lies_within(first, from.array.cols, to.array.cols) || from.array.elem != to.array.elem ||
      from.rows != RowKind::tokens || to.rows != RowKind::selected)
    refuse("rows are selected from tokens into columns of rows 'S' of the same type");
  require_apart(x, out);
  Array columns = to.array;
  columns.data += size_t(first) * elem_bytes(columns.elem);
  columns.cols = from.array.cols;
  ops_.push_back(SelectRowsOp{{from.array, columns}});
}

void Executor::append_argmax(BufferId x, BufferId out) {
  const Array& in = typed(x, {Elem::f32}, "logits");
  const Array& y = typed(out, {Elem::i32}, "an argmax");
  if (y.cols != 1 || bound(x).rows != bound(out).rows) refuse("an argmax is one column");
  if (in.cols > INT32_MAX) refuse("an argmax has a 32-bit result: too many columns");
  require_apart(x, out);
  const RowKind rows = bound(x).rows;
  const int64_t most = most_rows(rows);
  partials_.emplace_back(size_t(argmax_partials(most, in.cols)));
  ops_.push_back(ArgmaxOp{{in, y, partials_.back().data()}, rows});
}

void Executor::append_features(BufferId out, int64_t first) {
  const Array& y = typed(out, {Elem::f32}, "a copy of features");
  if (bound(out).rows != RowKind::tokens) refuse("features are of tokens");
  if (!lies_within(first, y.cols, INT32_MAX))
    refuse("features have no column " + std::to_string(first));
  feature_cols_ = std::max(feature_cols_, first + y.cols);
  ops_.push_back(FeaturesOp{{y, first}});
}

void Executor::append_join(std::span<const BufferId> xs, BufferId out) {
  JoinArgs args{{}, typed(out, {Elem::f32, Elem::bf16}, "joined columns")};
  const RowKind rows = bound(out).rows;
  int64_t cols = 0;
  for (BufferId x : xs) {
    args.xs.push_back(typed(x, {Elem::f32, Elem::bf16}, "what is joined"));
    cols += args.xs.back().cols;
    if (bound(x).rows != rows) refuse("what is joined has the rows of what it becomes");
    require_apart(x, out);
  }
  if (xs.empty() || cols != args.out.cols)
    refuse("joined columns are " + std::to_string(cols) + " for an output of " +
           std::to_string(args.out.cols));
  ops_.push_back(JoinOp{std::move(args), rows});
}

void Executor::append_add_activated(BufferId x, BufferId y, BufferId out, Activation activation) {
  AddActivatedArgs args{};
  if (x != kNone) args.x = typed(x, {Elem::f32}, "a sum's first term");
  args.y = typed(y, {Elem::f32}, "what is activated or added");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "an activation or sum");
  args.activation = activation;
  const RowKind rows = bound(out).rows;
  if (args.out.cols != args.y.cols || bound(y).rows != rows ||
      (x != kNone && (args.x.cols != args.y.cols || bound(x).rows != rows)))
    refuse("terms and output of a sum differ in shape");
  for (const BufferId term : {x, y})  // in place, or elsewhere
    if (term != kNone && term != out) require_apart(term, out);
  ops_.push_back(AddActivatedOp{args, rows});
}

}  // namespace penstock
