// What is the same of all products' checks: the panels of any kind of weights are multiplied by
// linear(), and again by linear_units() for rows that a list names; every element is compared, bit
// by bit, with a sum that plain scalar code has made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../bf16_dots.h"
#include "../kernels/gemm_units.h"
#include "../memory.h"
#include "../pool.h"
#include "check_expect.h"
#include "check_lanes.h"

namespace penstock::check {

// c + a * b, rounded as fma() of simd.h rounds it.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// How many rows of x a product is made of, each of these by itself.
using RowCounts = std::vector<int64_t>;

// The odd or the even ones: by one thread all up to 17, by more some of these; and of others, of several
// bands.
inline RowCounts row_counts(const Pool& pool, bool odd, std::initializer_list<int64_t> others) {
  RowCounts all{1, 2, 5, 12, 17};
  if (pool.threads() == 1) {
    all.resize(17);
    std::iota(all.begin(), all.end(), 1);
  }
  all.insert(all.end(), others);
  std::erase_if(all, [odd](int64_t rows) { return (rows % 2 == 1) != odd; });
  return all;
}

// Rows of x: float32, or bfloat16.
class Inputs {
 public:
  // Of the first row the first two are far out; a third has nothing but zeros in its first 64 columns.
  Inputs(int64_t rows, int64_t k, Elem elem, std::mt19937& rng)
      : elem_(elem), k_(k), values_(size_t(rows * k)), narrow_(values_.size()) {
    std::normal_distribution<float> normal;
    for (float& v : values_) v = normal(rng);
    if (k > 2) values_[0] = 1e4f, values_[1] = -1e4f;
    if (rows > 2) std::fill_n(values_.begin() + 2 * k, std::min<int64_t>(k, 64), 0.0f);
    if (elem == Elem::bf16)
      for (size_t i = 0; i < values_.size(); ++i) {
        narrow_[i] = to_bf16(values_[i]);
        values_[i] = to_f32(narrow_[i]);
      }
  }

  const float* row(int64_t r) const { return values_.data() + r * k_; }
  Array array() {
    return {elem_ == Elem::bf16 ? reinterpret_cast<std::byte*>(narrow_.data())
                                : reinterpret_cast<std::byte*>(values_.data()),
            elem_, k_};
  }

 private:
  Elem elem_;
  int64_t k_;
  std::vector<float> values_;
  std::vector<bf16> narrow_;
};

// A sum before bias and gate. error: that it may have, where the hardware has an order of its own.
struct Sum {
  float value;
  float error = 0;
};

// The chain of x by w over k in [first, last), from zero. apart: where pairs of bfloat16 are
// multiplied at once, how far apart in k the two are, 1 or 2; 0: one by one.
template <class W>
Sum chain(const float* x, const W& w, int64_t first, int64_t last, [[maybe_unused]] int apart) {
  float sum = 0, size = 0;
#if defined(PENSTOCK_BF16_DOTS)
  if (apart) {
    const auto pair = [&](auto&& value, int64_t k) {
      const auto half = [&](int64_t at) {
        return uint32_t(at < last ? to_bf16(value(at)).bits : 0);
      };
      return half(k) | half(k + apart) << 16;
    };
    for (int64_t four = first; four < last; four += 4)
      for (int i = 0; i < 2; ++i) {
        const int64_t k = four + (apart == 1 ? 2 * i : i);
        const f32x16 weights = f32x16::broadcast(std::bit_cast<float>(pair(w, k)));
        sum = Lanes(dpbf16(f32x16::broadcast(sum), weights,
                           pair([&](int64_t at) { return x[at]; }, k))).x[0];
      }
#if defined(__AMX_BF16__)
    for (int64_t k = first; k < last; ++k) size += std::fabs(x[k] * float(w(k)));
#endif
    return {sum, 1e-5f * size};
  }
#endif
  for (int64_t k = first; k < last; ++k) sum = multiply_add(x[k], float(w(k)), sum);
  return {sum, size};
}

// Before bias and activation, of all rows of x: by row, then column. With a gate each column has two.
template <class Expected>
std::vector<Sum> expected_sums(int64_t rows, int64_t n, int parts, Expected&& expected) {
  std::vector<Sum> sums;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < n; ++c)
      for (int part = 0; part < parts; ++part) sums.push_back(expected(r, part, c));
  return sums;
}

