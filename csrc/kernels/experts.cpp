#include "experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../pool.h"
#include "../simd.h"
#include "elementwise.h"
#include "gemm_cuts.h"

namespace penstock {
namespace {


// Calls f(first, number) for each register of `count` floats.
template <class F>
PENSTOCK_INLINE void by_lanes(int64_t count, F&& f) {
  for (int64_t i = 0; i < count; i += kLanes) f(i, int(std::min<int64_t>(count - i, kLanes)));
}

// to[i] = f(from[i])
template <class F>
PENSTOCK_INLINE void map(const float* from, int64_t count, float* to, F&& f) {
  by_lanes(count, [&](int64_t i, int n) { f(f32x16::load_n(from + i, n)).store_n(to + i, n); });
}

// The sum of f(x[i]).
template <class F>
PENSTOCK_INLINE float sum_of(const float* x, int64_t count, F&& f) {
  f32x16 sum = f32x16::zero();
  by_lanes(count, [&](int64_t i, int n) {
    sum += select_first(n, f(f32x16::load_n(x + i, n)), f32x16::zero());
  });
  return hsum(sum);
}
float sum_of(const float* x, int64_t count) {
  return sum_of(x, count, [](f32x16 v) { return v; });
}

bool has_nan(const float* x, int64_t count) {
  return std::any_of(x, x + count, [](float v) { return v != v; });
}

// NaN is below all numbers, and equal to itself.
bool above(float a, float b) { return a > b || (b != b && a == a); }

// Puts `candidate` where it belongs among the `found` best, sorted, of which `most` are kept.
void insert(const float* values, int32_t candidate, int64_t most, int32_t* best, int64_t& found) {
  const float value = values[candidate];
  if (found == most && !above(value, values[best[found - 1]])) return;
  int64_t at = found < most ? found++ : found - 1;
  for (; at > 0 && above(value, values[best[at - 1]]); --at) best[at] = best[at - 1];
  best[at] = candidate;
}

// What a row is worked out in.
class RouteScratch {
 public:
  static int64_t bytes(int64_t experts, int64_t groups) {
    return 2 * floats(experts) + 2 * floats(groups);
  }
  RouteScratch(std::byte* memory, int64_t experts, int64_t groups)
      : scores(reinterpret_cast<float*>(memory)),
        decides(scores + floats(experts) / 4),
        group_values(decides + floats(experts) / 4),
        best_groups(reinterpret_cast<int32_t*>(group_values + floats(groups) / 4)) {}

  float* const scores;
  float* const decides;
  float* const group_values;
  int32_t* const best_groups;

 private:
  static int64_t floats(int64_t count) { return round_up(count, kLanes) * int64_t(sizeof(float)); }
};

class Router {
 public:
  Router(const RouteArgs& args, std::byte* scratch)
      : routing_(args.routing),
        bias_(args.choice_bias),
        share_scale_(args.share_scale),
        experts_(args.logits.cols),
        chosen_(args.ids.cols),
        scratch_(scratch, args.logits.cols, args.routing.groups) {}

