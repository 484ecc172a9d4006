#include "state_conv.h"

#include <algorithm>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int kLanes = f32x16::lanes;
constexpr int64_t kColumns = 64;  // for a thread to take at a time: a few lines of each row

struct Columns {
  int64_t first;
  int n;  // at most kLanes
};

template <class T>
PENSTOCK_INLINE f32x16 kept(const StateConvArgs& args, const StateSpan& span, int64_t position,
                            const Columns& at) {
  return f32x16::load_n(args.state.ring_row<const T>(span.slot, position) + at.first, at.n);
}

// The input of a row of the step, as it is kept.
template <class T>
PENSTOCK_INLINE f32x16 rounded(const StateConvArgs& args, int64_t row, const Columns& at) {
  alignas(64) T values[kLanes];
  f32x16::load_n(args.x.row<const float>(row) + at.first, at.n).store(values);
  return f32x16::load(values);
}

template <class T>
void snapshot(const StateConvArgs& args, const StateSpan& span, const Snapshot& one,
              const Columns& at) {
  for (int64_t p = std::max(0, one.tokens - args.kernel + 1); p < one.tokens; ++p) {
    const f32x16 u = p < span.start ? kept<T>(args, span, p, at)
                                    : rounded<T>(args, span.row + (p - span.start), at);
    u.store_n(args.state.ring_row<T>(one.slot, p) + at.first, at.n);
  }
}

template <class T, int K>
void convolve(const StateConvArgs& args, const StateSpan& span,
              std::span<const Snapshot> snapshots, const Columns& at) {
  // All that the ring has is read before anything is written there: a token's row takes the place of
  // an earlier one's.
  for (const Snapshot& one : snapshots) snapshot<T>(args, span, one, at);
  f32x16 weight[K], seen[K];  // the last seen is the token's own
  for (int j = 0; j < K; ++j) {
    weight[j] = f32x16::load_n(args.weight + j * args.x.cols + at.first, at.n);
    const int64_t position = span.start - K + j;
    seen[j] = j == 0 || position < 0 ? f32x16::zero() : kept<T>(args, span, position, at);
  }
  const f32x16 bias = args.bias ? f32x16::load_n(args.bias + at.first, at.n) : f32x16::zero();
  for (int64_t p = span.start; p < span.end; ++p) {
    const int64_t row = span.row + (p - span.start);
    for (int j = 1; j < K; ++j) seen[j - 1] = seen[j];
    seen[K - 1] = rounded<T>(args, row, at);
    if (span.end - p <= args.state.at.ring_rows)
      seen[K - 1].store_n(args.state.ring_row<T>(span.slot, p) + at.first, at.n);
    f32x16 sum = bias;
    for (int j = 0; j < K; ++j) sum = fma(weight[j], seen[j], sum);
    (args.silu ? silu(sum) : sum).store_n(args.out.row<float>(row) + at.first, at.n);
  }
}

template <class T>
void convolve(const StateConvArgs& args, const StateSpan& span,
              std::span<const Snapshot> snapshots, const Columns& at) {
  switch (args.kernel) {
    case 2: return convolve<T, 2>(args, span, snapshots, at);
    case 3: return convolve<T, 3>(args, span, snapshots, at);
    case 4: return convolve<T, 4>(args, span, snapshots, at);
    case 5: return convolve<T, 5>(args, span, snapshots, at);
    case 6: return convolve<T, 6>(args, span, snapshots, at);
    case 7: return convolve<T, 7>(args, span, snapshots, at);
    default: return convolve<T, 8>(args, span, snapshots, at);
  }
}
static_assert(kMostStateTaps == 8);

template <class T>
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
        convolve<T>(args, span, snapshots, {i, int(std::min<int64_t>(kLanes, last - i))});
    }
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
