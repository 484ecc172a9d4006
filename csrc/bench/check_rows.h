// Norms, and what is done element by element, against sums in double.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../kernels/columns.h"
#include "../kernels/elementwise.h"
#include "../kernels/norm.h"
#include "../pool.h"
#include "../simd.h"
#include "check_expect.h"

namespace penstock::check {

inline void check_norm(int64_t cols, Pool& pool, std::mt19937& rng) {
  constexpr int64_t kRows = 5;
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(kRows * cols)), weight(static_cast<size_t>(cols)), out(x.size());
  for (float& v : x) v = normal(rng);
  for (float& v : weight) v = normal(rng);
  AddNormArgs args{};
  args.residual = {reinterpret_cast<std::byte*>(x.data()), Elem::f32, cols};
  args.out = {reinterpret_cast<std::byte*>(out.data()), Elem::f32, cols};
  args.weight = weight.data();
  args.eps = 1e-5f;
  pool.run([&](Worker& worker) { add_norm(args, kRows, worker); });
  std::vector<float> apart(x.size()), centered(x.size());
  const auto array = [cols](std::vector<float>& values) {
    return Array{reinterpret_cast<std::byte*>(values.data()), Elem::f32, cols};
  };
  const NormArgs rms{array(x), array(apart), weight.data(), nullptr, 1e-5f};
  const NormArgs layer{array(x), array(centered), weight.data(), weight.data(), 1e-5f};
  pool.run([&](Worker& worker) { rms_norm(rms, kRows, worker); });
  pool.run([&](Worker& worker) { layer_norm(layer, kRows, worker); });
  for (size_t i = 0; i < out.size(); ++i) expect(same(apart[i], out[i]), "rms norm is add norm");
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = x.data() + r * cols;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < cols; ++c) mean += row[c] / double(cols);
    for (int64_t c = 0; c < cols; ++c) variance += std::pow(row[c] - mean, 2) / double(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const double w = weight[size_t(c)];
      const double expected = (row[c] - mean) / std::sqrt(variance + 1e-5) * w + w;
      expect(std::fabs(centered[size_t(r * cols + c)] - expected) <= 4e-6 * (std::fabs(w) + 1),
             "layer norm of " + std::to_string(cols));
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += std::pow(double(x[size_t(r * cols + c)]), 2);
    for (int64_t c = 0; c < cols; ++c) {
      const double expected =
          x[size_t(r * cols + c)] / std::sqrt(squares / double(cols) + 1e-5) * weight[size_t(c)];
      expect(std::fabs(out[size_t(r * cols + c)] - expected) <= 2e-6 * std::fabs(expected) + 1e-7,
             "norm of " + std::to_string(cols));
    }
  }
}

// Columns joined and rounded, then x + silu(y) of what was joined.
inline void check_columns(int64_t cols, Pool& pool, std::mt19937& rng) {
  constexpr int64_t kRows = 9;
  std::normal_distribution<float> normal;
  std::vector<float> a(size_t(kRows * cols)), b(size_t(kRows * cols)), sum(size_t(kRows * 2 * cols));
  std::vector<bf16> small(sum.size());
  std::vector<float> wide(sum.size());
  for (float& v : a) v = normal(rng);
  for (float& v : b) v = normal(rng);
  const auto array = [](auto& values, Elem elem, int64_t width) {
    return Array{reinterpret_cast<std::byte*>(values.data()), elem, width};
  };
  const Array rounded = array(small, Elem::bf16, 2 * cols), joined = array(wide, Elem::f32, 2 * cols);
  const JoinArgs rounds{{array(a, Elem::f32, cols), array(b, Elem::f32, cols)}, rounded};
  const JoinArgs widens{{rounded}, joined};
  const AddActivatedArgs adds{joined, joined, array(sum, Elem::f32, 2 * cols), Activation::silu};
  std::vector<float> gated(sum.size()), capped(sum.size());
  const GateArgs gates{joined, joined, array(gated, Elem::f32, 2 * cols), Activation::silu};
  const Array halved = array(capped, Elem::f32, 2 * cols);
  pool.run([&](Worker& worker) { join(rounds, kRows, worker); });
  pool.run([&](Worker& worker) { join(widens, kRows, worker); });
  pool.run([&](Worker& worker) { add_activated(adds, kRows, worker); });
  pool.run([&](Worker& worker) { gate(gates, kRows, worker); });
  pool.run([&](Worker& worker) { scale({joined, halved, 0.5f}, kRows, worker); });
  pool.run([&](Worker& worker) { soft_cap({halved, halved, 0.7f}, kRows, worker); });
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < 2 * cols; ++c) {
      const float from = c < cols ? a[size_t(r * cols + c)] : b[size_t(r * cols + c - cols)];
      const float x = to_f32(to_bf16(from)), got = sum[size_t(r * 2 * cols + c)];
      const double expected = x + x / (1 + std::exp(-double(x)));
      expect(same(wide[size_t(r * 2 * cols + c)], x), "join of " + std::to_string(cols));
      expect(std::fabs(got - expected) <= 2e-6 * std::fabs(expected) + 1e-7,
             "x + silu(y) of " + std::to_string(cols));
      const size_t at = size_t(r * 2 * cols + c);
      expect(std::fabs(gated[at] - (expected - x) * x) <= 2e-6 * std::fabs(x * x) + 1e-7,
             "silu(x) * y of " + std::to_string(cols));
      expect(std::fabs(capped[at] - 0.7f * std::tanh(x / 1.4)) <= 3e-7 * std::fabs(x) + 1e-7,
             "capped half of " + std::to_string(cols));
    }
}

}  // namespace penstock::check
