#include "head_linear.h"

#include "gemm_kernels.h"

namespace penstock {
namespace {

// Columns [head * cols, ...) of all rows.
Array columns_of(const Array& a, int64_t head, int64_t cols) {
  Array part = a;
  part.data += size_t(head * cols) * elem_bytes(a.elem);
  part.cols = cols;
  return part;
}

PackedMatrix first_head(const HeadLinearArgs& args) {
  PackedMatrix one = args.w;
  one.n = args.out.cols / args.heads;
  return one;
}

}  // namespace

size_t head_linear_scratch_bytes(const HeadLinearArgs& args, int64_t rows) {
  const Panels p(first_head(args));
  return with_registers(args.w.elem, args.x.elem, [&](auto product) {
    return size_t(decltype(product)::type::units_scratch_bytes(p, rows));
  });
}

// Matrices of heads are small, 128 by 512 in DeepSeek's models, and so are their products: with
// AMX, too, they are taken on vector registers, which need no barrier in between.
void head_linear(const HeadLinearArgs& args, int64_t rows, const Worker& worker) {
  if (rows == 0) return;
  PackedMatrix w = first_head(args);
  Panels p(w);
  const std::byte* const first = p.data;
  const Range own = even_share(args.heads * p.units, worker.id, worker.count);
  for (int64_t unit = own.first; unit < own.last;) {
    const int64_t head = unit / p.units, from = unit % p.units;
    const Range units{from, std::min(p.units, from + own.last - unit)};
    const Array x = columns_of(args.x, head, w.k), out = columns_of(args.out, head, w.n);
    const Epilogue epilogue{nullptr, out, w.n, false, Activation::none};
    p.data = first + head * p.units * p.panel_bytes;
    with_registers(w.elem, x.elem, [&](auto product) {
      decltype(product)::type::run_units(p, x, epilogue, rows, units, false, worker.scratch);
    });
    unit += units.size();
  }
}

}  // namespace penstock
