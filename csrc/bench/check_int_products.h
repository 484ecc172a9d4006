// Integer products against their definition in gemm_int.h, bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../kernels/gemm_int.h"
#include "../memory.h"
#include "../pool.h"
#include "check_expect.h"
#include "check_lanes.h"

namespace penstock::check {

// One row of x as int_linear() quantizes it, by the text of gemm_int.h.
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

inline void check_int_product(int bits, int64_t group, bool zero_points, int64_t n, int64_t k,
                       int64_t rows, bool gated, Pool& pool, std::mt19937& rng) {
  IntMatrix w{bits, group, n, k, gated, nullptr, nullptr, zero_points};
  const int64_t columns = gated ? 2 * n : n, groups = int_groups(k, group);
  const int64_t span = group ? group : k;
  std::vector<int8_t> codes(size_t(columns * k));
  std::vector<float> scales(size_t(columns * groups)), x(size_t(rows * k)), out(size_t(rows * n));
  const int most = bits == 8 ? 127 : 7, least = bits == 8 ? -127 : -8;
  for (int8_t& c : codes) {
    c = int8_t(least + int(rng() % unsigned(most - least + 1)));
    if (rng() % 8 == 0) c = int8_t(rng() % 2 ? most : least);
  }
  std::vector<int8_t> zeros(scales.size());
  for (int8_t& z : zeros) z = int8_t(zero_points ? least + int(rng() % unsigned(most - least)) : 0);
  for (float& s : scales) s = float(1 + rng() % 1000) * 1e-4f;
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  if (rows > 2) std::fill_n(x.begin() + k, std::min<int64_t>(span, k), 0.0f);  // a group of zeros
  if (k > 2) x[0] = 1e4f, x[1] = -1e4f;  // the ends of the range

  Memory panels(packed_bytes(w));
  std::memset(panels.data(), 0xa5, panels.bytes());
  pool.run([&](Worker& worker) {
    for (int part = 0; part < (gated ? 2 : 1); ++part)
      pack_int_part(w,
                    {codes.data() + part * n * k, scales.data() + part * n * groups,
                     zeros.data() + part * n * groups},
                    n, gated ? gated_part(part) : joined_part(0, n, n), panels.data(), worker);
  });
  w.panels = panels.data();
  pool.reserve_scratch(linear_scratch_bytes(w, rows));
  const Memory shared(linear_shared_bytes(w, rows));
  const Array in{reinterpret_cast<std::byte*>(x.data()), Elem::f32, k};
  const Array y{reinterpret_cast<std::byte*>(out.data()), Elem::f32, n};
  pool.run([&](Worker& worker) {
    linear(w, in, y, rows, Activation::silu, shared.data(), worker);
  });

  for (int64_t r = 0; r < rows; ++r) {
    const Quantized q(x.data() + r * k, k, span);
    for (int64_t c = 0; c < n; ++c) {
      float sums[2] = {0, 0};
      for (int part = 0; part < (gated ? 2 : 1); ++part) {
        const int64_t column = part * n + c;
        for (int64_t g = 0; g < groups; ++g) {
          int dot = 0;
          for (int64_t i = g * span; i < std::min(k, (g + 1) * span); ++i)
            dot += q.codes[size_t(i)] *
                   (codes[size_t(column * k + i)] - zeros[size_t(column * groups + g)]);
          const float scale = q.scales[size_t(g)] * scales[size_t(column * groups + g)];
#if defined(__FMA__) || defined(__aarch64__)
          sums[part] = std::fma(scale, float(dot), sums[part]);
#else
          sums[part] += scale * float(dot);
#endif
        }
      }
      if (gated) sums[0] = Lanes(silu(f32x16::broadcast(sums[0]))).x[0] * sums[1];
      expect(same(out[size_t(r * n + c)], sums[0]),
             std::to_string(bits) + " bits by " + std::to_string(group) + ", n " +
                 std::to_string(n) + ", k " + std::to_string(k) + ", row " + std::to_string(r) +
                 " of " + std::to_string(rows) + ", column " + std::to_string(c) + ": " +
                 text(out[size_t(r * n + c)]) + ", not " + text(sums[0]));
    }
  }
}

}  // namespace penstock::check
