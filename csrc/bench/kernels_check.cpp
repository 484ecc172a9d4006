// Checks lanes and kernels against plain scalar code, without Python: for machines that are only
// emulated. Prints what differs; exits with 1 if anything does. Not installed.
//
//   aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -Wno-psabi -static -pthread
//       -march=armv8.2-a+dotprod+fp16 -o check csrc/bench/kernels_check.cpp csrc/{pool,memory}.cpp
//       $(ls csrc/kernels/*.cpp | grep -v _py) && qemu-aarch64-static ./check
//
// tests/backends/test_cpu_cross.py does just this.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "../kernels/elementwise.h"
#include "../kernels/attention.h"
#include "../kernels/columns.h"
#include "../kernels/gemm_int.h"
#include "../kernels/kv_write.h"
#include "../kernels/norm.h"
#include "../kernels/rope.h"
#include "../kernels/rope_write.h"
#include "../memory.h"
#include "../pool.h"
#include "../simd.h"

using namespace penstock;

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds || ++failures > 30) return;
  std::printf("FAIL %s\n", what.c_str());
}

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

std::string text(double x) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", x);
  return buffer;
}

// --- lanes -------------------------------------------------------------------------------------

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

void check_arithmetic(std::mt19937& rng) {
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

void check_functions() {
  for (float x = -80; x < 80; x += 0.37f) {
    const Lanes got(exp(f32x16::broadcast(x)));
    expect(std::fabs(got.x[5] / std::exp(double(x)) - 1) < 2.5e-7, "exp of " + text(x));
  }
}

// --- integer products ----------------------------------------------------------------------------

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

void check_int_product(int bits, int64_t group, bool zero_points, int64_t n, int64_t k,
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

// --- attention and what is around it ---------------------------------------------------------------

// The cache and the queries that rope_write() made, once more: rotated, and written, apart.
void check_parts(const RopeWriteArgs& whole, const StepView& step, const Memory& cache,
                 Pool& pool) {
  const int dim = whole.kv.head_dim;
  const int64_t keys = int64_t(whole.heads) * dim, width = int64_t(whole.kv.kv_heads) * dim;
  const auto columns = [&](int64_t first, int64_t count) {
    return Array{whole.qkv.data + size_t(first) * sizeof(float), Elem::f32, count, whole.qkv.cols};
  };
  std::vector<float> turned(size_t(step.tokens) * size_t(keys));
  Memory other(cache.bytes());
  KvLayer kv = whole.kv;
  kv.base = other.data();
  const RopeArgs turns{columns(0, keys),
                       {reinterpret_cast<std::byte*>(turned.data()), Elem::f32, keys},
                       dim,
                       whole.rotation};
  const KvWriteArgs writes{kv, columns(keys, width), columns(keys + width, width)};
  pool.run([&](Worker& worker) { rope(turns, step, worker); });
  pool.run([&](Worker& worker) { kv_write(writes, step, worker); });
  expect(std::memcmp(turned.data(), whole.q.data, turned.size() * sizeof(float)) == 0,
         "rotation apart is that of rope_write");
  expect(std::memcmp(other.data(), cache.data(), cache.bytes()) == 0,
         "a cache written apart is that of rope_write");
}

// A sequence of `context` tokens, the last `queries` of them in the step, through rope_write() and
// attention(), against sums in double.
void check_attention(Elem elem, int heads, int kv_heads, int dim, int context, Pool& pool,
                     std::mt19937& rng) {
  const int group = heads / kv_heads, blocks = (context + kBlockSize - 1) / kBlockSize;
  const int64_t width = int64_t(heads + 2 * kv_heads) * dim;
  std::normal_distribution<float> normal;
  std::vector<float> qkv(size_t(context * width)), q(size_t(context * heads * dim)), out(q.size());
  for (float& v : qkv) {
    v = normal(rng);
    if (elem == Elem::bf16) v = to_f32(to_bf16(v));
    if (elem == Elem::f16) v = to_f32(to_f16(v));
  }
  std::vector<int32_t> positions, slots, ids;
  for (int b = 0; b < blocks; ++b) ids.push_back(blocks - 1 - b);
  for (int i = 0; i < context; ++i) {
    positions.push_back(i);
    slots.push_back(ids[size_t(i / kBlockSize)] * kBlockSize + i % kBlockSize);
  }
  KvLayer kv = KvLayer::alone(nullptr, elem, kv_heads, dim);
  Memory cache(kv.block_bytes() * size_t(blocks));
  kv.base = cache.data();
  const int32_t starts[] = {0, context}, lens[] = {context}, block_starts[] = {0, blocks};
  StepView step{};
  const KvTables tables{slots.data(), block_starts, ids.data(), blocks};
  step.positions = positions.data(), step.query_starts = starts, step.context_lens = lens;
  step.groups = {&tables, 1};
  step.tokens = context, step.sequences = 1;

  const Array joined{reinterpret_cast<std::byte*>(qkv.data()), Elem::f32, width};
  const Array queries{reinterpret_cast<std::byte*>(q.data()), Elem::f32, int64_t(heads) * dim};
  const Array result{reinterpret_cast<std::byte*>(out.data()), Elem::f32, int64_t(heads) * dim};
  const RopeWriteArgs rope{kv, joined, queries, heads, {}, nullptr, nullptr, 0};
  const float scale = 1 / std::sqrt(float(dim));
  const AttentionArgs args{kv, queries, result, heads, scale, 0};
  const AttentionShape shape{heads, kv_heads, dim, 0};
  AttentionWork work(shape, {context, 1, context, pool.threads()});
  build_attention_work(step, work);
  pool.reserve_scratch(attention_scratch_bytes(shape));
  pool.run([&](Worker& worker) { rope_write(rope, step, worker); });
  check_parts(rope, step, cache, pool);
  pool.run([&](Worker& worker) { attention(args, step, work, worker); });

  const double bound = elem == Elem::bf16 ? 2e-2 : 1e-5;  // weights are rounded to bf16
  for (int t = 0; t < context; ++t)
    for (int h = 0; h < heads; ++h) {
      const auto at = [&](int token, int64_t column) {
        return double(qkv[size_t(token * width + column)]);
      };
      const int64_t key = int64_t(heads + h / group) * dim, value = key + int64_t(kv_heads) * dim;
      std::vector<double> weights(size_t(t) + 1);
      double total = 0;
      for (int s = 0; s <= t; ++s) {
        double score = 0;
        for (int d = 0; d < dim; ++d) score += at(t, int64_t(h) * dim + d) * at(s, key + d);
        total += weights[size_t(s)] = std::exp(score * scale);
      }
      for (int d = 0; d < dim; d += 7) {
        double sum = 0;
        for (int s = 0; s <= t; ++s) sum += weights[size_t(s)] / total * at(s, value + d);
        const double got = out[size_t((int64_t(t) * heads + h) * dim + d)];
        expect(std::fabs(got - sum) < bound, "attention of " + std::to_string(int(elem)) +
                                                 ", token " + std::to_string(t) + ": " +
                                                 text(got) + ", not " + text(sum));
      }
    }
}

void check_norm(int64_t cols, Pool& pool, std::mt19937& rng) {
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
void check_columns(int64_t cols, Pool& pool, std::mt19937& rng) {
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

}  // namespace

int main() {
#if defined(__AMX_TILE__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    std::perror("arch_prctl");
    return 1;
  }
#endif
  std::mt19937 rng(7);
  check_arithmetic(rng);
  check_conversion<bf16>("bfloat16", rng);
  check_conversion<f16>("float16", rng);
  check_functions();
  for (const int threads : {1, 3}) {
    Pool pool(threads, false);
    for (const int64_t cols : {1, 16, 45, 200}) check_norm(cols, pool, rng);
    for (const int64_t cols : {1, 16, 45, 200}) check_columns(cols, pool, rng);
    for (const int bits : {8, 4})
      for (const int64_t group : {32, 64, 0})
        for (const bool zero_points : {false, true})
          for (const int64_t rows : {1, 2, 3, 4, 5, 9, 18}) {
            check_int_product(bits, group, zero_points, 35, 200, rows, rows % 2 == 0, pool, rng);
            check_int_product(bits, group, zero_points, 16, 96, rows, rows % 2 == 1, pool, rng);
          }
    for (const bool zero_points : {false, true})
      check_int_product(8, 0, zero_points, 20, 6000, 3, false, pool, rng);
    for (const Elem elem : {Elem::f32, Elem::f16, Elem::bf16}) {
      check_attention(elem, 4, 2, 64, 70, pool, rng);
      check_attention(elem, 3, 3, 20, 300, pool, rng);
    }
  }
  std::printf("%s: %d failures\n", failures ? "FAILED" : "passed", failures);
  return failures != 0;
}
