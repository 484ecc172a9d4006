#include "state_conv.h"

#include <algorithm>

#include "../pool.h"
#include "../simd.h"
#include "taps.h"

namespace penstock {
namespace {

constexpr int64_t kColumns = 64;  // for a thread to take at a time: a few lines of each row

template <class T>
PENSTOCK_INLINE f32x16 kept(const StateConvArgs& args, const StateSpan& span, int64_t position,
                            const TapColumns& at) {
  return f32x16::load_n(args.state.ring_row<const T>(span.slot, position) + at.first, at.n);
}

// The input of a row of the step, as it is kept.
template <class T>
PENSTOCK_INLINE f32x16 input(const StateConvArgs& args, int64_t row, const TapColumns& at) {
  return as_kept<T>(f32x16::load_n(args.x.row<const float>(row) + at.first, at.n));
}

template <class T>
void snapshot(const StateConvArgs& args, const StateSpan& span, const Snapshot& one,
              const TapColumns& at) {
  for (int64_t p = std::max(0, one.tokens - args.kernel + 1); p < one.tokens; ++p) {
    const f32x16 u = p < span.start ? kept<T>(args, span, p, at)
                                    : input<T>(args, span.row + (p - span.start), at);
    u.store_n(args.state.ring_row<T>(one.slot, p) + at.first, at.n);
  }
}

template <class T, int K>
void convolve(const StateConvArgs& args, const StateSpan& span,
              std::span<const Snapshot> snapshots, const TapColumns& at) {
  // All that the ring has is read before anything is written there: a token's row takes the place of
  // an earlier one's.
  for (const Snapshot& one : snapshots) snapshot<T>(args, span, one, at);
  Taps<K> taps(args.weight, args.bias, args.kernel, args.x.cols, at);
  for (int back = 1; back < taps.count() && back <= span.start; ++back)
    taps.precede(back, kept<T>(args, span, span.start - back, at));
  for (int64_t p = span.start; p < span.end; ++p) {
    const int64_t row = span.row + (p - span.start);
    const f32x16 u = input<T>(args, row, at);
    if (span.end - p <= args.state.at.ring_rows)
      u.store_n(args.state.ring_row<T>(span.slot, p) + at.first, at.n);
    const f32x16 sum = taps.next(u);
    (args.silu ? silu(sum) : sum).store_n(args.out.row<float>(row) + at.first, at.n);
  }
}

template <class T, int K>
void walk(const StateConvArgs& args, const StepView& step, const Worker& worker) {
  const int64_t cols = args.x.cols, pieces = (cols + kColumns - 1) / kColumns;
  Tickets::Phase phase = worker.tickets->open(worker, pieces * step.sequences, 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      const int sequence = int(task / pieces);
      const StateSpan span(step, sequence);
      const auto snapshots = snapshots_of(step, sequence);
      const int64_t last = std::min(cols, (task % pieces + 1) * kColumns);
      for (int64_t i = task % pieces * kColumns; i < last; i += kLanes)
        convolve<T, K>(args, span, snapshots, {i, int(std::min<int64_t>(kLanes, last - i))});
    }
}

template <class T>
void walk(const StateConvArgs& args, const StepView& step, const Worker& worker) {
  with_taps(args.kernel, [&](auto k) { walk<T, k()>(args, step, worker); });
}

}  // namespace

void state_conv(const StateConvArgs& args, const StepView& step, const Worker& worker) {
  switch (args.state.ring_elem) {
    case Elem::bf16: return walk<bf16>(args, step, worker);
    case Elem::f16: return walk<f16>(args, step, worker);
    default: return walk<float>(args, step, worker);
  }
}

}  // namespace penstock
