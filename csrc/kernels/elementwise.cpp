#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "../pool.h"
#include "../simd.h"
#include "gemm_epilogue.h"

namespace penstock {
namespace {

constexpr int64_t kElementwiseElements = 16384;  // for a thread to take at a time

// out = f(row, first column, number of columns), a register at a time.
template <class Out, class F>
void fill(const Array& out, int64_t rows, const Worker& worker, F f) {
  const int64_t cols = out.cols, pieces = pieces_of_row(cols);
  const int64_t least = std::max<int64_t>(1, kElementwiseElements / std::min(cols, kPieceColumns));
  Tickets::Phase phase = worker.tickets->open(worker, rows * pieces, least);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      const int64_t row = task / pieces, first = task % pieces * kPieceColumns;
      const int64_t last = std::min(first + kPieceColumns, cols);
      Out* const to = out.row<Out>(row);
      for (int64_t i = first; i < last; i += f32x16::lanes) {
        const int n = int(std::min<int64_t>(f32x16::lanes, last - i));
        f(row, i, n).store_n(to + i, n);
      }
    }
}

template <class F>
void fill(const Array& out, int64_t rows, const Worker& worker, F f) {
  if (out.elem == Elem::bf16)
    fill<bf16>(out, rows, worker, f);
  else
    fill<float>(out, rows, worker, f);
}

PENSTOCK_INLINE f32x16 load(const Array& x, int64_t row, int64_t column, int n) {
  return f32x16::load_n(x.row<const float>(row) + column, n);
}

}  // namespace

void add_activated(const AddActivatedArgs& args, int64_t rows, const Worker& worker) {
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    const f32x16 y = activate(args.activation, load(args.y, row, column, n));
    return args.x.data ? load(args.x, row, column, n) + y : y;
  });
}

void gate(const GateArgs& args, int64_t rows, const Worker& worker) {
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    return gated(args.gating, load(args.gate, row, column, n), load(args.up, row, column, n));
  });
}

void scale(const ScaleArgs& args, int64_t rows, const Worker& worker) {
  const f32x16 factor = f32x16::broadcast(args.learned ? *args.learned : args.factor);
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    return load(args.x, row, column, n) * factor;
  });
}

void soft_cap(const SoftCapArgs& args, int64_t rows, const Worker& worker) {
  const f32x16 cap = f32x16::broadcast(args.cap);
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    return cap * tanh(load(args.x, row, column, n) / cap);
  });
}

void xielu(const XieluArgs& args, int64_t rows, const Worker& worker) {
  const auto softplus = [](float a) {
    return std::max(a, 0.0f) + std::log1p(std::exp(-std::abs(a)));
  };
  const f32x16 rising = f32x16::broadcast(softplus(*args.p));
  const f32x16 falling = f32x16::broadcast(*args.beta + softplus(*args.n));
  const f32x16 beta = f32x16::broadcast(*args.beta), eps = f32x16::broadcast(*args.eps);
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    const f32x16 x = load(args.x, row, column, n);
    const f32x16 low = select_less(x, eps, x, eps);
    // e^low - 1 - x, of which the part that cancels near zero is computed by itself.
    const f32x16 below = expm1_less(low) + (low - x);
    const f32x16 linear = beta * x;
    return select_less(f32x16::zero(), x, rising * x * x + linear, below * falling + linear);
  });
}

void clamp(const ClampArgs& args, int64_t rows, const Worker& worker) {
  const f32x16 high = f32x16::broadcast(args.limit), low = f32x16::broadcast(-args.limit);
  fill(args.out, rows, worker, [&](int64_t row, int64_t column, int n) {
    const f32x16 x = load(args.x, row, column, n);
    const f32x16 raised = select_less(x, low, low, x);
    return select_less(high, raised, high, raised);
  });
}

void scale_by_position(const ScaleByPositionArgs& args, const StepView& step,
                       const Worker& worker) {
  fill(args.out, step.tokens, worker, [&](int64_t row, int64_t column, int n) {
    const int64_t place = (step.positions[row] + args.offset) / args.period;
    return load(args.x, row, column, n) * f32x16::broadcast(args.factors[place]);
  });
}

}  // namespace penstock
