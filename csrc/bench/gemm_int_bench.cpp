// Measures products with quantized weights on one instruction set. Not installed; tests/ checks them.
//
//   gemm_int_bench [threads [NAME]]   decode GB/s beside a plain read of the same bytes, prefill TOP/s
//   gemm_int_bench rates [ROWS [THREADS [NAME]]]
//                                     GB/s of weights, and of it the part of what a plain read and of what a
//                                     product of bfloat16 reads in the same turns
//
// of the kinds whose names begin with NAME: grid8, "int4 by 64", "sparse8 by 0", Q4_K, with z: zero points, with w:
// weights alone are quantized, x is in bfloat16.
//
// Times are of the processor (thread 0), so that other load on the machine shows less.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "read_loop.h"
#include "../kernels/gemm_block.h"
#include "../kernels/gemm_cuts.h"
#include "../kernels/gemm_grid.h"
#include "../kernels/gemm_int.h"
#include "../kernels/gemm_int_sparse.h"
#include "../memory.h"
#include "../pool.h"
#include "../simd.h"

using namespace penstock;

namespace {

double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class F>
double best_of(int runs, F&& f) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double start = seconds();
    f();
    best = std::min(best, seconds() - start);
  }
  return best;
}

struct Shape {
  const char* name;
  int64_t n, k;
  bool gated;
};

template <class Matrix>
void speed(int threads, const char* name, Matrix w) {
  Pool pool(threads, true);
  const Shape shapes[] = {{"qkv", 3072, 2048, false}, {"gate_up", 8192, 2048, true},
                          {"down", 2048, 8192, false}};
  std::vector<float> sink(static_cast<size_t>(threads) * 16);
  for (const Shape& s : shapes) {
    w.n = s.n;
    w.k = s.k;
    w.gated = s.gated;
    const size_t bytes = packed_bytes(w);
    // Enough copies that no cache holds them; the system's last-level cache may be very large.
    const size_t copies = std::max<size_t>(1, (size_t(1) << 30) / bytes);
    Memory panels(bytes * copies);
    std::memset(panels.data(), 0, panels.bytes());  // zeros are scales as good as any
    constexpr int64_t kMost = 512;
    std::mt19937 rng(1);
    std::vector<float> x(size_t(kMost * s.k)), out(size_t(kMost * s.n));
    std::vector<bf16> narrow(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = float(int(rng() % 17)) - 8;
      narrow[i] = to_bf16(x[i]);
    }
    w.panels = panels.data();
    pool.reserve_scratch(linear_scratch_bytes(w, kMost));
    const Memory shared(linear_shared_bytes(w, kMost));
    size_t next = 0;
    const auto product = [&](int64_t rows) {
      w.panels = panels.data() + (next++ % copies) * bytes;
      const Array in = w.weight_only
                           ? Array{reinterpret_cast<std::byte*>(narrow.data()), Elem::bf16, s.k}
                           : Array{reinterpret_cast<std::byte*>(x.data()), Elem::f32, s.k};
      const Array result{reinterpret_cast<std::byte*>(out.data()), Elem::f32, s.n};
      pool.run([&](Worker& worker) {
        linear(w, in, result, rows, Activation::silu, shared.data(), worker);
      });
    };
    const auto read = [&] {
      const std::byte* from = panels.data() + (next++ % copies) * bytes;
      pool.run([&](Worker& worker) {
        const size_t share = bytes / 64 / size_t(worker.count) * 64;
        read_bytes(from + share * size_t(worker.id), share, &sink[size_t(worker.id) * 16]);
      });
    };
    double read_time = 1e9, one = 1e9;
    for (int round = 0; round < 5; ++round) {
      read_time = std::min(read_time, best_of(4, read));
      one = std::min(one, best_of(4, [&] { product(1); }));
    }
    std::printf("%-15s %-8s read %5.1f GB/s, M=1 %5.1f GB/s (%3.0f %%)", name, s.name,
                double(bytes) / read_time * 1e-9, double(bytes) / one * 1e-9,
                100 * read_time / one);
    const double operations = 2.0 * double(s.n) * double(s.k) * (s.gated ? 2 : 1);
    for (const int64_t rows : {2, 4, 8, 16, 32, 128, 512}) {
      const double time = best_of(rows > 100 ? 4 : 8, [&] { product(rows); });
      std::printf("  M=%ld %.3f", long(rows), operations * double(rows) / time * 1e-12);
    }
    std::printf(" TOP/s\n");
    std::fflush(stdout);
  }
}

