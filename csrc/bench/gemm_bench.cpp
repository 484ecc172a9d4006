// Checks and measures the matrix products of one instruction set. Not installed.
//
//   gemm_bench check             against float64, row invariance, containment of NaN
//   gemm_bench speed [threads]   decode GB/s beside a plain read of the same bytes, prefill TFLOP/s
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "read_loop.h"
#include "../kernels/gemm.h"
#include "../pool.h"
#include "../simd.h"

using namespace penstock;

namespace {

struct Memory {  // zeroed, on huge pages where the system allows
  std::byte* data;
  size_t bytes;

  explicit Memory(size_t n) : bytes((n + (2 << 20) - 1) >> 21 << 21) {
    void* p = mmap(nullptr, bytes + (2 << 20), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    data = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + (2 << 20) - 1) >> 21
                                        << 21);
    if (!std::getenv("SMALL_PAGES")) madvise(data, bytes, MADV_HUGEPAGE);
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(data, bytes); }
};

void grant_tiles() {
#if defined(__AMX_BF16__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    std::perror("arch_prctl");
    std::exit(1);
  }
#endif
}

void store(Elem elem, std::byte* to, int64_t i, float value) {
  if (elem == Elem::f32) reinterpret_cast<float*>(to)[i] = value;
  if (elem == Elem::bf16) reinterpret_cast<bf16*>(to)[i] = to_bf16(value);
  if (elem == Elem::f16) reinterpret_cast<f16*>(to)[i] = to_f16(value);
}

float value(Elem elem, const std::byte* from, int64_t i) {
  if (elem == Elem::f32) return reinterpret_cast<const float*>(from)[i];
  if (elem == Elem::bf16) return to_f32(reinterpret_cast<const bf16*>(from)[i]);
  return to_f32(reinterpret_cast<const f16*>(from)[i]);
}

// --- check -----------------------------------------------------------------------------------

