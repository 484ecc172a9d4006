#include "norm.h"

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int kLanes = f32x16::lanes;
constexpr int64_t kLeastRows = 4;  // to take at a time: about 1 us
constexpr int kChains = 4;  // independent sums, as many as an addition has cycles of latency

struct Square {
  float* residual;
  const float* delta;

  template <bool whole>
  PENSTOCK_INLINE f32x16 at(int64_t i, int n, f32x16 sum) const {
    f32x16 x = whole ? f32x16::load(residual + i) : f32x16::load_n(residual + i, n);
    if (delta) {
      x += whole ? f32x16::load(delta + i) : f32x16::load_n(delta + i, n);
      whole ? x.store(residual + i) : x.store_n(residual + i, n);
    }
    return fma(x, x, sum);
  }
};

// The sum of squares of a row, after the addition.
float accumulate(float* residual, const float* delta, int64_t cols) {
  const Square square{residual, delta};
  f32x16 sums[kChains] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  int64_t i = 0;
  for (; i + kChains * kLanes <= cols; i += kChains * kLanes)
    for (int c = 0; c < kChains; ++c) sums[c] = square.at<true>(i + c * kLanes, kLanes, sums[c]);
  for (; i + kLanes <= cols; i += kLanes) sums[0] = square.at<true>(i, kLanes, sums[0]);
  if (i < cols) sums[1] = square.at<false>(i, int(cols - i), sums[1]);
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class Out>
void normalize(const float* x, float scale, const float* weight, Out* out, int64_t cols) {
  const f32x16 s = f32x16::broadcast(scale);
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes)
    (f32x16::load(x + i) * s * f32x16::load(weight + i)).store(out + i);
  if (i < cols) {
    const int n = int(cols - i);
    (f32x16::load_n(x + i, n) * s * f32x16::load_n(weight + i, n)).store_n(out + i, n);
  }
}

void norm_row(const AddNormArgs& args, int64_t r) {
  const int64_t cols = args.residual.cols;
  float* residual = args.residual.row<float>(r);
  const float* delta = args.delta.data ? args.delta.row<float>(r) : nullptr;
  const float mean = accumulate(residual, delta, cols) / float(cols);
  const float scale = 1.0f / std::sqrt(mean + args.eps);
  if (args.out.elem == Elem::bf16)
    normalize(residual, scale, args.weight, args.out.row<bf16>(r), cols);
  else
    normalize(residual, scale, args.weight, args.out.row<float>(r), cols);
}

}  // namespace

void add_norm(const AddNormArgs& args, int64_t rows, const Worker& worker) {
  Tickets::Phase phase = worker.tickets->open(worker, rows, kLeastRows);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t r = some.begin; r < some.end; ++r) norm_row(args, r);
}

}  // namespace penstock
