#include "experts.h"

#include <algorithm>
#include <limits>

#include "../pool.h"
#include "../simd.h"
#include "elementwise.h"

namespace penstock {
namespace {

constexpr int64_t kLanes = f32x16::lanes;

float rank_of(float score) {
  return score == score ? score : -std::numeric_limits<float>::infinity();
}

// ids: the `chosen` highest of `count` scores, sorted.
void choose(const float* scores, int64_t count, int64_t chosen, int32_t* ids) {
  int64_t found = 0;
  for (int64_t e = 0; e < count; ++e) {
    const float rank = rank_of(scores[e]);
    if (found == chosen && !(rank > rank_of(scores[ids[found - 1]]))) continue;
    int64_t at = found < chosen ? found++ : found - 1;
    for (; at > 0 && rank > rank_of(scores[ids[at - 1]]); --at) ids[at] = ids[at - 1];
    ids[at] = int32_t(e);
  }
}

// Calls f(first, number) for each register of `count` floats.
template <class F>
void by_lanes(int64_t count, F&& f) {
  for (int64_t i = 0; i < count; i += kLanes) f(i, int(std::min(count - i, kLanes)));
}

// The sum of e^(x - most) over x[0, count).
float exp_sum(const float* x, int64_t count, float most) {
  f32x16 sum = f32x16::zero();
  by_lanes(count, [&](int64_t i, int n) {
    const f32x16 e = exp(f32x16::load_n(x + i, n) - f32x16::broadcast(most));
    sum += select_first(n, e, f32x16::zero());
  });
  return hsum(sum);
}

void divide(float* x, int64_t count, float by) {
  by_lanes(count, [&](int64_t i, int n) {
    (f32x16::load_n(x + i, n) / f32x16::broadcast(by)).store_n(x + i, n);
  });
}

float sum_of(const float* x, int64_t count) {
  f32x16 sum = f32x16::zero();
  by_lanes(count, [&](int64_t i, int n) { sum += f32x16::load_n(x + i, n); });
  return hsum(sum);
}

}  // namespace

void route(const RouteArgs& args, int64_t tokens, const Worker& worker) {
  const int64_t experts = args.logits.cols, chosen = args.ids.cols;
  const Share mine = share(tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t) {
    const float* const scores = args.logits.row<float>(t);
    int32_t* const ids = args.ids.row<int32_t>(t);
    float* const shares = args.shares.row<float>(t);
    choose(scores, experts, chosen, ids);
    for (int64_t i = 0; i < chosen; ++i) shares[i] = scores[ids[i]];
    const float most = shares[0];
    const float sum = args.over_all ? exp_sum(scores, experts, most)
                                    : exp_sum(shares, chosen, most);
    by_lanes(chosen, [&](int64_t i, int n) {
      exp(f32x16::load_n(shares + i, n) - f32x16::broadcast(most)).store_n(shares + i, n);
    });
    divide(shares, chosen, sum);
    if (args.normalize) divide(shares, chosen, sum_of(shares, chosen));
  }
}

void combine_experts(const CombineArgs& args, int64_t tokens, const Worker& worker) {
  const int64_t cols = args.out.cols, pieces = pieces_of_row(cols), chosen = args.shares.cols;
  const Share mine = share(tokens * pieces, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task) {
    const int64_t t = task / pieces, first = task % pieces * kPieceColumns;
    const int64_t last = std::min(first + kPieceColumns, cols);
    const float* const shares = args.shares.row<float>(t);
    float* const out = args.out.row<float>(t);
    for (int64_t c = first; c < last; c += kLanes) {
      const int n = int(std::min(last - c, kLanes));
      f32x16 sum = f32x16::zero();
      for (int64_t i = 0; i < chosen; ++i)
        sum = fma(f32x16::broadcast(shares[i]),
                  f32x16::load_n(args.x.row<float>(chosen * t + i) + c, n), sum);
      sum.store_n(out + c, n);
    }
  }
}

}  // namespace penstock
