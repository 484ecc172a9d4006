#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "amx.h"
#include "memory.h"
#include "pool.h"
#include "simd.h"

namespace penstock {
namespace {

constexpr double kSeconds = 0.5;  // of measuring, per figure
constexpr int kRounds = 4096;     // of the inner loop, between two looks at the clock

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Keeps the compiler from dropping a computation whose result nobody reads.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Hides what a value is, so that equal computations on several are not done once for all.
template <class T>
void hide(T& value) {
  asm volatile("" : "+m"(value));
}

// The sum of rates of all threads running `round`, which does `operations` each call. Threads
// overlap for the whole time: none starts before all are there.
template <class Make>
double rate(int threads, double operations, Make make) {
  Pool pool(threads, true);
  std::vector<double> rates(static_cast<size_t>(threads));
  pool.run([&](Worker& worker) {
    auto round = make();
    round();  // wide units may need to power up
    worker.barrier->wait(worker);
    const double start = now();
    double elapsed = 0;
    int64_t calls = 0;
    do {
      round();
      ++calls;
      elapsed = now() - start;
    } while (elapsed < kSeconds);
    rates[size_t(worker.id)] = operations * double(calls) / elapsed;
  });
  double total = 0;
  for (double r : rates) total += r;
  return total;
}

#if defined(__AMX_TILE__)
struct Tiles {
  Tiles() {
    TileConfig config;
    for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
    config.load();
    // Four sums of two left and two right operands: what a product kernel keeps in its tiles.
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
[[maybe_unused]] constexpr int kSums = 12;  // of 16 registers
#else
[[maybe_unused]] constexpr int kSums = 24;  // of 32
#endif

}  // namespace

double measure_read_bandwidth(size_t bytes, int threads) {
  constexpr int64_t kStride = 4 * f32x16::lanes;
  const int64_t rows = std::max<int64_t>(threads, int64_t(bytes / (kStride * sizeof(float))));
  Memory memory(size_t(rows * kStride) * sizeof(float));
  float* data = reinterpret_cast<float*>(memory.data());
  Pool pool(threads, true);
  pool.run([&](Worker& worker) {  // written, or every page would be the one zero page
    const Share mine = share(rows, worker);
    std::fill(data + mine.begin * kStride, data + mine.end * kStride, 1.0f);
  });
  // How far ahead to ask for a line decides how many are under way, and where memory is far away
  // the hardware alone asks for too few: a plain loop read 21 GB/s where kernels that prefetch
  // got 24 (two cores). The ceiling is what the best of these distances reads.
  constexpr int64_t kAhead[] = {0, 1024, 2048, 4096};  // floats
  double best = 0, total = 0;
  for (int pass = 0; pass < 12 || total < kSeconds; ++pass) {
    const int64_t ahead = kAhead[pass % 4];
    const double start = now();
    pool.run([&](Worker& worker) {
      const Share mine = share(rows, worker);
      f32x16 sums[4] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int c = 0; c < 4; ++c) {
          const float* line = data + i * kStride + c * f32x16::lanes;
          if (ahead != 0) __builtin_prefetch(line + ahead);
          sums[c] += f32x16::load(line);
        }
      keep(sums);
    });
    const double elapsed = now() - start;
    best = std::max(best, double(memory.bytes()) / elapsed);
    total += elapsed;
  }
  return best;
}

double measure_bf16_flops(int threads) {
#if defined(__AMX_BF16__)
  struct Round {
    Tiles tiles;
    void operator()() {
      for (int i = 0; i < kRounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  };
  return rate(threads, 2.0 * 16 * 16 * 32 * 4 * kRounds, [] { return Round(); });
#elif defined(__AVX512BF16__)
  return rate(threads, 2.0 * 32 * kSums * kRounds, [] {
    return [] {
      f32x16 sums[kSums] = {};
      hide(sums);
      __m512i row = _mm512_setzero_si512();
      for (int i = 0; i < kRounds; ++i) {
        asm volatile("" : "+v"(row));
#pragma GCC unroll 32
        for (f32x16& sum : sums) sum = dpbf16(sum, row, 0);
      }
      keep(sums);
    };
  });
#else
  constexpr int kHalf = kSums / 2;  // each two registers or more
  return rate(threads, 2.0 * 16 * kHalf * kRounds, [] {
    return [] {
      f32x16 sums[kHalf] = {};
      hide(sums);
      const f32x16 a = f32x16::broadcast(0.5f);
      for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
        for (f32x16& sum : sums) sum = fma(sum, a, a);
      }
      keep(sums);
    };
  });
#endif
}

double measure_int8_ops(int threads) {
#if defined(__AMX_INT8__)
  struct Round {
    Tiles tiles;
    void operator()() {
      for (int i = 0; i < kRounds; ++i) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
      }
    }
  };
  return rate(threads, 2.0 * 16 * 16 * 64 * 4 * kRounds, [] { return Round(); });
#elif defined(__AVX512VNNI__)
  return rate(threads, 2.0 * 64 * kSums * kRounds, [] {
    return [] {
      __m512i sums[kSums] = {};
      hide(sums);
      __m512i a = _mm512_set1_epi8(1);
      for (int i = 0; i < kRounds; ++i) {
        asm volatile("" : "+v"(a));
#pragma GCC unroll 32
        for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
      }
      keep(sums);
    };
  });
#elif defined(__AVXVNNI__)
  return rate(threads, 2.0 * 32 * kSums * kRounds, [] {
    return [] {
      __m256i sums[kSums] = {};
      hide(sums);
      __m256i a = _mm256_set1_epi8(1);
      for (int i = 0; i < kRounds; ++i) {
        asm volatile("" : "+x"(a));
#pragma GCC unroll 32
        for (__m256i& sum : sums) sum = _mm256_dpbusd_avx_epi32(sum, a, a);
      }
      keep(sums);
    };
  });
#elif defined(__ARM_FEATURE_DOTPROD)
  return rate(threads, 2.0 * 16 * kSums * kRounds, [] {
    return [] {
      int32x4_t sums[kSums] = {};
      hide(sums);
      int8x16_t a = vdupq_n_s8(1);
      for (int i = 0; i < kRounds; ++i) {
        asm volatile("" : "+w"(a));
#pragma GCC unroll 32
        for (int32x4_t& sum : sums) sum = vdotq_s32(sum, a, a);
      }
      keep(sums);
    };
  });
#elif defined(__AVX2__)
  return rate(threads, 2.0 * 32 * kSums * kRounds, [] {
    return [] {
      __m256i sums[kSums] = {};
      hide(sums);
      __m256i a = _mm256_set1_epi8(1);
      const __m256i ones = _mm256_set1_epi16(1);
      for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
        for (__m256i& sum : sums) {
          asm volatile("" : "+x"(a));  // or one product would serve all sums
          const __m256i pairs = _mm256_maddubs_epi16(a, a);
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
      }
      keep(sums);
    };
  });
#else
  (void)threads;
  return 0;
#endif
}

}  // namespace penstock
