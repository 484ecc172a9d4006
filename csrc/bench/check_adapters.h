// Low-rank additions against sums in double, and rows of a run against themselves alone.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../kernels/adapters.h"
#include "../pool.h"
#include "../small_floats.h"
#include "check_expect.h"

namespace penstock::check {

// Two slots, the second of a lower rank; rows 0, 3, 4, ... of the first, 1 and 7 of the second, and
// others of none.
template <class Weight, class Input>
void check_adapter(int64_t k, int64_t n, int64_t rank, Pool& pool, std::mt19937& rng) {
  constexpr int64_t kRows = 14;
  const Elem elem = sizeof(Weight) == 2 ? Elem::bf16 : Elem::f32;
  const int64_t pair = 4 / int64_t(sizeof(Weight)), low_rank = (rank + 1) / 2;
  std::normal_distribution<float> normal;
  const auto draw = [&](auto& values) {
    for (auto& v : values) v = from_f32<std::decay_t<decltype(v)>>(normal(rng));
  };
  std::vector<Input> x(size_t(kRows * k));
  std::vector<float> low(size_t(kRows * rank)), before(size_t(kRows * n));
  std::vector<Weight> down(size_t(2 * rank * k)), up(size_t(2 * n * rank));
  draw(x), draw(before), draw(down), draw(up);
  const size_t down_bytes = adapter_down_bytes(elem, rank, k), up_bytes = adapter_up_bytes(elem, rank, n);
  std::vector<std::byte> packed_down(2 * down_bytes), packed_up(2 * up_bytes);
  const AdapterScale scales[2] = {{int32_t(rank), 0.5f}, {int32_t(low_rank), 2.0f}};
  const int64_t steps = (k + pair - 1) / pair;
  for (int64_t slot = 0; slot < 2; ++slot) {
    auto* const d = reinterpret_cast<Weight*>(packed_down.data() + size_t(slot) * down_bytes);
    auto* const u = reinterpret_cast<Weight*>(packed_up.data() + size_t(slot) * up_bytes);
    const int64_t own = scales[slot].rank;
    for (int64_t j = 0; j < own; ++j) {
      for (int64_t i = 0; i < k; ++i)
        d[((j / 16 * steps + i / pair) * 16 + j % 16) * pair + i % pair] =
            down[size_t((slot * rank + j) * k + i)];
      for (int64_t c = 0; c < n; ++c)
        u[(c / 16 * own + j) * 16 + c % 16] = up[size_t((slot * n + c) * rank + j)];
    }
  }
  const auto array = [](auto& values, Elem of, int64_t width) {
    return Array{reinterpret_cast<std::byte*>(values.data()), of, width};
  };
  const Array in = array(x, sizeof(Input) == 2 ? Elem::bf16 : Elem::f32, k);
  const Array between = array(low, Elem::f32, rank);
  const auto added = [&](const AdapterRows& rows) {
    std::vector<float> out = before;
    const AdapterDownArgs first{in, between, rank, 1, elem, packed_down.data(), scales};
    const AdapterUpArgs second{between, array(out, Elem::f32, n), rank, {n}, 0, 1, elem,
                               packed_up.data(), scales};
    pool.run([&](Worker& worker) { adapter_down(first, rows, worker); });
    pool.run([&](Worker& worker) { adapter_up(second, rows, worker); });
    return out;
  };
  const AdapterRows rows{{0, 3, 4, 5, 6, 8, 9, 10, 11, 12, 1, 7}, {{0, 0, 10}, {1, 10, 12}}};
  const std::vector<float> out = added(rows);
  const std::string what = " of " + std::to_string(k) + " by " + std::to_string(rank);
  for (int64_t r = 0; r < kRows; ++r) {
    const auto found = std::find(rows.rows.begin(), rows.rows.end(), int32_t(r));
    if (found == rows.rows.end()) {
      for (int64_t c = 0; c < n; ++c)
        expect(same(out[size_t(r * n + c)], before[size_t(r * n + c)]), "a row without adapter");
      continue;
    }
    const int32_t slot = found - rows.rows.begin() < 10 ? 0 : 1;
    const std::vector<float> alone = added({{int32_t(r)}, {{slot, 0, 1}}});
    for (int64_t c = 0; c < n; ++c) {
      double sum = before[size_t(r * n + c)], size = std::fabs(sum);
      for (int64_t j = 0; j < scales[slot].rank; ++j) {
        double dot = 0, bound = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double term = double(to_f32(x[size_t(r * k + i)])) *
                              double(to_f32(down[size_t((slot * rank + j) * k + i)]));
          dot += term, bound += std::fabs(term);
        }
        const double by = double(scales[slot].scale) * double(to_f32(up[size_t((slot * n + c) * rank + j)]));
        sum += by * dot, size += std::fabs(by) * bound;
      }
      const float got = out[size_t(r * n + c)];
      expect(std::fabs(got - sum) <= 1e-6 * size, "an adapter" + what);
      expect(same(got, alone[size_t(r * n + c)]), "an adapter's row alone" + what);
    }
  }
}

inline void check_adapters(Pool& pool, std::mt19937& rng) {
  for (const auto& [k, n, rank] : {std::array<int64_t, 3>{64, 48, 16}, {45, 70, 5}, {7, 3, 33}}) {
    check_adapter<float, float>(k, n, rank, pool, rng);
    check_adapter<bf16, bf16>(k, n, rank, pool, rng);
    check_adapter<bf16, float>(k, n, rank, pool, rng);
  }
}

}  // namespace penstock::check
