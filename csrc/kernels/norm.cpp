#include "norm.h"

#include "../pool.h"
#include "../simd.h"
#include "row_sums.h"

namespace penstock {
namespace {

constexpr int64_t kNormRows = 4;  // to take at a time: about 1 us

// The sum of squares of a row after the addition of delta.
float add_and_square(float* residual, const float* delta, int64_t cols) {
  return sum_columns(cols, [&]<bool whole>(int64_t i, int n, f32x16 sum) {
    const f32x16 v = load_columns<whole>(residual + i, n) + load_columns<whole>(delta + i, n);
    whole ? v.store(residual + i) : v.store_n(residual + i, n);
    return fma(v, v, sum);
  });
}

template <bool weighted, class Out>
void normalize(const float* x, float scale, const float* weight, Out* out, int64_t cols) {
  const f32x16 s = f32x16::broadcast(scale);
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    const f32x16 y = f32x16::load(x + i) * s;
    (weighted ? y * f32x16::load(weight + i) : y).store(out + i);
  }
  if (i < cols) {
    const int n = int(cols - i);
    const f32x16 y = f32x16::load_n(x + i, n) * s;
    (weighted ? y * f32x16::load_n(weight + i, n) : y).store_n(out + i, n);
  }
}

template <class Out>
void normalize(const float* x, float scale, const float* weight, Out* out, int64_t cols) {
  if (weight)
    normalize<true>(x, scale, weight, out, cols);
  else
    normalize<false>(x, scale, weight, out, cols);
}

// What follows the sum of squares of a row x.
void finish_rms(const float* x, float sum, const float* weight, float eps, const Array& out,
                int64_t r) {
  const int64_t cols = out.cols;
  const float scale = 1.0f / std::sqrt(sum / float(cols) + eps);
  if (out.elem == Elem::bf16)
    normalize(x, scale, weight, out.row<bf16>(r), cols);
  else
    normalize(x, scale, weight, out.row<float>(r), cols);
}

template <class Out>
void center(const float* x, float mean, float scale, const float* weight, const float* bias,
            Out* out, int64_t cols) {
  const f32x16 m = f32x16::broadcast(mean), s = f32x16::broadcast(scale);
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int n = int(cols - i < kLanes ? cols - i : kLanes);
    f32x16 y = (f32x16::load_n(x + i, n) - m) * s;
    if (weight) y *= f32x16::load_n(weight + i, n);
    if (bias) y += f32x16::load_n(bias + i, n);
    y.store_n(out + i, n);
  }
}

void layer_norm_row(const NormArgs& args, int64_t r) {
  const int64_t cols = args.x.cols;
  const float* x = args.x.row<const float>(r);
  const float mean = sum_columns(cols, [&]<bool whole>(int64_t i, int n, f32x16 sum) {
                       return sum + load_columns<whole>(x + i, n);
                     }) /
                     float(cols);
  const f32x16 middle = f32x16::broadcast(mean);
  const float squared = sum_columns(cols, [&]<bool whole>(int64_t i, int n, f32x16 sum) {
    f32x16 v = load_columns<whole>(x + i, n) - middle;
    if (!whole) v = select_first(n, v, f32x16::zero());
    return fma(v, v, sum);
  });
  const float scale = 1.0f / std::sqrt(squared / float(cols) + args.eps);
  if (args.out.elem == Elem::bf16)
    center(x, mean, scale, args.weight, args.bias, args.out.row<bf16>(r), cols);
  else
    center(x, mean, scale, args.weight, args.bias, args.out.row<float>(r), cols);
}

template <class F>
void each_row(int64_t rows, const Worker& worker, F f) {
  Tickets::Phase phase = worker.tickets->open(worker, rows, kNormRows);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t r = some.begin; r < some.end; ++r) f(r);
}

}  // namespace

void add_norm(const AddNormArgs& args, int64_t rows, const Worker& worker) {
  const int64_t cols = args.residual.cols;
  each_row(rows, worker, [&](int64_t r) {
    float* x = args.residual.row<float>(r);
    const float sum = args.delta.data ? add_and_square(x, args.delta.row<const float>(r), cols)
                                      : sum_of_squares(x, cols);
    finish_rms(x, sum, args.weight, args.eps, args.out, r);
  });
}

void rms_norm(const NormArgs& args, int64_t rows, const Worker& worker) {
  each_row(rows, worker, [&](int64_t r) {
    const float* x = args.x.row<const float>(r);
    finish_rms(x, sum_of_squares(x, args.x.cols), args.weight, args.eps, args.out, r);
  });
}

void layer_norm(const NormArgs& args, int64_t rows, const Worker& worker) {
  each_row(rows, worker, [&](int64_t r) { layer_norm_row(args, r); });
}

}  // namespace penstock