double gate_value(Activation a, double x) {
  if (a == Activation::silu) return x / (1 + std::exp(-x));
  if (a == Activation::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  if (a == Activation::gelu_tanh)
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x;
}

struct Case {
  Elem w, x, out;
  int64_t n, k, m;
  bool gated, bias;
  Activation gate;
};

int failures = 0;

void fail(const Case& c, const std::string& what) {
  if (++failures > 20) return;
  std::printf("FAIL w%d x%d out%d n=%ld k=%ld m=%ld gated=%d: %s\n", int(c.w), int(c.x),
              int(c.out), long(c.n), long(c.k), long(c.m), c.gated, what.c_str());
}

void check(const Case& c, std::vector<std::unique_ptr<Pool>>& pools, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  const int64_t columns = c.gated ? 2 * c.n : c.n;
  std::vector<std::byte> w(size_t(columns * c.k) * elem_bytes(c.w));
  std::vector<std::byte> x(size_t(c.m * c.k) * elem_bytes(c.x));
  std::vector<float> bias(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns * c.k; ++i) store(c.w, w.data(), i, normal(rng));
  for (int64_t i = 0; i < c.m * c.k; ++i) store(c.x, x.data(), i, normal(rng));
  for (float& b : bias) b = normal(rng);

  Memory panels(packed_bytes(c.w, c.n, c.k, c.gated));
  std::memset(panels.data, 0xff, panels.bytes);  // padding must be written, not found
  const size_t row_bytes = size_t(c.k) * elem_bytes(c.w);
  pools.back()->run([&](Worker& worker) {
    if (c.gated) {
      for (int part = 0; part < 2; ++part)
        pack_part(c.w, w.data() + size_t(part * c.n) * row_bytes, c.n, c.k, gated_part(part),
                  panels.data, worker);
    } else {
      const int64_t cut = c.n / 3;  // two parts that share a panel
      if (cut)
        pack_part(c.w, w.data(), cut, c.k, joined_part(0, cut, c.n), panels.data, worker);
      pack_part(c.w, w.data() + size_t(cut) * row_bytes, c.n - cut, c.k,
                joined_part(cut, c.n - cut, c.n), panels.data, worker);
    }
  });
  const PackedMatrix matrix{c.w, c.n, c.k, c.gated, panels.data, c.bias ? bias.data() : nullptr};

  const size_t out_row = size_t(c.n) * elem_bytes(c.out);
  const size_t x_row = size_t(c.k) * elem_bytes(c.x);
  const auto product = [&](Pool& pool, int64_t first, int64_t rows, std::vector<std::byte>& from) {
    std::vector<std::byte> result(size_t(rows) * out_row + 64, std::byte{0x5a});
    const Array in{from.data() + size_t(first) * x_row, c.x, c.k};
    const Array out{result.data(), c.out, c.n};
    pool.reserve_scratch(linear_scratch_bytes(matrix, rows));
    const Memory shared(linear_shared_bytes(matrix, rows) + 1);
    pool.run([&](Worker& worker) { linear(matrix, in, out, rows, c.gate, shared.data, worker); });
    for (size_t i = size_t(rows) * out_row; i < result.size(); ++i)
      if (result[i] != std::byte{0x5a}) fail(c, "wrote past the end");
    return result;
  };
  std::vector<std::byte> whole = product(*pools[0], 0, c.m, x);

  // Error of a chain of k float32 additions (and of the bf16 result, one half in the last place).
  for (int64_t r = 0; r < c.m; ++r)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum[2] = {0, 0}, size[2] = {0, 0};
      for (int part = 0; part < (c.gated ? 2 : 1); ++part) {
        const int64_t column = part * c.n + j;
        for (int64_t i = 0; i < c.k; ++i) {
          const double term =
              double(value(c.w, w.data(), column * c.k + i)) * value(c.x, x.data(), r * c.k + i);
          sum[part] += term;
          size[part] += std::fabs(term);
        }
        if (c.bias) sum[part] += bias[size_t(column)], size[part] += std::fabs(bias[size_t(column)]);
      }
      const double eps = 0x1p-24 * (double(c.k) + 4);
      double expected = sum[0], error = eps * size[0];
      if (c.gated) {
        const double g = gate_value(c.gate, sum[0]);
        error = 1.2 * error * (std::fabs(sum[1]) + eps * size[1]) + eps * size[1] * std::fabs(g) +
                1e-5 * std::fabs(g * sum[1]);
        expected = g * sum[1];
      }
      if (c.out == Elem::bf16) error += std::fabs(expected) * 0x1p-8;
      const double got = value(c.out, whole.data(), r * c.n + j);
      if (!(std::fabs(got - expected) <= error + 1e-30))
        fail(c, "row " + std::to_string(r) + " column " + std::to_string(j) + " is " +
                    std::to_string(got) + ", not " + std::to_string(expected));
    }

  // The same bits on any number of threads, in any batch, at any position.
  for (size_t i = 1; i < pools.size(); ++i)
    if (product(*pools[i], 0, c.m, x) != whole) fail(c, "threads change the result");
  std::vector<int64_t> counts = {1, 2, 3, 5, 7, 16, 17, 31, 33, c.m - 1};
  for (const int64_t rows : counts) {
    if (rows < 1 || rows > c.m) continue;
    for (const int64_t first : {int64_t(0), (c.m - rows) / 2, c.m - rows}) {
      const std::vector<std::byte> part = product(*pools[size_t(rows) % pools.size()], first, rows, x);
      if (std::memcmp(part.data(), whole.data() + size_t(first) * out_row, size_t(rows) * out_row))
        fail(c, std::to_string(rows) + " rows from " + std::to_string(first) + " differ");
    }
  }

  // A NaN or infinity stays in its row.
  if (c.m > 2) {
    std::vector<std::byte> poisoned = x;
    for (int64_t i = 0; i < c.k; ++i)
      store(c.x, poisoned.data(), (c.m / 2) * c.k + i, i % 2 ? INFINITY : NAN);
    std::vector<std::byte> result = product(*pools[0], 0, c.m, poisoned);
    const size_t at = size_t(c.m / 2) * out_row;
    std::memcpy(result.data() + at, whole.data() + at, out_row);
    if (result != whole) fail(c, "NaN reached another row");
  }
}

void check_all() {
  std::mt19937 rng(20);
  std::vector<std::unique_ptr<Pool>> pools;
  for (const int threads : {1, 2, 3, 7})
    pools.push_back(std::make_unique<Pool>(threads, false));
  int cases = 0;
  const auto run = [&](const Case& c) {
    check(c, pools, rng);
    ++cases;
  };
  for (const Elem w : {Elem::f32, Elem::bf16, Elem::f16})
    for (const Elem x : {Elem::f32, Elem::bf16}) {
      for (const int64_t n : {1, 15, 17, 33, 80})
        for (const int64_t k : {1, 2, 31, 80, 96, 688})
          run({w, x, k % 2 ? Elem::bf16 : Elem::f32, n, k, 1 + (n * 7 + k) % 40, k % 3 == 0,
               n % 2 == 1, Activation(k % 4)});
      for (int64_t m = 1; m <= 40; m += 3)
        run({w, x, Elem::f32, 49, 70, m, m % 2 == 0, true, Activation(m % 4)});
      run({w, x, Elem::f32, 130, 2100, 300, false, false, Activation::none});  // several slices
      run({w, x, Elem::bf16, 70, 2100, 300, true, true, Activation::silu});
      run({w, x, Elem::f32, 20, 300, 1100, false, false, Activation::none});  // several row blocks
    }
  std::printf("%d cases, %d failures\n", cases, failures);
}