// Calls f(name, matrix) of each kind whose name begins with `only`.
template <class F>
void for_each_kind(const std::string& only, F&& f) {
  const auto named = [&](const std::string& name, auto w) {
    if (name.find(only) == 0) f(name.c_str(), w);
  };
  for (const int bits : {8, 4})
    for (const bool weight_only : {false, true})
      named("grid" + std::to_string(bits) + (weight_only ? " w" : ""),
            GridMatrix{bits, 0, 0, false, {}, {}, weight_only});
  for (const int bits : {8, 4})
    for (const int64_t group : {32, 64, 128, 0})
      for (const bool zero_points : {false, true})
        for (const bool weight_only : {false, true})
          named("int" + std::to_string(bits) + " by " + std::to_string(group) +
                    (zero_points ? " z" : "") + (weight_only ? " w" : ""),
                IntMatrix{bits, group, 0, 0, false, {}, {}, zero_points, weight_only});
  for (const int bits : {8, 4})
    for (const int64_t group : {32, 64, 128, 0})
      for (const bool zero_points : {false, true})
        if (expands_sparse())
          named("sparse" + std::to_string(bits) + " by " + std::to_string(group) +
                    (zero_points ? " z" : ""),
                IntMatrix{bits, group, 0, 0, false, {}, {}, zero_points, false, true});
  constexpr std::pair<const char*, WeightFormat> kBlocks[] = {
      {"Q4_0", WeightFormat::q4_0},     {"Q4_1", WeightFormat::q4_1},
      {"Q5_0", WeightFormat::q5_0},     {"Q5_1", WeightFormat::q5_1},
      {"Q8_0", WeightFormat::q8_0},     {"Q2_K", WeightFormat::q2_k},
      {"Q3_K", WeightFormat::q3_k},     {"Q4_K", WeightFormat::q4_k},
      {"Q5_K", WeightFormat::q5_k},     {"Q6_K", WeightFormat::q6_k},
      {"IQ4_NL", WeightFormat::iq4_nl}, {"IQ4_XS", WeightFormat::iq4_xs},
      {"MXFP4", WeightFormat::mxfp4},   {"NVFP4", WeightFormat::nvfp4},
      {"FP8_128", WeightFormat::fp8_128}, {"FP8_32", WeightFormat::fp8_32},
      {"MXFP8", WeightFormat::mxfp8},   {"NF4", WeightFormat::nf4},
      {"FP4", WeightFormat::fp4},       {"NVFP4_SCALED", WeightFormat::nvfp4_scaled}};
  for (const auto& [format, id] : kBlocks)
    for (const bool weight_only : {false, true})
      if (weight_only || has_whole_points(id))
        named(std::string(format) + (weight_only ? " w" : ""),
              BlockMatrix{id, 0, 0, false, {}, {}, weight_only});
}

// Turns of reading, of a product in bfloat16 and of the kind's follow each other, each of other bytes than
// the last, so that neighbours slow all three; of each the best turn counts.
class Rates {
 public:
  Rates(int64_t rows, int threads)
      : rows_(rows),
        pool_(threads, true),
        memory_(kBytes),
        x_(size_t(rows * kMostDepth)),
        out_(size_t(rows * kMostColumns)),
        sinks_(size_t(threads) * 16) {
    // Numbers of a usual size in every format: of zeros, MXFP4 would make subnormal scales.
    std::memset(memory_.data(), 0x3c, memory_.bytes());
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = to_bf16(float(int(i * 7 % 17)) - 8);
  }

