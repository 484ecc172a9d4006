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

void Executor::append_embed(ConstantId table, Elem elem, BufferId out, int64_t rows) {
  const Array& y = typed(out, {Elem::f32}, "an embedding's output");
  if (bound(out).rows != RowKind::tokens) refuse("an embedding's rows are tokens");
  if (elem == Elem::i32) refuse("an embedding table is of a float type");
  if (rows < shape_.vocabulary)
    refuse("an embedding table has a row for each of " + std::to_string(shape_.vocabulary) +
           " tokens, and not " + std::to_string(rows));
  const int64_t bytes =
      checked_product("an embedding table", {rows, y.cols, int64_t(elem_bytes(elem))});
  ops_.push_back(EmbedOp{{constant(table, size_t(bytes), "an embedding table"), elem, y}});
}

void Executor::append_packed_embed(MatrixId table, BufferId out) {
  const Array& y = typed(out, {Elem::f32}, "an embedding's output");
  if (bound(out).rows != RowKind::tokens) refuse("an embedding's rows are tokens");
  const auto require_fits = [&](const auto& w) {
    if (w.gated || matrix(table).experts != 1 || w.k != y.cols)
      refuse("a packed table of embeddings is one matrix with the output's columns");
    if (w.n < shape_.vocabulary)
      refuse("an embedding table has a row for each of " + std::to_string(shape_.vocabulary) +
             " tokens, and not " + std::to_string(w.n));
  };
  const AnyMatrix& packed = matrix(table).packed;
  if (const auto* const blocks = std::get_if<BlockMatrix>(&packed)) {
    require_fits(*blocks);
    ops_.push_back(BlockEmbedOp{{*blocks, y}});
  } else if (const auto* const groups = std::get_if<IntMatrix>(&packed)) {
    require_fits(*groups);
    ops_.push_back(IntEmbedOp{{*groups, y}});
  } else {
    refuse("a packed table of embeddings is in blocks or in groups");
  }
}

void Executor::append_add_positions(BufferId x, BufferId out, ConstantId table, Elem elem,
                                    int64_t rows, int64_t offset) {
  const Array& in = typed(x, {Elem::f32}, "what positions are added to");
  const Array& y = typed(out, {Elem::f32}, "a sum with positions");
  if (bound(x).rows != RowKind::tokens || bound(out).rows != RowKind::tokens || in.cols != y.cols)
    refuse("positions are added to rows of tokens, of one shape");
  if (elem == Elem::i32 || elem == Elem::i8) refuse("a table of positions is of a float type");
  if (!lies_within(offset, shape_.max_positions, rows))
    refuse("a table of " + std::to_string(rows) + " rows has not all of " +
           std::to_string(shape_.max_positions) + " positions from row " + std::to_string(offset));
  if (x != out) require_apart(x, out);  // in place, or elsewhere
  const int64_t bytes =
      checked_product("a table of positions", {rows, y.cols, int64_t(elem_bytes(elem))});
  ops_.push_back(AddPositionsOp{
      {constant(table, size_t(bytes), "a table of positions"), elem, offset, in, y}});
}

RowKind Executor::check_product(int64_t n, int64_t k, bool gated, BufferId x, BufferId out,
                                Gating gate) const {
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "a matrix product's input");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "a matrix product's output");
  const RowKind from = bound(x).rows, to = bound(out).rows;
  const bool narrows = from == RowKind::selected && to == RowKind::logits;
  if (in.cols != k || y.cols != n || (from != to && !narrows))
    refuse("input, matrix and output of a product differ in shape");
  if (gated == gate.is_none()) refuse("a gated matrix needs an activation");
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
                             Gating gate) {
  if (matrix(id).experts != 1) refuse("a product has one matrix, not experts");
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

void Executor::join_ranks(int fd, const RankGroup::Place& place) {
  if (!ops_.empty()) refuse("ranks are joined before ops are appended");
  const size_t bytes = RankGroup::bytes(std::max(place.world, 1), place.slot_bytes);
  ranks_ = std::make_unique<RankGroup>(std::make_shared<SharedMapping>(fd, bytes), place);
}

void Executor::append_all_gather(BufferId x, BufferId out, std::vector<ColumnRange> ranks) {
  check_gather(x, out, ranks);
  ops_.push_back(
      AllGatherOp{{bound(x).array, bound(out).array, std::move(ranks)}, bound(x).rows});
}

void Executor::append_gather_to_first(BufferId x, BufferId out, std::vector<ColumnRange> ranks) {
  if (ranks_ && (out != kNone) != (ranks_->rank() == 0))
    refuse("of what is gathered for rank 0 that rank alone has all columns");
  check_gather(x, out, ranks);
  const Array all = out == kNone ? Array{nullptr, bound(x).array.elem, 0} : bound(out).array;
  ops_.push_back(AllGatherOp{{bound(x).array, all, std::move(ranks), true}, bound(x).rows});
}

// out may be kNone: the rank only gives what it has.
void Executor::check_gather(BufferId x, BufferId out,
                            const std::vector<ColumnRange>& ranks) const {
  const Array& own = typed(x, {Elem::f32, Elem::bf16, Elem::f16}, "what is gathered");
  const RowKind rows = bound(x).rows;
  int64_t covered = 0, widest = 0;
  for (const auto [first, end] : ranks) {
    if (first < 0 || first > covered || end <= first)
      refuse("the columns of ranks follow each other in the order of ranks");
    covered = std::max(covered, end);
    widest = std::max(widest, end - first);
  }
  if (out != kNone) {
    const Array& all = typed(out, {Elem::f32, Elem::bf16, Elem::f16}, "all columns");
    if (bound(out).rows != rows || own.elem != all.elem)
      refuse("what is gathered and all columns differ in rows or types");
    require_apart(x, out);
    if (covered != all.cols)
      refuse("the ranks have " + std::to_string(covered) + " columns for an output of " +
             std::to_string(all.cols));
  }
  if (!ranks_ && !shape_.trial)
    refuse("the plan is one rank's of several, and this executor has joined no ranks");
  if (ranks_) {
    if (ranks.size() != size_t(ranks_->world()))
      refuse("columns of " + std::to_string(ranks.size()) + " ranks for a group of " +
             std::to_string(ranks_->world()));
    const auto [first, end] = ranks[size_t(ranks_->rank())];
    if (end - first != own.cols)
      refuse("the rank has " + std::to_string(own.cols) + " columns of an output, not " +
             std::to_string(end - first));
    if (size_t(most_rows(rows)) * size_t(widest) * elem_bytes(own.elem) > ranks_->slot_bytes())
      refuse("what is gathered is larger than the ranks' slots");
  }
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

void Executor::append_head_linear(MatrixId id, int heads, BufferId x, BufferId out) {
  const auto* const floats = std::get_if<PackedMatrix>(&matrix(id).packed);
  if (!floats) refuse("matrices of heads are not quantized");
  const PackedMatrix& w = *floats;
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "the input of a product of heads");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "the output of a product of heads");
  if (heads < 1 || w.gated || y.cols % heads != 0 || in.cols != heads * w.k ||
      w.n != heads * ((y.cols / heads + kPanelColumns - 1) / kPanelColumns * kPanelColumns) ||
      bound(x).rows != bound(out).rows)
    refuse("input, matrix and output of a product of heads differ in shape");
  require_apart(x, out);
  const HeadLinearOp op{{w, in, y, heads}, bound(x).rows};
  pool_.reserve_scratch(head_linear_scratch_bytes(op.args, most_rows(op.rows)));
  ops_.push_back(op);
}

