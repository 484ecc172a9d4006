#include "gemm_experts.h"

#include <algorithm>

#include "../pool.h"
#include "gemm_units.h"

namespace penstock {
namespace {

// With so many rows an expert, on average, making them ready costs little beside reading weights, and
// pieces may be small; with more they are of this many units, beside which it costs a few percent.
constexpr int64_t kFewRows = 4;
constexpr int64_t kManyRowsUnits = 16;

// The rows of a step by expert, each expert's in their order. Every thread sorts for itself, which
// takes less than waiting for one that does.
class SortedRows {
 public:
  static int64_t bytes(int64_t experts, int64_t rows) {
    return round_up((experts + std::min(experts, rows) + 2 * rows) * int64_t(sizeof(int32_t)), 64);
  }

  SortedRows(const ExpertsArgs& args, int64_t tokens, std::byte* memory)
      : ends_(reinterpret_cast<int32_t*>(memory)),
        active_(ends_ + args.experts),
        rows_(active_ + std::min(args.experts, tokens * args.ids.cols)),
        sources_(rows_ + tokens * args.ids.cols) {
    const int64_t chosen = args.ids.cols;
    std::fill(ends_, ends_ + args.experts, 0);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < chosen; ++i) ++ends_[args.ids.row<int32_t>(t)[i]];
    int32_t first = 0;
    for (int64_t e = 0; e < args.experts; ++e) {
      const int32_t count = ends_[e];
      if (count) active_[count_++] = int32_t(e);
      ends_[e] = first;
      first += count;
    }
    const bool shared = args.per_token;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < chosen; ++i) {
        const int32_t at = ends_[args.ids.row<int32_t>(t)[i]]++;
        rows_[at] = int32_t(t * chosen + i);
        sources_[at] = shared ? int32_t(t) : rows_[at];
      }
  }

  // Experts that have rows, in ascending order.
  int64_t count() const { return count_; }
  int64_t expert(int64_t i) const { return active_[i]; }
  Range rows(int64_t i) const { return {i ? ends_[active_[i - 1]] : 0, ends_[active_[i]]}; }

  // Of sorted rows: of the output, and of x.
  const int32_t* outputs() const { return rows_; }
  const int32_t* sources() const { return sources_; }

 private:
  int32_t* ends_;  // of each expert's rows
  int32_t* active_;
  int32_t* rows_;
  int32_t* sources_;
  int64_t count_ = 0;
};

}  // namespace

template <class Matrix>
void expert_linear(const Matrix& w, const ExpertsArgs& args, int64_t tokens,
                   const Worker& worker) {
  if (tokens == 0) return;
  const int64_t rows = tokens * args.ids.cols;
  const SortedRows sorted(args, tokens, worker.scratch);
  std::byte* const scratch = worker.scratch + SortedRows::bytes(args.experts, rows);

  const int64_t stride = int64_t(expert_bytes(w));
  const int64_t units = ceil_div(w.n, kPanelColumns);
  const int64_t each = w.gated ? kExpertUnits / 2 : kExpertUnits;
  const int64_t tasks = ceil_div(units, each);  // of an expert
  const bool few = rows <= kFewRows * sorted.count();
  const int64_t least =
      std::max<int64_t>(1, few ? kPieceBytes * tasks / stride : kManyRowsUnits / each);
  Tickets::Phase phase = worker.tickets->open(worker, sorted.count() * tasks, least);
  int64_t ready = -1;  // the expert whose rows scratch has
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end;) {
      const int64_t i = task / tasks, first = task % tasks;
      const int64_t last = std::min(tasks, first + some.end - task);
      task += last - first;
      Matrix own = w;
      own.panels += sorted.expert(i) * stride;
      if (own.bias) own.bias += sorted.expert(i) * (w.gated ? 2 * w.n : w.n);
      const Range all = sorted.rows(i);
      const int64_t blocks = ceil_div(all.size(), kRowBlock);
      for (int64_t b = 0; b < blocks; ++b) {
        const Range block = even_share(all.size(), b, blocks);
        const int64_t row = all.first + block.first;
        const Epilogue epilogue{own.bias, args.out, w.n, w.gated, args.gate, sorted.outputs() + row};
        linear_units(own, {args.x, sorted.sources() + row}, epilogue, block.size(),
                     {first * each, std::min(last * each, units)}, blocks == 1 && ready == i,
                     scratch);
      }
      ready = i;
    }
}

template <class Matrix>
size_t expert_scratch_bytes(const Matrix& w, const ExpertsArgs& args, int64_t tokens) {
  const int64_t rows = tokens * args.ids.cols;
  return size_t(SortedRows::bytes(args.experts, rows)) +
         linear_units_scratch_bytes(w, std::min(rows, kRowBlock));
}

#define PENSTOCK_EXPERTS_OF(Matrix)                                                           \
  template void expert_linear(const Matrix&, const ExpertsArgs&, int64_t, const Worker&);     \
  template size_t expert_scratch_bytes(const Matrix&, const ExpertsArgs&, int64_t)
PENSTOCK_EXPERTS_OF(PackedMatrix);
PENSTOCK_EXPERTS_OF(IntMatrix);
PENSTOCK_EXPERTS_OF(GridMatrix);
PENSTOCK_EXPERTS_OF(BlockMatrix);
PENSTOCK_EXPERTS_OF(CodebookMatrix);
#undef PENSTOCK_EXPERTS_OF

}  // namespace penstock
