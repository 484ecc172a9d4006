#include "turn.h"

#include <algorithm>

#include "../pool.h"
#include "hadamard.h"

namespace penstock {
namespace {

constexpr int64_t kLanes = f32x16::lanes;

// a + b and a - b in the places of a and b, `count` of each.
PENSTOCK_INLINE void sums_and_differences(float* a, float* b, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const f32x16 first = f32x16::load(a + i), second = f32x16::load(b + i);
    (first + second).store(a + i);
    (first - second).store(b + i);
  }
  if (i < count) {
    const int n = int(count - i);
    const f32x16 first = f32x16::load_n(a + i, n), second = f32x16::load_n(b + i, n);
    (first + second).store_n(a + i, n);
    (first - second).store_n(b + i, n);
  }
}

// The values of a block, in place; `few` has room for those of the base.
void turn_block(const Turn& turn, float* at, float* few) {
  const int64_t base = turn.base, block = turn.doubled * base;
  int64_t distance = base;
  if (base == 1 && block >= kLanes) {  // within registers
    for (int64_t i = 0; i < block; i += kLanes)
      butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(f32x16::load(at + i))))).store(at + i);
    distance = kLanes;
  }
  for (; distance < block; distance *= 2)
    for (int64_t first = 0; first < block; first += 2 * distance)
      sums_and_differences(at + first, at + first + distance, distance);
  if (base == 1) return;
  for (int64_t first = 0; first < block; first += base) {
    const float* const x = at + first;
    for (int64_t i = 0; i < base; i += kLanes) {
      const int n = int(std::min<int64_t>(kLanes, base - i));
      f32x16 sum = f32x16::zero();
      for (int64_t j = 0; j < base; ++j)
        sum = fma(f32x16::broadcast(x[j]), f32x16::load_n(turn.base_matrix + j * base + i, n), sum);
      sum.store_n(few + i, n);
    }
    std::copy_n(few, base, at + first);
  }
}

void turn_blocks(const Turn& turn, float* values, int64_t cols) {
  const int64_t block = turn.doubled * turn.base;
  for (int64_t first = 0; first < cols; first += block)
    turn_block(turn, values + first, values + cols);
}

template <class F>
void by_registers(int64_t cols, F f) {
  for (int64_t i = 0; i < cols; i += kLanes) f(i, int(std::min<int64_t>(kLanes, cols - i)));
}

// A row in scratch, then `f(row, values)`.
template <class F>
void each_turned_row(int64_t rows, const Worker& worker, F f) {
  Tickets::Phase phase = worker.tickets->open(worker, rows, 1);
  float* const values = reinterpret_cast<float*>(worker.scratch);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t row = some.begin; row < some.end; ++row) f(row, values);
}

template <class In, class Out>
void turn_row(const TurnRowsArgs& args, int64_t row, float* values) {
  const int64_t cols = args.x.cols;
  const In* const x = args.x.row<const In>(row);
  Out* const out = args.out.row<Out>(row);
  by_registers(cols, [&](int64_t i, int n) {
    (f32x16::load_n(x + i, n) * f32x16::load_n(args.turn.signs + i, n)).store_n(values + i, n);
  });
  turn_blocks(args.turn, values, cols);
  const f32x16 factor = f32x16::broadcast(args.turn.factor);
  by_registers(cols, [&](int64_t i, int n) {
    (f32x16::load_n(values + i, n) * factor).store_n(out + i, n);
  });
}

template <class Out>
void turn_row_back(const TurnBackArgs& args, int64_t row, float* values) {
  const int64_t cols = args.out.cols;
  const float* const x = args.x.row<const float>(row) + args.first;
  Out* const out = args.out.row<Out>(row);
  const f32x16 scale = f32x16::broadcast(*args.scale), by = f32x16::broadcast(args.by);
  if (args.second.data) {
    const float* const second = args.second.row<const float>(row) + args.first;
    by_registers(cols, [&](int64_t i, int n) {
      (fma(f32x16::load_n(second + i, n), by, f32x16::load_n(x + i, n)) * scale).store_n(values + i, n);
    });
  } else {
    by_registers(cols, [&](int64_t i, int n) {
      (f32x16::load_n(x + i, n) * scale).store_n(values + i, n);
    });
  }
  turn_blocks(args.turn, values, cols);
  const f32x16 factor = f32x16::broadcast(args.turn.factor);
  by_registers(cols, [&](int64_t i, int n) {
    f32x16 y = f32x16::load_n(values + i, n) * factor * f32x16::load_n(args.turn.signs + i, n);
    if (args.bias) y = y + f32x16::load_n(args.bias + i, n);
    y.store_n(out + i, n);
  });
}

}  // namespace

void turn_rows(const TurnRowsArgs& args, int64_t rows, const Worker& worker) {
  const bool in = args.x.elem == Elem::bf16, to = args.out.elem == Elem::bf16;
  const auto row = in ? (to ? turn_row<bf16, bf16> : turn_row<bf16, float>)
                      : (to ? turn_row<float, bf16> : turn_row<float, float>);
  each_turned_row(rows, worker, [&](int64_t r, float* values) { row(args, r, values); });
}

void turn_back(const TurnBackArgs& args, int64_t rows, const Worker& worker) {
  const auto row = args.out.elem == Elem::bf16 ? turn_row_back<bf16> : turn_row_back<float>;
  each_turned_row(rows, worker, [&](int64_t r, float* values) { row(args, r, values); });
}

}  // namespace penstock