  void row(const float* logits, int32_t* ids, float* shares) const {
    if (routing_.scores == Scores::sparsemixer) mix_sparsely(logits, ids, shares);
    else by_scores(logits, ids, shares);
    if (routing_.normalize) {
      float total = sum_of(shares, chosen_);
      if (total < routing_.normalize_least) total = routing_.normalize_least;
      divide(shares, total + routing_.normalize_eps);
    }
    if (routing_.scale != 1) {
      const f32x16 scale = f32x16::broadcast(routing_.scale);
      map(shares, chosen_, shares, [&](f32x16 v) { return v * scale; });
    }
    if (share_scale_)
      for (int64_t i = 0; i < chosen_; ++i) shares[i] *= share_scale_[ids[i]];
    if (has_nan(logits, experts_))
      std::fill(shares, shares + chosen_, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  void by_scores(const float* logits, int32_t* ids, float* shares) const {
    const bool by_groups = routing_.groups > 1;
    const bool by_score = bias_ || (by_groups && routing_.top2);
    const float most = *std::max_element(logits, logits + experts_);
    float total = 0;
    if (routing_.scores == Scores::softmax) total = exponentials_sum(logits, experts_, most);
    const auto scored = [&](const float* from, int64_t count, float* to) {
      if (routing_.scores == Scores::softmax) {
        exponentials(from, count, most, to);
        const f32x16 by = f32x16::broadcast(total);
        map(to, count, to, [&](f32x16 v) { return v / by; });
      } else if (routing_.scores == Scores::sigmoid) {
        map(from, count, to, sigmoid);
      } else {
        std::copy(from, from + count, to);
      }
    };
    const float* decides = logits;
    if (by_score) {
      scored(logits, experts_, scratch_.decides);
      decides = scratch_.decides;
      if (bias_)
        by_lanes(experts_, [&](int64_t i, int n) {
          (f32x16::load_n(decides + i, n) + f32x16::load_n(bias_ + i, n))
              .store_n(scratch_.decides + i, n);
        });
    }
    if (by_groups) choose_from_groups(decides, ids);
    else choose(decides, ids);
    for (int64_t i = 0; i < chosen_; ++i) scratch_.scores[i] = logits[ids[i]];
    scored(scratch_.scores, chosen_, shares);
    if (routing_.scores == Scores::softmax_chosen) {
      const float highest = *std::max_element(shares, shares + chosen_);
      exponentials(shares, chosen_, highest, shares);
      divide(shares, sum_of(shares, chosen_));
    }
  }

  void mix_sparsely(const float* logits, int32_t* ids, float* shares) const {
    choose(logits, ids);
    float* const left = scratch_.scores;
    std::fill(left, left + experts_, 1.0f);
    const f32x16 near = f32x16::broadcast(2 * routing_.jitter), half = f32x16::broadcast(0.5f);
    for (int64_t rank = 0; rank < chosen_; ++rank) {
      const f32x16 most = f32x16::broadcast(logits[ids[rank]]);
      f32x16 sum = f32x16::zero();
      by_lanes(experts_, [&](int64_t i, int n) {
        const f32x16 z = f32x16::load_n(logits + i, n), nothing = f32x16::zero();
        const f32x16 below = (most - z) / max(abs(z), most);
        const f32x16 each = select_less(near, below, nothing, exp(z - most));
        const f32x16 there = select_less(f32x16::load_n(left + i, n), half, nothing, each);
        sum += select_first(n, there, nothing);
      });
      shares[rank] = 1.0f / hsum(sum);
      left[ids[rank]] = 0;
    }
  }

  void choose(const float* decides, int32_t* ids) const {
    int64_t found = 0;
    for (int64_t e = 0; e < experts_; ++e) insert(decides, int32_t(e), chosen_, ids, found);
  }

  void choose_from_groups(const float* decides, int32_t* ids) const {
    const int64_t size = experts_ / routing_.groups;
    int64_t found = 0;
    for (int g = 0; g < routing_.groups; ++g) {
      float& value = scratch_.group_values[g];
      value = group_value(decides + g * size, size);
      insert(scratch_.group_values, g, routing_.groups_chosen, scratch_.best_groups, found);
    }
    std::sort(scratch_.best_groups, scratch_.best_groups + found);  // lower ids come first
    int64_t experts = 0;
    for (int64_t i = 0; i < found; ++i)
      for (int64_t e = scratch_.best_groups[i] * size; e < (scratch_.best_groups[i] + 1) * size; ++e)
        insert(decides, int32_t(e), chosen_, ids, experts);
  }

  float group_value(const float* decides, int64_t size) const {
    float first = decides[0], second = std::numeric_limits<float>::quiet_NaN();
    for (int64_t e = 1; e < size; ++e) {
      if (above(decides[e], first)) second = first, first = decides[e];
      else if (above(decides[e], second)) second = decides[e];
    }
    return routing_.top2 ? first + second : first;
  }

  static f32x16 sigmoid(f32x16 v) {
    const f32x16 one = f32x16::broadcast(1.0f);
    return one / (one + exp(f32x16::zero() - v));
  }
  static void exponentials(const float* x, int64_t count, float most, float* to) {
    const f32x16 m = f32x16::broadcast(most);
    map(x, count, to, [&](f32x16 v) { return exp(v - m); });
  }
  static float exponentials_sum(const float* x, int64_t count, float most) {
    const f32x16 m = f32x16::broadcast(most);
    return sum_of(x, count, [&](f32x16 v) { return exp(v - m); });
  }
  void divide(float* shares, float by) const {
    const f32x16 all = f32x16::broadcast(by);
    map(shares, chosen_, shares, [&](f32x16 v) { return v / all; });
  }

  const Routing& routing_;
  const float* const bias_;
  const float* const share_scale_;
  const int64_t experts_, chosen_;
  const RouteScratch scratch_;
};

template <class X, class Out>
void scale_columns(const ScaleRowsArgs& args, int64_t tokens, const Worker& worker) {
  const int64_t cols = args.out.cols, pieces = pieces_of_row(cols), chosen = args.by.cols;
  const Share mine = share(tokens * chosen * pieces, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task) {
    const int64_t row = task / pieces, first = task % pieces * kPieceColumns;
    const int64_t last = std::min(first + kPieceColumns, cols);
    f32x16 by = f32x16::broadcast(args.by.row<float>(row / chosen)[row % chosen]);
    const f32x16 one = f32x16::broadcast(1.0f);
    if (args.sigmoid) by = one / (one + exp(f32x16::zero() - by));
    const X* const x = args.x.row<X>(args.per_token ? row / chosen : row);
    Out* const out = args.out.row<Out>(row);
    for (int64_t c = first; c < last; c += kLanes) {
      const int n = int(std::min<int64_t>(last - c, kLanes));
      (f32x16::load_n(x + c, n) * by).store_n(out + c, n);
    }
  }
}

}  // namespace

void route(const RouteArgs& args, int64_t tokens, const Worker& worker) {
  const Router router(args, worker.scratch);
  const Share mine = share(tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    router.row(args.logits.row<float>(t), args.ids.row<int32_t>(t), args.shares.row<float>(t));
}

size_t route_scratch_bytes(const RouteArgs& args) {
  return size_t(RouteScratch::bytes(args.logits.cols, args.routing.groups));
}

void scale_rows(const ScaleRowsArgs& args, int64_t tokens, const Worker& worker) {
  const bool wide = args.out.elem == Elem::f32;
  if (args.x.elem == Elem::f32)
    wide ? scale_columns<float, float>(args, tokens, worker)
         : scale_columns<float, bf16>(args, tokens, worker);
  else
    wide ? scale_columns<bf16, float>(args, tokens, worker)
         : scale_columns<bf16, bf16>(args, tokens, worker);
}

void combine_experts(const CombineArgs& args, int64_t tokens, const Worker& worker) {
  const int64_t cols = args.out.cols, pieces = pieces_of_row(cols), chosen = args.chosen;
  const Share mine = share(tokens * pieces, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task) {
    const int64_t t = task / pieces, first = task % pieces * kPieceColumns;
    const int64_t last = std::min(first + kPieceColumns, cols);
    const float* const shares = args.shares.data ? args.shares.row<float>(t) : nullptr;
    float* const out = args.out.row<float>(t);
    for (int64_t c = first; c < last; c += kLanes) {
      const int n = int(std::min<int64_t>(last - c, kLanes));
      f32x16 sum = f32x16::zero();
      for (int64_t i = 0; i < chosen; ++i) {
        const f32x16 x = f32x16::load_n(args.x.row<float>(chosen * t + i) + c, n);
        sum = shares ? fma(f32x16::broadcast(shares[i]), x, sum) : sum + x;
      }
      sum.store_n(out + c, n);
    }
  }
}

}  // namespace penstock