// --- speed -----------------------------------------------------------------------------------

// Of the calling thread on a core: time that other programs take from it does not count.
double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The least seconds of `runs` calls of work(worker), each of which takes its slowest thread's.
template <class F>
double best_of(int runs, Pool& pool, F&& work) {
  double best = 1e9;
  std::vector<double> spent(size_t(pool.threads()));
  for (int i = 0; i < runs; ++i) {
    pool.run([&, turn = i](Worker& worker) {
      const double start = seconds();
      work(worker, turn);
      spent[size_t(worker.id)] = seconds() - start;
    });
    best = std::min(best, *std::max_element(spent.begin(), spent.end()));
  }
  return best;
}

struct Shape {
  const char* name;
  int64_t n, k;
  bool gated;
};

void speed(int threads, Elem elem, Elem x_elem) {
  Pool pool(threads, true);
  const Shape shapes[] = {{"qkv", 3072, 2048, false},  {"o", 2048, 2048, false},
                          {"gate_up", 8192, 2048, true}, {"down", 2048, 8192, false},
                          {"head", 32064, 2048, false}};
  std::vector<float> sink(static_cast<size_t>(threads) * 16);
  for (const Shape& s : shapes) {
    const size_t bytes = packed_bytes(elem, s.n, s.k, s.gated);
    // Enough copies that no cache holds them; the system's last-level cache may be very large.
    const size_t copies = std::max<size_t>(1, (size_t(1) << 30) / bytes);
    Memory panels(bytes * copies);
    std::memset(panels.data, 0, panels.bytes);
    std::mt19937 rng(1);
    for (size_t i = 0; i < bytes * copies / 2; i += 97)
      reinterpret_cast<uint16_t*>(panels.data)[i] = uint16_t(0x3c00 | (rng() & 0x80ff));
    const int64_t most = 512;
    const Elem out_elem = s.gated ? x_elem : Elem::f32;
    const Memory x(size_t(most * s.k) * 4), out(size_t(most * s.n) * 4);  // as in the arena
    for (int64_t i = 0; i < most * s.k; ++i)
      store(x_elem, x.data, i, float(int(rng() % 17)) - 8);
    const PackedMatrix all{elem, s.n, s.k, s.gated, panels.data, nullptr};
    pool.reserve_scratch(linear_scratch_bytes(all, most));
    const Memory shared(linear_shared_bytes(all, most) + 1);
    const auto product = [&](int64_t rows) {
      return [&, rows](Worker& worker, int turn) {
        const std::byte* own = panels.data + size_t(turn) % copies * bytes;
        const PackedMatrix w{elem, s.n, s.k, s.gated, own, nullptr};
        const Array in{x.data, x_elem, s.k};
        const Array result{out.data, out_elem, s.n};
        linear(w, in, result, rows, Activation::silu, shared.data, worker);
      };
    };
    const auto read = [&](Worker& worker, int turn) {
      const std::byte* from = panels.data + size_t(turn) % copies * bytes;
      const size_t share = bytes / 64 / size_t(worker.count) * 64;
      read_bytes(from + share * size_t(worker.id), share, &sink[size_t(worker.id) * 16]);
    };
    double read_time = 1e9, one = 1e9;
    for (int round = 0; round < 5; ++round) {
      read_time = std::min(read_time, best_of(8, pool, read));
      one = std::min(one, best_of(8, pool, product(1)));
    }
    std::printf("%-8s threads %d: read %5.1f GB/s, M=1 %5.1f GB/s (%3.0f %%)", s.name, threads,
                double(bytes) / read_time * 1e-9, double(bytes) / one * 1e-9,
                100 * read_time / one);
    const double flops = 2.0 * double(s.n) * double(s.k) * (s.gated ? 2 : 1);
    for (const int64_t rows : {4, 16, 64, 128, 512}) {
      const double time = best_of(rows > 100 ? 6 : 12, pool, product(rows));
      std::printf("  M=%ld %.3f", long(rows), flops * double(rows) / time * 1e-12);
    }
    std::printf(" TFLOP/s\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "check";
  grant_tiles();
  if (what == "check") {
    check_all();
    return failures != 0;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool wide = argc > 3 && std::string(argv[3]) == "f32";
  for (int t = threads ? threads : 1; t <= (threads ? threads : 2); ++t)
    speed(t, wide ? Elem::f32 : Elem::bf16, wide ? Elem::f32 : Elem::bf16);
  return 0;
}
