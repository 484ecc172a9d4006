// Products on the 8-bit grid against their definition in gemm_grid.h, and those of weights alone
// against that of gemm_points_format.h.
#pragma once

#include "../kernels/hadamard.h"
#include "check_int_products.h"

namespace penstock::check {

// By its definition: signs over the block's columns, and sums and differences of pairs.
inline std::vector<float> transformed_rows(const Inputs& x, int64_t rows, int64_t k) {
  const int64_t block = hadamard_block(k);
  std::vector<float> all(size_t(rows * k));
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = all.data() + r * k;
    for (int64_t i = 0; i < k; ++i)
      row[i] = x.row(r)[i] * (hadamard_sign(uint32_t(i % block)) / float(block));
    for (int64_t distance = 1; distance < block; distance *= 2)
      for (int64_t i = 0; i < k; ++i) {
        if (i % block & distance) continue;
        const float first = row[i], second = row[i + distance];
        row[i] = first + second;
        row[i + distance] = first - second;
      }
  }
  return all;
}

inline void check_grid_product(GridMatrix w, Elem elem, const RowCounts& counts, Pool& pool,
                               std::mt19937& rng) {
  const int64_t n = w.n, k = w.k, columns = w.gated ? 2 * n : n;
  const int64_t groups = (k + kGridGroup - 1) / kGridGroup;
  std::vector<int8_t> codes(size_t(columns * k));
  std::vector<uint8_t> windows(w.bits == 4 ? size_t(columns * groups) : 0);
  std::vector<float> scales(static_cast<size_t>(columns));
  for (int8_t& c : codes) c = int8_t(w.bits == 8 ? int(rng() % 255) - 127 : int(rng() % 16));
  // Points that stay on the grid: with the origin in the middle any step will do.
  for (uint8_t& window : windows) {
    const unsigned origin = rng() % 16, most = 127 / std::max(origin, 15 - origin);
    window = uint8_t(rng() % std::min(most, 16u) + 16 * origin);
  }
  for (float& s : scales) s = float(1 + rng() % 1000) * 1e-4f;
  const int64_t rows = std::ranges::max(counts);
  Inputs x(rows, k, elem, rng);
  const std::vector<float> transformed = transformed_rows(x, rows, k);

  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    pack_grid_part(w,
                   {codes.data() + part * n * k,
                    w.bits == 4 ? windows.data() + part * n * groups : nullptr,
                    scales.data() + part * n},
                   n, place, panels, worker);
  };
  const auto sum = [&](int64_t r, int part, int64_t c) {
    const int64_t column = part * n + c;
    const auto point = [&](int64_t i) {
      const int code = codes[size_t(column * k + i)];
      if (w.bits == 8) return code;
      const int window = windows[size_t(column * groups + i / kGridGroup)];
      return (window % 16 + 1) * (code - window / 16);
    };
    const float scale = scales[size_t(column)];
    if (w.weight_only && w.bits == 4) {
      Sum sum{0};
      for (int64_t first = 0; first < k; first += kGridGroup) {
        const int window = windows[size_t(column * groups + first / kGridGroup)];
        const float step = float(window % 16 + 1);
        const Sum part = chain(
            x.row(r), [&](int64_t i) { return codes[size_t(column * k + i)] - window / 16; }, first,
            std::min(k, first + kGridGroup), elem == Elem::bf16 ? 2 : 0);
        sum.value = multiply_add(step, part.value, sum.value);
        sum.error += part.error * step;
      }
      return Sum{sum.value * scale, sum.error * std::fabs(scale)};
    }
    if (w.weight_only)
      return sum_of_points(x.row(r), elem, k, k, point, [&](int64_t) { return scale; });
    const float* const row = transformed.data() + r * k;
    float largest = 0;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(row[i]));
    if (largest < 1e-30f) return Sum{0};
    int dot = 0;
    for (int64_t i = 0; i < k; ++i)
      dot += point(i) * int(std::clamp(std::nearbyint(row[i] * (127.0f / largest)), -127.0f, 127.0f));
    return Sum{float(dot) * (largest / 127.0f * scale)};
  };
  check_product("grid" + std::to_string(w.bits) + (w.weight_only ? " w" : ""), w, x, counts, pool,
                pack, sum);
}

inline void check_grid_products(Pool& pool, std::mt19937& rng) {
  for (const int bits : {8, 4}) {
    const auto check = [&](int64_t n, int64_t k, Elem elem, const RowCounts& counts, bool gated,
                           bool w) {
      check_grid_product({bits, n, k, gated, {}, {}, w}, elem, counts, pool, rng);
    };
    for (const bool odd : {true, false}) {
      const RowCounts counts = row_counts(pool, odd, {25, 37});
      check(35, 200, Elem::f32, counts, !odd, false);
      check(16, 128, Elem::bf16, counts, odd, false);
      check(35, 200, Elem::f32, counts, odd, true);
      check(67, 232, Elem::bf16, counts, !odd, true);
    }
    for (const int64_t k : {256, 320, 512, 1536}) check(20, k, Elem::bf16, {k % 7 + 1}, false, false);
    check(33, 1100, Elem::f32, {100}, false, false);  // several slices
    check(33, 1100, Elem::bf16, {70}, true, true);
    check(18, 70, Elem::f32, {600}, false, false);  // several row blocks
    check(18, 70, Elem::f32, {600}, false, true);
  }
}

}  // namespace penstock::check
