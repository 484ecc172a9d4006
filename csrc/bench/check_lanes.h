// Lanes of simd.h against scalar code: arithmetic, conversions, functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "../simd.h"
#include "check_expect.h"

namespace penstock::check {

struct Lanes {
  float x[16];
  Lanes() = default;
  explicit Lanes(f32x16 v) { v.store(x); }
};

template <class Vector, class Scalar>
void check_operation(const char* name, const float* a, const float* b, const float* c,
                     Vector vector, Scalar scalar) {
  const Lanes got(vector(f32x16::load(a), f32x16::load(b), f32x16::load(c)));
  for (int i = 0; i < 16; ++i)
    expect(same(got.x[i], scalar(a[i], b[i], c[i])),
           std::string(name) + " of " + text(a[i]) + ", " + text(b[i]) + ", " + text(c[i]) + " is " +
               text(got.x[i]));
}

inline void check_arithmetic(std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 100);
  for (int round = 0; round < 200; ++round) {
    float a[16], b[16], c[16];
    for (int i = 0; i < 16; ++i) a[i] = normal(rng), b[i] = normal(rng), c[i] = normal(rng);
    if (round % 4 == 1) a[3] = NAN, b[4] = NAN, a[5] = -INFINITY, b[6] = INFINITY, a[7] = b[7];
    if (round % 4 == 2)
      for (int i = 0; i < 16; ++i) a[i] = std::round(a[i]) + 0.5f;  // ties
    using V = f32x16;
    check_operation("a + b", a, b, c, [](V x, V y, V) { return x + y; },
                    [](float x, float y, float) { return x + y; });
    check_operation("a - b", a, b, c, [](V x, V y, V) { return x - y; },
                    [](float x, float y, float) { return x - y; });
    check_operation("a * b", a, b, c, [](V x, V y, V) { return x * y; },
                    [](float x, float y, float) { return x * y; });
    check_operation("a / b", a, b, c, [](V x, V y, V) { return x / y; },
                    [](float x, float y, float) { return x / y; });
    check_operation("min", a, b, c, [](V x, V y, V) { return min(x, y); },
                    [](float x, float y, float) { return x < y ? x : y; });
    check_operation("max", a, b, c, [](V x, V y, V) { return max(x, y); },
                    [](float x, float y, float) { return x > y ? x : y; });
    check_operation("sqrt", a, b, c, [](V x, V, V) { return sqrt(abs(x)); },
                    [](float x, float, float) { return std::sqrt(std::fabs(x)); });
    check_operation("select_less", a, b, c, [](V x, V y, V z) { return select_less(x, y, z, x); },
                    [](float x, float y, float z) { return x < y ? z : x; });
    if (round % 4 != 1) {
      // Adding zero: not every machine keeps the sign of one.
      check_operation("round_even", a, b, c, [](V x, V, V) { return round_even(x) + V::zero(); },
                      [](float x, float, float) { return std::nearbyint(x) + 0.0f; });
      check_operation("scale_pow2", a, b, c,
                      [](V x, V y, V) { return scale_pow2(x, round_even(y * V::broadcast(0.1f))); },
                      [](float x, float y, float) {
                        return std::ldexp(x, int(std::nearbyint(y * 0.1f)));
                      });
      float tree[16];
      std::copy_n(a, 16, tree);
      for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
      expect(same(hsum(f32x16::load(a)), tree[0]), "hsum");
      expect(hmax(f32x16::load(a)) == *std::max_element(a, a + 16), "hmax");
    }
#if defined(__FMA__) || defined(__aarch64__)
    check_operation("fma", a, b, c, [](V x, V y, V z) { return fma(x, y, z); },
                    [](float x, float y, float z) { return std::fma(x, y, z); });
#endif
    const int n = int(rng() % 17);
    float out[17];
    std::fill_n(out, 17, 7.0f);
    f32x16::load_n(a, n).store_n(out, n);
    for (int i = 0; i < 17; ++i)
      expect(same(out[i], i < n ? a[i] : 7.0f), "load_n and store_n of " + std::to_string(n));
    const Lanes first(select_first(n, f32x16::load(a), f32x16::load(b)));
    for (int i = 0; i < 16; ++i)
      expect(same(first.x[i], i < n ? a[i] : b[i]), "select_first of " + std::to_string(n));
  }
}

template <class T>
void check_conversion(const char* name, std::mt19937& rng) {
  for (uint32_t bits = 0; bits < 65536; bits += 16) {
    T from[16];
    for (uint32_t i = 0; i < 16; ++i) from[i].bits = uint16_t(bits + i);
    const Lanes wide(f32x16::load(from));
    for (int i = 0; i < 16; ++i)
      expect(same(wide.x[i], to_f32(from[i])),
             std::string(name) + " of bits " + std::to_string(from[i].bits) + " widened");
  }
  for (int round = 0; round < 20000; ++round) {
    float x[16];
    for (float& v : x) {
      uint32_t bits = uint32_t(rng());
      if (round % 2) bits = (bits & 0x807fffff) | uint32_t(127 - 26 + int(rng() % 44)) << 23;
      if (round % 3 == 0) bits = (bits & 0xffff0000) | 0x8000;  // ties of bf16
      v = std::bit_cast<float>(bits);
      if (std::fpclassify(v) == FP_SUBNORMAL) v = 0;  // may be read as zero, see simd.h
    }
    T to[16];
    f32x16::load(x).store(to);
    for (int i = 0; i < 16; ++i)
      expect(to[i].bits == from_f32<T>(x[i]).bits ||
                 (x[i] != x[i] && to_f32(to[i]) != to_f32(to[i])),
             text(x[i]) + " as " + name);
  }
}

inline void check_functions() {
  for (float x = -80; x < 80; x += 0.37f) {
    const Lanes got(exp(f32x16::broadcast(x)));
    expect(std::fabs(got.x[5] / std::exp(double(x)) - 1) < 2.5e-7, "exp of " + text(x));
  }
}

}  // namespace penstock::check
