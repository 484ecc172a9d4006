#include "argmax.h"

#include <algorithm>
#include <limits>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {


// Of x[begin, end): the maximum first, at the speed of memory; then where it first occurs, which
// rereads from cache. Zero times a NaN is a NaN, and so are all sums with it: one look at the end
// says whether there may be any (an infinity does the same).
ArgmaxPartial largest(const float* x, int64_t begin, int64_t end) {
  const f32x16 lowest = f32x16::broadcast(-std::numeric_limits<float>::infinity());
  f32x16 best[2] = {lowest, lowest}, trace[2] = {f32x16::zero(), f32x16::zero()};
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes)
    for (int c = 0; c < 2; ++c) {
      const f32x16 v = f32x16::load(x + i + c * kLanes);
      best[c] = max(v, best[c]);
      trace[c] = fma(v, f32x16::zero(), trace[c]);
    }
  for (; i < end; i += kLanes) {
    const int n = int(std::min<int64_t>(kLanes, end - i));
    const f32x16 v = f32x16::load_n(x + i, n);
    best[0] = max(select_first(n, v, lowest), best[0]);
    trace[0] = fma(v, f32x16::zero(), trace[0]);
  }
  if (!(hsum(trace[0] + trace[1]) == 0.0f)) {
    const float* nan = std::find_if(x + begin, x + end, [](float v) { return v != v; });
    if (nan != x + end) return {*nan, int32_t(nan - x)};
  }
  const float value = hmax(max(best[0], best[1]));
  if (value == -std::numeric_limits<float>::infinity()) return {value, int32_t(begin)};
  return {value, int32_t(std::find(x + begin, x + end, value) - x)};
}

}  // namespace

void argmax(const ArgmaxArgs& args, int64_t rows, const Worker& worker) {
  const int64_t cols = args.x.cols;
  const int64_t cuts = argmax_partials(1, cols);
  const Share mine = share(rows * cuts, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task) {
    const int64_t begin = task % cuts * kArgmaxColumns;
    args.partials[task] = largest(args.x.row<float>(task / cuts), begin,
                                  std::min(cols, begin + kArgmaxColumns));
  }
  worker.barrier->wait(worker);
  const Share reduced = share(rows, worker);
  for (int64_t r = reduced.begin; r < reduced.end; ++r) {
    ArgmaxPartial best = args.partials[r * cuts];
    for (int64_t c = 1; c < cuts && best.value == best.value; ++c) {
      const ArgmaxPartial& next = args.partials[r * cuts + c];
      if (!(next.value <= best.value)) best = next;
    }
    *args.out.row<int32_t>(r) = best.index;
  }
}

}  // namespace penstock
