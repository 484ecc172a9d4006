// An executor's ops of adapters, and the rows of a step that have one.
#include <algorithm>

#include "executor.h"
#include "refuse.h"
#include "sizes.h"

namespace penstock {

namespace {

void check_rank(int64_t slots, int64_t rank, int64_t parts) {
  if (slots < 1 || rank < 1 || rank > kMostAdapterRank || parts < 1)
    refuse("adapters have slots, parts, and a rank of at most " + std::to_string(kMostAdapterRank));
}

Elem weights_elem(Elem elem) {
  if (elem != Elem::f32 && elem != Elem::bf16) refuse("adapters are float32 or bfloat16");
  return elem;
}

}  // namespace

const AdapterScale* Executor::adapter_scales(ConstantId id, int64_t slots, int64_t parts) {
  if (adapter_slots_ != 0 && adapter_slots_ != slots)
    refuse("all ops of adapters have as many slots");
  adapter_slots_ = slots;
  const int64_t bytes = checked_product("scales of adapters",
                                        {slots, parts, int64_t(sizeof(AdapterScale))});
  return reinterpret_cast<const AdapterScale*>(constant(id, size_t(bytes), "scales of adapters"));
}

void Executor::append_adapter_down(const AdapterDownSpec& spec) {
  check_rank(spec.slots, spec.rank, spec.parts);
  const Array& in = typed(spec.x, {Elem::f32, Elem::bf16}, "the input of adapters");
  const Array& low = typed(spec.low, {Elem::f32}, "what lies between the ops of adapters");
  const RowKind from = bound(spec.x).rows, to = bound(spec.low).rows;
  const bool narrows = from == RowKind::selected && to == RowKind::logits;
  if (low.cols != spec.parts * spec.rank || (from != to && !narrows) || to.times != 1)
    refuse("input and output of adapters differ in rows, or have not the rank of each part");
  require_apart(spec.x, spec.low);
  const Elem elem = weights_elem(spec.elem);
  if (elem == Elem::f32 && in.elem != Elem::f32) refuse("adapters in float32 read float32");
  const int64_t part = int64_t(adapter_down_bytes(elem, spec.rank, in.cols));
  const int64_t bytes = checked_product("adapters", {spec.slots, spec.parts, part});
  ops_.push_back(AdapterDownOp{{in, low, spec.rank, spec.parts, elem,
                                constant(spec.weights, size_t(bytes), "adapters"),
                                adapter_scales(spec.scales, spec.slots, spec.parts)},
                               to});
}

void Executor::append_adapter_up(const AdapterUpSpec& spec) {
  check_rank(spec.slots, spec.rank, spec.parts);
  const Array& low = typed(spec.low, {Elem::f32}, "what lies between the ops of adapters");
  const Array& out = typed(spec.out, {Elem::f32}, "what adapters add to");
  const Elem elem = weights_elem(spec.elem);
  int64_t columns = 0, part_bytes = 0;
  for (const int64_t n : spec.columns) {
    if (n < 1) refuse("a part of adapters has columns");
    columns += n;
    part_bytes += int64_t(adapter_up_bytes(elem, spec.rank, n));
  }
  const RowKind rows = bound(spec.out).rows;
  if (columns != out.cols || bound(spec.low).rows != rows || rows.times != 1 ||
      low.cols != spec.parts * spec.rank || spec.at < 0 ||
      spec.at + int64_t(spec.columns.size()) > spec.parts)
    refuse("what adapters add to has the columns of their parts, and as many rows as is between");
  require_apart(spec.low, spec.out);
  const int64_t bytes = checked_product("adapters", {spec.slots, part_bytes});
  ops_.push_back(AdapterUpOp{{low, out, spec.rank, spec.columns, spec.at, spec.parts, elem,
                              constant(spec.weights, size_t(bytes), "adapters"),
                              adapter_scales(spec.scales, spec.slots, spec.parts)},
                             rows});
}

// By counting: rows of one adapter ascend.
void Executor::sort_by_adapter(const StepView& step, const int32_t* adapters) {
  for (AdapterRows& each : adapted_) each.rows.clear(), each.runs.clear();
  if (!adapters) return;
  token_adapters_.resize(size_t(step.tokens));
  for (int s = 0; s < step.sequences; ++s)
    std::fill(token_adapters_.begin() + step.query_starts[s],
              token_adapters_.begin() + step.query_starts[s + 1], adapters[s]);
  const auto token = [&](RowBase base, int row) {
    if (base == RowBase::tokens) return row;
    return row < step.logits ? step.logit_rows[row] : step.hidden_rows[row - step.logits];
  };
  const int counts[] = {step.tokens, step.selected(), step.logits};
  for (const RowBase base : {RowBase::tokens, RowBase::selected, RowBase::logits}) {
    AdapterRows& sorted = adapted_[size_t(base)];
    std::vector<int32_t>& ends = adapter_ends_;
    ends.assign(size_t(adapter_slots_) + 1, 0);
    for (int r = 0; r < counts[int(base)]; ++r) {
      const int32_t slot = token_adapters_[size_t(token(base, r))];
      if (slot >= 0) ++ends[size_t(slot) + 1];
    }
    for (size_t slot = 0; slot < size_t(adapter_slots_); ++slot) {
      const int32_t first = ends[slot], end = first + ends[slot + 1];
      if (end > first) sorted.runs.push_back({int32_t(slot), first, end});
      ends[slot + 1] = end;
    }
    sorted.rows.resize(size_t(ends.back()));
    for (int r = 0; r < counts[int(base)]; ++r) {
      const int32_t slot = token_adapters_[size_t(token(base, r))];
      if (slot >= 0) sorted.rows[size_t(ends[size_t(slot)]++)] = r;
    }
  }
}

}  // namespace penstock
