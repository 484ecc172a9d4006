#include "gated_norm.h"

#include <algorithm>
#include <cmath>

#include "../pool.h"
#include "../simd.h"
#include "row_sums.h"

namespace penstock {
namespace {

constexpr int64_t kGatedElements = 4096;  // for a thread to take at a time

template <class Out>
void norm_part(const GatedNormArgs& args, int64_t row, int64_t part, float* scratch) {
  const int64_t first = part * args.size;
  const float* x = args.x.row<const float>(row) + first;
  const float* const gate = args.gate.row<const float>(row) + first;
  const float* const weight = args.weight + (args.each_part ? first : 0);
  Out* const out = args.out.row<Out>(row) + first;
  const auto each = [&](auto f) {
    for (int64_t i = 0; i < args.size; i += kLanes)
      f(i, int(std::min<int64_t>(kLanes, args.size - i)));
  };
  if (args.gate_first) {
    each([&](int64_t i, int n) {
      (f32x16::load_n(x + i, n) * silu(f32x16::load_n(gate + i, n))).store_n(scratch + i, n);
    });
    x = scratch;
  }
  const float mean = sum_of_squares(x, args.size) / float(args.size);
  const f32x16 scale = f32x16::broadcast(1.0f / std::sqrt(mean + args.eps));
  each([&](int64_t i, int n) {
    f32x16 y = f32x16::load_n(x + i, n) * scale * f32x16::load_n(weight + i, n);
    if (!args.gate_first) y *= silu(f32x16::load_n(gate + i, n));
    y.store_n(out + i, n);
  });
}

}  // namespace

size_t gated_norm_scratch_bytes(const GatedNormArgs& args) {
  return args.gate_first ? size_t(args.size) * sizeof(float) : 0;
}

void gated_norm(const GatedNormArgs& args, int64_t rows, const Worker& worker) {
  const int64_t parts = args.x.cols / args.size;
  const int64_t least = std::max<int64_t>(1, kGatedElements / args.size);
  float* const scratch = reinterpret_cast<float*>(worker.scratch);
  Tickets::Phase phase = worker.tickets->open(worker, rows * parts, least);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      if (args.out.elem == Elem::bf16)
        norm_part<bf16>(args, task / parts, task % parts, scratch);
      else
        norm_part<float>(args, task / parts, task % parts, scratch);
    }
}

}  // namespace penstock