// The first `rows` rows of x by weights that are packed, against expected_sums(); and against what the
// products of fewer of them were, bit by bit, which these become.
template <class Matrix>
void check_rows(const std::string& name, const Matrix& w, Inputs& x, int64_t rows,
                const std::vector<Sum>& sums, std::vector<float>& fewer, Pool& pool) {
  const int64_t n = w.n;
  const auto array = [n](std::vector<float>& values) {
    return Array{reinterpret_cast<std::byte*>(values.data()), Elem::f32, n};
  };
  std::vector<float> out(size_t(rows * n)), again(out.size());
  pool.reserve_scratch(linear_scratch_bytes(w, rows));
  const Memory shared(linear_shared_bytes(w, rows) + 1);
  pool.run([&](Worker& worker) {
    linear(w, x.array(), array(out), rows, Activation::silu, shared.data(), worker);
  });

  const auto place = [&](int64_t r, int64_t c) {
    return name + ", n " + std::to_string(n) + ", k " + std::to_string(w.k) + ", row " +
           std::to_string(r) + " of " + std::to_string(rows) + ", column " + std::to_string(c);
  };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < n; ++c) {
      const auto at = size_t(r * n + c);
      Sum sum = sums[w.gated ? 2 * at : at];
      if (w.bias) sum.value += w.bias[c];
      if (w.gated) {
        Sum up = sums[2 * at + 1];
        if (w.bias) up.value += w.bias[n + c];
        const float gate = Lanes(silu(f32x16::broadcast(sum.value))).x[0];
        sum = {gate * up.value,
               2 * sum.error * std::fabs(up.value) + (std::fabs(gate) + sum.error) * up.error};
      }
      const float got = out[at];
      if (!(sum.error > 0 ? std::fabs(got - sum.value) <= sum.error : same(got, sum.value)))
        expect(false, place(r, c) + ": " + text(got) + ", not " + text(sum.value));
      if (at < fewer.size() && !same(got, fewer[at]))
        expect(false, place(r, c) + ": " + text(got) + ", and of fewer rows " + text(fewer[at]));
    }
  if (out.size() > fewer.size()) fewer = out;

  // By one thread, from the last row to the first, in two pieces of the columns.
  if (rows > 512) return;
  std::vector<int32_t> list(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) list[size_t(r)] = int32_t(rows - 1 - r);
  pool.reserve_scratch(linear_units_scratch_bytes(w, rows));
  const int64_t units = (n + kPanelColumns - 1) / kPanelColumns;
  pool.run([&](Worker& worker) {
    if (worker.id) return;
    const Epilogue e{w.bias, array(again), n, w.gated, Activation::silu, list.data()};
    for (const Range& some : {Range{units / 2, units}, Range{0, units / 2}})
      linear_units(w, {x.array(), list.data()}, e, rows, some, some.first == 0 && units > 1,
                   worker.scratch);
  });
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < n; ++c)
      if (!same(again[size_t(r * n + c)], out[size_t(r * n + c)]))
        expect(false, place(r, c) + " by units");
}

// pack(panels, part, worker) packs part 0, or gate and up; expected(row, part, column) is a sum by plain
// code: made once, since a row's result does not depend on how many there are. Odd counts have a bias.
template <class Matrix, class Pack, class Expected>
void check_product(const std::string& name, Matrix w, Inputs& x, const RowCounts& counts, Pool& pool,
                   Pack&& pack, Expected&& expected) {
  const int parts = w.gated ? 2 : 1;
  const int64_t n = w.n;
  Memory panels(packed_bytes(w));
  std::memset(panels.data(), 0xa5, panels.bytes());  // padding must be written, not found
  pool.run([&](Worker& worker) {
    for (int part = 0; part < parts; ++part)
      pack(panels.data(), part, w.gated ? gated_part(part) : joined_part(0, n, n), worker);
  });
  w.panels = panels.data();
  std::vector<float> bias(size_t(parts * n));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = float(int(i % 7) - 3) * 0.37f;
  const std::vector<Sum> sums = expected_sums(std::ranges::max(counts), n, parts, expected);
  std::vector<float> fewer[2];
  for (const int64_t rows : counts) {
    w.bias = rows % 2 ? bias.data() : nullptr;
    check_rows(name, w, x, rows, sums, fewer[rows % 2], pool);
  }
}

}  // namespace penstock::check
