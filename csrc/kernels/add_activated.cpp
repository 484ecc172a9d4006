#include "add_activated.h"

#include "../pool.h"
#include "../simd.h"
#include "gemm_epilogue.h"

namespace penstock {
namespace {

constexpr int kLanes = f32x16::lanes;
constexpr int64_t kLeastRows = 4;  // to take at a time

template <class Out>
void combine(const float* x, const float* y, Out* out, int64_t cols, Activation activation) {
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int n = int(cols - i < kLanes ? cols - i : kLanes);
    f32x16 sum = activate(activation, f32x16::load_n(y + i, n));
    if (x) sum = f32x16::load_n(x + i, n) + sum;
    sum.store_n(out + i, n);
  }
}

}  // namespace

void add_activated(const AddActivatedArgs& args, int64_t rows, const Worker& worker) {
  const int64_t cols = args.y.cols;
  Tickets::Phase phase = worker.tickets->open(worker, rows, kLeastRows);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t r = some.begin; r < some.end; ++r) {
      const float* x = args.x.data ? args.x.row<const float>(r) : nullptr;
      const float* y = args.y.row<const float>(r);
      if (args.out.elem == Elem::bf16)
        combine(x, y, args.out.row<bf16>(r), cols, args.activation);
      else
        combine(x, y, args.out.row<float>(r), cols, args.activation);
    }
}

}  // namespace penstock
