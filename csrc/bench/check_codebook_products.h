// Products with codebooks of rows against the text of gemm_codebook.h.
#pragma once

#include "../kernels/gemm_codebook.h"
#include "check_products.h"

namespace penstock::check {

// A column's weights by its codes, and its outliers.
struct CodebookColumn {
  std::vector<float> named;
  std::vector<int32_t> places;
  std::vector<float> excess;
};

// x by a column, in 16 lanes.
inline Sum codebook_sum(const float* x, [[maybe_unused]] bool pairs, const CodebookColumn& w,
                        bool outliers) {
  const auto k = int64_t(w.named.size());
  float lanes[16] = {};
  const auto at = [k](const auto& from, int64_t i) { return i < k ? float(from[i]) : 0.0f; };
  for (int64_t first = 0; first < k; first += 2) {
    float& lane = lanes[first / 2 % 16];
#if defined(__AVX512BF16__)
    if (pairs) {
      const auto pair = [&](const auto& from) {
        return uint32_t(to_bf16(at(from, first)).bits) |
               uint32_t(to_bf16(at(from, first + 1)).bits) << 16;
      };
      lane = Lanes(dpbf16(f32x16::broadcast(lane),
                          f32x16::broadcast(std::bit_cast<float>(pair(w.named))), pair(x)))
                 .x[0];
      continue;
    }
#endif
    lane = multiply_add(at(w.named, first), at(x, first), lane);
    lane = multiply_add(at(w.named, first + 1), at(x, first + 1), lane);
  }
  float chains[4] = {};
  for (size_t i = 0; i < w.places.size(); ++i)
    chains[i % 4] = multiply_add(w.excess[i], x[w.places[i]], chains[i % 4]);
  const float sum = hsum(f32x16::load(lanes));
  if (!outliers) return {sum};
  return {sum + ((chains[0] + chains[1]) + (chains[2] + chains[3]))};
}

inline void check_codebook_product(CodebookMatrix w, Elem elem, const RowCounts& counts, Pool& pool,
                                   std::mt19937& rng) {
  const int64_t n = w.n, k = w.k, columns = w.gated ? 2 * n : n, count = int64_t(1) << w.bits;
  const int64_t row_bytes = codebook_row_bytes(w.bits, k);
  std::vector<std::byte> codes(size_t(columns * row_bytes));
  for (std::byte& b : codes) b = std::byte(rng());
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(columns * count));
  for (float& v : values) v = normal(rng);
  // Of every third row none, of others up to a quarter.
  std::vector<int32_t> ends{0}, places;
  std::vector<float> outliers;
  std::vector<CodebookColumn> read;
  const auto stored = [&](float v) { return w.values == Elem::bf16 ? to_f32(to_bf16(v)) : v; };
  for (int64_t r = 0; r < columns; ++r) {
    CodebookColumn own;
    for (int64_t i = 0; i < k; ++i) {
      unsigned code = 0;
      for (int b = 0; b < w.bits; ++b) {
        const int64_t bit = i * w.bits + b;
        code |= (unsigned(codes[size_t(r * row_bytes + bit / 8)]) >> bit % 8 & 1) << b;
      }
      own.named.push_back(stored(values[size_t(r * count + code)]));
      if (r % 3 == 2 || rng() % 4) continue;
      places.push_back(int32_t(i));
      outliers.push_back(20 * normal(rng));
      own.places.push_back(int32_t(i));
      own.excess.push_back(stored(outliers.back()) - own.named.back());
    }
    ends.push_back(int32_t(places.size()));
    read.push_back(own);
  }
  w.outliers = int64_t(places.size());
  expect(outliers_in_order(w, ends, places), "outliers are not in order");

  // A part's ends begin at 0.
  std::vector<int32_t> second(ends.begin() + (w.gated ? n : 0), ends.end());
  for (int32_t& end : second) end -= ends[w.gated ? size_t(n) : 0];
  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    const int32_t first = part ? ends[size_t(n)] : 0;
    const CodebookRows rows{codes.data() + part * n * row_bytes, values.data() + part * n * count,
                            part ? second.data() : ends.data(), places.data() + first,
                            outliers.data() + first};
    pack_codebook_part(w, rows, n, first, place, panels, worker);
  };
  const bool pairs = elem == Elem::bf16 && w.values == Elem::bf16;
  Inputs x(std::ranges::max(counts), k, elem, rng);
  check_product("codebooks of " + std::to_string(w.bits) + " bits", w, x, counts, pool, pack,
                [&](int64_t r, int part, int64_t c) {
                  return codebook_sum(x.row(r), pairs, read[size_t(part * n + c)], w.outliers > 0);
                });
}

inline void check_codebook_products(Pool& pool, std::mt19937& rng) {
  for (const int bits : {3, 4})
    for (const Elem values : {Elem::f32, Elem::bf16}) {
      const auto check = [&](int64_t n, int64_t k, Elem elem, const RowCounts& counts, bool gated) {
        check_codebook_product({bits, values, n, k, gated, 0, {}, {}}, elem, counts, pool, rng);
      };
      for (const bool odd : {true, false}) {
        const RowCounts counts = row_counts(pool, odd, {35});
        check(35, 224, Elem::f32, counts, !odd);
        check(40, 97, Elem::bf16, counts, odd);
      }
      for (const int64_t k : {1, 160, 161, 480, 481, 512, 1024 + 481})
        for (const Elem elem : {Elem::f32, Elem::bf16}) check(18, k, elem, {1, 2, 7}, k % 2 == 1);
      check(16, 256, Elem::bf16, {530}, false);  // several row blocks
    }
}

}  // namespace penstock::check
