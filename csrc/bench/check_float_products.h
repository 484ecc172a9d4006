// Products in floating point against the chain that gemm.h promises.
#pragma once

#include "check_products.h"

namespace penstock::check {

inline void check_float_product(PackedMatrix w, Elem elem, const RowCounts& counts, Pool& pool,
                                std::mt19937& rng) {
  const int64_t n = w.n, k = w.k;
  std::normal_distribution<float> normal;
  std::vector<float> weights(size_t((w.gated ? 2 * n : n) * k));
  std::vector<bf16> narrow(weights.size());
  std::vector<f16> half(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = normal(rng);
    narrow[i] = to_bf16(weights[i]);
    half[i] = to_f16(weights[i]);
    if (w.elem == Elem::bf16) weights[i] = to_f32(narrow[i]);
    if (w.elem == Elem::f16) weights[i] = to_f32(half[i]);
  }
  Inputs x(std::ranges::max(counts), k, elem, rng);
  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    const int64_t first = part * n * k;
    const void* const from = w.elem == Elem::bf16  ? static_cast<const void*>(narrow.data() + first)
                             : w.elem == Elem::f16 ? static_cast<const void*>(half.data() + first)
                                                   : weights.data() + first;
    pack_part(w.elem, from, n, k, place, panels, worker);
  };
  const int apart = w.elem == Elem::bf16 && elem == Elem::bf16 ? 1 : 0;
  const auto sum = [&](int64_t r, int part, int64_t c) {
    const float* const column = weights.data() + (part * n + c) * k;
    return chain(x.row(r), [&](int64_t i) { return column[i]; }, 0, k, apart);
  };
  check_product("weights of type " + std::to_string(int(w.elem)) + ", x of " +
                    std::to_string(int(elem)),
                w, x, counts, pool, pack, sum);
}

inline void check_float_products(Pool& pool, std::mt19937& rng) {
  for (const Elem weights : {Elem::f32, Elem::bf16, Elem::f16})
    for (const Elem elem : {Elem::f32, Elem::bf16}) {
      const auto check = [&](int64_t n, int64_t k, const RowCounts& counts, bool gated) {
        check_float_product({weights, n, k, gated, {}, {}}, elem, counts, pool, rng);
      };
      for (const bool odd : {true, false}) {
        const RowCounts counts = row_counts(pool, odd, {18, 35});
        check(35, 201, counts, !odd);
        check(80, 64, counts, odd);
      }
      check(33, 2100, {150}, false);  // several slices
      check(18, 40, {1100}, false);   // several row blocks
    }
}

}  // namespace penstock::check
