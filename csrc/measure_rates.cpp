#include <cstdint>
#include <utility>
#include <vector>

#include "amx.h"
#include "measure.h"
#include "measure_settle.h"
#include "pool.h"
#include "simd.h"

namespace penstock {
namespace {

constexpr int kRounds = 4096;  // of the inner loop, between two looks at the clock

#if defined(__AVX512F__)
constexpr int kRegisters = 32;
typedef __m512 Floats;
typedef __m512i Bytes;
#define PENSTOCK_IN_REGISTER "+v"
#elif defined(__AVX2__)
constexpr int kRegisters = 16;
typedef __m256 Floats;
typedef __m256i Bytes;
#define PENSTOCK_IN_REGISTER "+x"
#elif defined(__aarch64__)
constexpr int kRegisters = 32;
typedef float32x4_t Floats;
typedef int32x4_t Bytes;
#define PENSTOCK_IN_REGISTER "+w"
#else
constexpr int kRegisters = 16;
typedef float Floats __attribute__((vector_size(16)));
#if defined(__SSE2__)
#define PENSTOCK_IN_REGISTER "+x"
#else
#define PENSTOCK_IN_REGISTER "+m"
#endif
#endif

// As many sums as registers hold beside three operands: more than any of these instructions takes
// cycles, times those that start in one. One more, and sums would be kept in memory.
constexpr int kSums = kRegisters - 4;

// Hides what a value is, so that equal computations on several are not done once for all, and keeps it in
// a register meanwhile.
template <class T>
PENSTOCK_INLINE void hide(T& value) {
  asm volatile("" : PENSTOCK_IN_REGISTER(value));
}

// Calls step(sum) on each of the sums, kRounds times. The compiler sees each by a number of its own, as an
// array with a variable index would lie in memory.
template <class T, class F, size_t... I>
PENSTOCK_INLINE void repeat(std::index_sequence<I...>, F&& step) {
  T sums[] = {(void(I), T{})...};
  (hide(sums[I]), ...);
  for (int i = 0; i < kRounds; ++i) (step(sums[I]), ...);
  (hide(sums[I]), ...);
}

// The rate of threads that call a `round` of `operations` again and again. Samples begin with all
// threads there, so that these overlap. make(): a round, for one thread.
template <class Make>
Measured rate(int threads, double seconds, double operations, Make make) {
  Pool pool(threads, true);
  std::vector<double> rates(static_cast<size_t>(threads));
  return settle(seconds, [&] {
    pool.run([&](Worker& worker) {
      auto round = make();
      worker.barrier->wait(worker);
      const double start = seconds_now();
      double elapsed = 0;
      int64_t calls = 0;
      do {
        round();
        ++calls;
        elapsed = seconds_now() - start;
      } while (elapsed < kSampleSeconds);
      rates[size_t(worker.id)] = operations * double(calls) / elapsed;
    });
    double total = 0;
    for (const double one : rates) total += one;
    return total;
  });
}

// `operations` of a step on one sum.
template <class T, class F>
Measured rate_of(int threads, double seconds, double operations, F step) {
  return rate(threads, seconds, operations * kSums * kRounds, [step] {
    return [step] { repeat<T>(std::make_index_sequence<kSums>(), step); };
  });
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

}  // namespace

Measured measure_f32(int threads, double seconds) {
  constexpr double kOperations = 2.0 * sizeof(Floats) / sizeof(float);
  return rate_of<Floats>(threads, seconds, kOperations, [](Floats& sum) __attribute__((always_inline)) {
    Floats a = Floats{} + 0.5f;  // sums come to 1
#if defined(__AVX512F__)
    sum = _mm512_fmadd_ps(sum, a, a);
#elif defined(__AVX2__)
    sum = _mm256_fmadd_ps(sum, a, a);
#elif defined(__aarch64__)
    sum = vfmaq_f32(a, sum, a);
#else
    sum = sum * a + a;
#endif
  });
}

Measured measure_bf16(int threads, double seconds) {
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
  return rate(threads, seconds, 2.0 * 16 * 16 * 32 * 4 * kRounds, [] { return Round(); });
#elif defined(__AVX512BF16__)
  return rate_of<Floats>(threads, seconds, 2.0 * 32, [](Floats& sum) __attribute__((always_inline)) {
    const __m512bh zeros = std::bit_cast<__m512bh>(_mm512_setzero_si512());
    sum = _mm512_dpbf16_ps(sum, zeros, zeros);
    hide(sum);  // or nothing would be added
  });
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return rate_of<Floats>(threads, seconds, 2.0 * 16, [](Floats& sum) __attribute__((always_inline)) {
    const bfloat16x8_t zeros = vreinterpretq_bf16_u8(vdupq_n_u8(0));
    sum = vbfmmlaq_f32(sum, zeros, zeros);
    hide(sum);
  });
#else
  return measure_f32(threads, seconds);
#endif
}

Measured measure_int8(int threads, double seconds) {
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
  return rate(threads, seconds, 2.0 * 16 * 16 * 64 * 4 * kRounds, [] { return Round(); });
#elif defined(__AVX512VNNI__)
  return rate_of<Bytes>(threads, seconds, 2.0 * 64, [](Bytes& sum) __attribute__((always_inline)) {
    const Bytes ones = _mm512_set1_epi8(1);
    sum = _mm512_dpbusd_epi32(sum, ones, ones);
    hide(sum);
  });
#elif defined(__AVXVNNI__)
  return rate_of<Bytes>(threads, seconds, 2.0 * 32, [](Bytes& sum) __attribute__((always_inline)) {
    const Bytes ones = _mm256_set1_epi8(1);
    sum = _mm256_dpbusd_avx_epi32(sum, ones, ones);
    hide(sum);
  });
#elif defined(__AVX2__)
  // As nibbles are multiplied: two products are added in 16 bits. Bytes take more instructions.
  return rate_of<Bytes>(threads, seconds, 2.0 * 64, [](Bytes& sum) __attribute__((always_inline)) {
    Bytes codes = _mm256_set1_epi8(1);
    hide(codes);  // or the products of one sum would serve all
    const Bytes first = _mm256_maddubs_epi16(codes, codes);
    hide(codes);
    const Bytes second = _mm256_maddubs_epi16(codes, codes);
    const Bytes pairs = _mm256_add_epi16(first, second);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  });
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return rate_of<Bytes>(threads, seconds, 2.0 * 32, [](Bytes& sum) __attribute__((always_inline)) {
    sum = vusmmlaq_s32(sum, vdupq_n_u8(1), vdupq_n_s8(1));
    hide(sum);
  });
#elif defined(__ARM_FEATURE_DOTPROD)
  return rate_of<Bytes>(threads, seconds, 2.0 * 16, [](Bytes& sum) __attribute__((always_inline)) {
    const int8x16_t ones = vdupq_n_s8(1);
    sum = vdotq_s32(sum, ones, ones);
    hide(sum);
  });
#elif defined(__aarch64__)
  return rate_of<Bytes>(threads, seconds, 2.0 * 8, [](Bytes& sum) __attribute__((always_inline)) {
    int8x8_t codes = vdup_n_s8(1);
    hide(codes);
    sum = vpadalq_s16(sum, vmull_s8(codes, codes));
  });
#else
  (void)threads, (void)seconds;
  return {};
#endif
}

}  // namespace penstock
