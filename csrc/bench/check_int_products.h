// Integer products against their definition in gemm_int.h, and those of weights alone against that of
// gemm_points_format.h.
#pragma once

#include "../kernels/gemm_int_sparse.h"
#include "check_products.h"

namespace penstock::check {

// One row of x as gemm_int.h quantizes it, by its text.
struct Quantized {
  std::vector<int> codes;
  std::vector<float> scales;

  Quantized(const float* x, int64_t k, int64_t group) {
    for (int64_t first = 0; first < k; first += group) {
      const int64_t last = std::min(k, first + group);
      float most = 0;
      for (int64_t i = first; i < last; ++i) most = std::max(most, std::fabs(x[i]));
      scales.push_back(most / 127.0f);
      for (int64_t i = first; i < last; ++i)
        codes.push_back(most > 0 ? int(std::nearbyint(x[i] / scales.back())) : 0);
    }
  }
};

// What a product by groups gives: code(i) and scale(g) are a column's.
template <class Code, class Scale>
Sum sum_of_groups(const Quantized& x, int64_t k, int64_t group, Code&& code, Scale&& scale) {
  Sum sum{0};
  for (int64_t first = 0; first < k; first += group) {
    const int64_t g = first / group;
    int dot = 0;
    for (int64_t i = first; i < std::min(k, first + group); ++i) dot += x.codes[size_t(i)] * code(i);
    sum.value = multiply_add(x.scales[size_t(g)] * scale(g), float(dot), sum.value);
  }
  return sum;
}

// And with x as it is; with one group the scale comes last.
template <class Code, class Scale>
Sum sum_of_points(const float* x, Elem elem, int64_t k, int64_t group, Code&& code, Scale&& scale) {
  const int apart = elem == Elem::bf16 ? 2 : 0;
  if (k <= group) {
    const Sum sum = chain(x, code, 0, k, apart);
    return {sum.value * scale(0), sum.error * std::fabs(scale(0))};
  }
  Sum sum{0};
  for (int64_t first = 0; first < k; first += group) {
    const Sum part = chain(x, code, first, std::min(k, first + group), apart);
    const float by = scale(first / group);
    sum.value = multiply_add(by, part.value, sum.value);
    sum.error += part.error * std::fabs(by);
  }
  return sum;
}

inline void check_int_product(IntMatrix w, Elem elem, const RowCounts& counts, Pool& pool,
                              std::mt19937& rng) {
  const int64_t n = w.n, k = w.k, columns = w.gated ? 2 * n : n, groups = int_groups(k, w.group);
  const int64_t span = w.group ? w.group : k;
  std::vector<int8_t> codes(size_t(columns * k));
  std::vector<float> scales(size_t(columns * groups));
  const int most = w.bits == 8 ? 127 : 7, least = w.bits == 8 ? -127 : -8;
  for (int8_t& c : codes) {
    c = int8_t(least + int(rng() % unsigned(most - least + 1)));
    if (rng() % 8 == 0) c = int8_t(rng() % 2 ? most : least);
  }
  std::vector<int8_t> zeros(scales.size());
  for (int8_t& z : zeros)
    z = int8_t(w.zero_points ? least + int(rng() % unsigned(most - least)) : 0);
  for (size_t i = 0; w.sparse && i < codes.size(); i += 4) {  // two of each four stand for zero
    const size_t one = rng() % 4, other = (one + 1 + rng() % 3) % 4;
    for (const size_t at : {i + one, i + other})
      codes[at] = zeros[at / size_t(k) * size_t(groups) + at % size_t(k) / size_t(span)];
  }
  for (float& s : scales) s = float(1 + rng() % 1000) * 1e-4f;
  const int64_t rows = std::ranges::max(counts);
  Inputs x(rows, k, elem, rng);
  std::vector<Quantized> quantized;
  for (int64_t r = 0; r < rows; ++r) quantized.emplace_back(x.row(r), k, span);

  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    pack_int_part(w,
                  {codes.data() + part * n * k, scales.data() + part * n * groups,
                   zeros.data() + part * n * groups},
                  n, place, panels, worker);
  };
  const auto sum = [&](int64_t r, int part, int64_t c) {
    const int64_t column = part * n + c;
    const auto code = [&](int64_t i) {
      return codes[size_t(column * k + i)] - zeros[size_t(column * groups + i / span)];
    };
    const auto scale = [&](int64_t g) { return scales[size_t(column * groups + g)]; };
    return w.weight_only ? sum_of_points(x.row(r), elem, k, span, code, scale)
                         : sum_of_groups(quantized[size_t(r)], k, span, code, scale);
  };
  check_product("int" + std::to_string(w.bits) + " by " + std::to_string(w.group) +
                    (w.zero_points ? " z" : "") + (w.weight_only ? " w" : "") +
                    (w.sparse ? " s" : ""),
                w, x, counts, pool, pack, sum);
}

inline void check_int_products(Pool& pool, std::mt19937& rng) {
  for (const int bits : {8, 4})
    for (const int64_t group : {32, 64, 0})
      for (const bool zero_points : {false, true}) {
        const auto check = [&](int64_t n, int64_t k, Elem elem, const RowCounts& counts, bool gated,
                               bool w) {
          check_int_product({bits, group, n, k, gated, {}, {}, zero_points, w}, elem, counts, pool,
                            rng);
        };
        for (const bool odd : {true, false}) {
          const RowCounts counts = row_counts(pool, odd, {18}), wide = row_counts(pool, odd, {35});
          check(35, 200, Elem::f32, counts, !odd, false);
          check(16, 96, Elem::bf16, counts, odd, false);
          check(35, 200, Elem::f32, wide, !odd, true);
          check(67, 232, Elem::bf16, wide, odd, true);
        }
        check(20, 1100, Elem::bf16, {70}, false, true);  // several slices
        if (expands_sparse())
          for (const bool odd : {true, false})
            check_int_product({bits, group, 35, 200, odd, {}, {}, zero_points, false, true}, Elem::f32,
                              row_counts(pool, odd, {18}), pool, rng);
      }
  for (const bool zero_points : {false, true})
    check_int_product({8, 0, 20, 6000, false, {}, {}, zero_points}, Elem::f32, {3}, pool, rng);
  // Several row blocks.
  check_int_product({4, 64, 16, 2300, false, {}, {}}, Elem::f32, {400}, pool, rng);
  check_int_product({4, 32, 16, 64, false, {}, {}, true, true}, Elem::f32, {700}, pool, rng);
}

}  // namespace penstock::check