void Executor::append_join(std::span<const BufferId> xs, BufferId out, int heads) {
  JoinArgs args{{}, typed(out, {Elem::f32, Elem::bf16}, "joined columns"), heads};
  const RowKind rows = bound(out).rows;
  int64_t cols = 0;
  for (BufferId x : xs) {
    args.xs.push_back(typed(x, {Elem::f32, Elem::bf16}, "what is joined"));
    cols += args.xs.back().cols;
    if (bound(x).rows != rows) refuse("what is joined has the rows of what it becomes");
    if (heads < 1 || args.xs.back().cols % heads != 0) refuse("what is joined is not whole heads");
    require_apart(x, out);
  }
  if (xs.empty() || cols != args.out.cols)
    refuse("joined columns are " + std::to_string(cols) + " for an output of " +
           std::to_string(args.out.cols));
  ops_.push_back(JoinOp{std::move(args), rows});
}

void Executor::append_gather_columns(BufferId x, std::span<const BufferId> outs,
                                     std::span<const ConstantId> orders, BufferId ids) {
  const Array& from = typed(x, {Elem::f32, Elem::bf16}, "what columns are gathered of");
  RowKind rows = bound(x).rows;
  GatherArgs args{from, {}};
  int64_t experts = 1;
  if (ids != kNone) {
    args.ids = typed(ids, {Elem::i32}, "ids of experts");
    experts = bound(ids).below;
    if (experts < 1) refuse("ids of experts are those that were chosen before");
    const RowKind each = routed(bound(ids).rows, args.ids.cols);
    if (rows != each && rows != bound(ids).rows)
      refuse("experts have one row of input, or all, for each that a token has");
    args.shared = rows != each;
    rows = each;
  }
  if (outs.empty() || outs.size() != orders.size())
    refuse("columns are gathered into one output or more, by an order each");
  const int64_t most = std::max<int64_t>(most_rows(rows), 1);
  if (from.cols > Tickets::kMostTasks / most / int64_t(outs.size()))
    refuse("a step has more columns to gather than can be shared out");
  for (size_t i = 0; i < outs.size(); ++i) {
    const Array& to = typed(outs[i], {from.elem}, "gathered columns");
    if (to.cols != from.cols || bound(outs[i]).rows != rows)
      refuse("gathered columns are as many, and of as many rows, as those of their input");
    require_apart(x, outs[i]);
    if (ids != kNone) require_apart(ids, outs[i]);
    for (size_t j = 0; j < i; ++j) require_apart(outs[j], outs[i]);
    const std::byte* const places = constant(
        orders[i], size_t(experts * from.cols) * sizeof(int32_t), "an order of columns");
    args.into.push_back({to, reinterpret_cast<const int32_t*>(places)});
  }
  ops_.push_back(GatherColumnsOp{std::move(args), rows});
}

void Executor::append_columns(BufferId x, BufferId out, int64_t first) {
  const Array& from = typed(x, {Elem::f32}, "what columns are taken of");
  const Array& to = typed(out, {Elem::f32}, "columns");
  if (!lies_within(first, to.cols, from.cols) || bound(x).rows != bound(out).rows)
    refuse("an output of " + std::to_string(to.cols) + " columns from column " +
           std::to_string(first) + " on does not lie in the rows of its input");
  require_apart(x, out);
  Array columns = from;
  columns.data += size_t(first) * elem_bytes(columns.elem);
  columns.cols = to.cols;
  ops_.push_back(JoinOp{{{columns}, to}, bound(out).rows});
}

}  // namespace penstock
