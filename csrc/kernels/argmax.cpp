#include "argmax.h"

#include <algorithm>
#include <limits>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int kLanes = f32x16::lanes;

// Of x[begin, end): the maximum first, at the speed of memory; then where it first occurs, which
// rereads from cache.
ArgmaxPartial largest(const float* x, int64_t begin, int64_t end) {
  const f32x16 lowest = f32x16::broadcast(-std::numeric_limits<float>::infinity());
  f32x16 best[2] = {lowest, lowest};
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes)
    for (int c = 0; c < 2; ++c) best[c] = max(f32x16::load(x + i + c * kLanes), best[c]);
  for (; i < end; i += kLanes) {
    const int n = int(std::min<int64_t>(kLanes, end - i));
    best[0] = max(select_first(n, f32x16::load_n(x + i, n), lowest), best[0]);
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
    for (int64_t c = 1; c < cuts; ++c)
      if (args.partials[r * cuts + c].value > best.value) best = args.partials[r * cuts + c];
    *args.out.row<int32_t>(r) = best.index;
  }
}

}  // namespace penstock