  void run(const std::string& only) {
    std::printf("%-15s  GB/s, %% of a plain read, %% of bfloat16\n%-15s", "", "");
    for (const auto& [n, k] : kShapes)
      std::printf("  %6ld x %-6ld  ", long(n), long(k));
    std::printf("  from L2\n");
    for_each_kind(only, [&](const char* name, auto w) {
      std::printf("%-15s", name);
      for (const auto& [n, k] : kShapes) {
        w.n = n;
        w.k = k;
        const PackedMatrix floats{Elem::bf16, n, k, false, {}, {}};
        reserve(floats);
        reserve(w);
        Rate read{size_t(n * k)}, plain{packed_bytes(Elem::bf16, n, k, false)}, own{packed_bytes(w)};
        for (int turn = 0; turn < 12; ++turn) {
          take(read, [&](const std::byte* from, Worker& worker) {
            const size_t share = read.bytes / 64 / size_t(worker.count) * 64;
            read_bytes(from + share * size_t(worker.id), share, &sinks_[size_t(worker.id) * 16]);
          });
          take(plain, [&](const std::byte* from, Worker& worker) { product(floats, from, worker); });
          take(own, [&](const std::byte* from, Worker& worker) { product(w, from, worker); });
        }
        std::printf("  %5.1f %4.0f %4.0f  ", own.rate(), 100 * own.rate() / read.rate(),
                    100 * own.rate() / plain.rate());
      }
      w.n = kCached.first;
      w.k = kCached.second;
      reserve(w);
      Rate cached{packed_bytes(w)};
      for (int turn = 0; turn < 12; ++turn)
        take(cached, [&](const std::byte*, Worker& worker) { product(w, memory_.data(), worker); });
      std::printf("  %5.1f\n", cached.rate());
      std::fflush(stdout);
    });
  }

 private:
  static constexpr std::pair<int64_t, int64_t> kShapes[] = {{2048, 2048}, {6144, 2048}, {2048, 6144}};
  static constexpr std::pair<int64_t, int64_t> kCached{256, 2048};  // read again and again
  static constexpr int64_t kMostColumns = 6144, kMostDepth = 6144;
  static constexpr size_t kBytes = size_t(512) << 20;  // that no cache holds
  static constexpr size_t kTurn = size_t(24) << 20;

  struct Rate {
    size_t bytes;  // of a matrix
    double best = 1e9;
    double rate() const { return double(bytes) / best * 1e-9; }
  };

  // A turn, one matrix after the other as in a step.
  template <class F>
  void take(Rate& rate, F&& f) {
    const size_t stride = (rate.bytes + 4095) / 4096 * 4096;
    const size_t count = (kTurn + rate.bytes - 1) / rate.bytes;
    if (next_ + count * stride > kBytes) next_ = 0;
    const double start = seconds();
    pool_.run([&](Worker& worker) {
      for (size_t i = 0; i < count; ++i) {
        f(memory_.data() + next_ + i * stride, worker);
        worker.barrier->wait(worker);
      }
    });
    rate.best = std::min(rate.best, (seconds() - start) / double(count));
    next_ += count * stride;
  }
  template <class Matrix>
  void reserve(const Matrix& w) {
    pool_.reserve_scratch(linear_scratch_bytes(w, rows_));
    const size_t shared = linear_shared_bytes(w, rows_);
    if (shared > shared_.bytes()) shared_ = Memory(shared);
  }
  template <class Matrix>
  void product(Matrix w, const std::byte* panels, Worker& worker) {
    w.panels = panels;
    const Array in{reinterpret_cast<std::byte*>(x_.data()), Elem::bf16, w.k};
    const Array result{reinterpret_cast<std::byte*>(out_.data()), Elem::f32, w.n};
    linear(w, in, result, rows_, Activation::none, shared_.data(), worker);
  }

  const int64_t rows_;
  Pool pool_;
  const Memory memory_;
  Memory shared_{64};
  std::vector<bf16> x_;
  std::vector<float> out_, sinks_;
  size_t next_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
#if defined(__AMX_INT8__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    std::perror("arch_prctl");
    return 1;
  }
#endif
  const bool rates = argc > 1 && !std::strcmp(argv[1], "rates");
  const std::vector<std::string> rest(argv + std::min(argc, rates ? 2 : 1), argv + argc);
  const auto number = [&](size_t i) { return i < rest.size() ? std::stoi(rest[i]) : 1; };
  const auto name = [&](size_t i) { return i < rest.size() ? rest[i] : std::string(); };
  if (rates) Rates(number(0), number(1)).run(name(2));
  else for_each_kind(name(1), [&](const char* kind, auto w) { speed(number(0), kind, w); });
  return 0;
}
