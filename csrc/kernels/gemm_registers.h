// Blocks of accumulators in vector registers, for any Format of weights and packed activations.
//
// A Format provides
//   Packed                      what one step of one row is packed to
//   kStep                       k per step
//   kStepBytes                  weights of a step in one panel
//   kFewPanels                  of few rows: as many side by side as keep their chains of additions ahead of
//                               memory. One panel is one stream, which is read fastest
//   Weights                     those, in registers
//   load(from)                  -> Weights
//   pack(x, row, k, steps, to, stride)
//                               so many steps of a row from k on, zeros beyond x.cols; `stride` Packed from one to
//                               the next
//   accumulate(sum, weights, packed)
#pragma once

#include "gemm_tuning.h"
#include "gemm_walk.h"

namespace penstock {

// Accumulators and weights must fit the registers: 32 of 512 bits take 12 rows by 2 panels; 16 of 256 bits,
// which hold 8 of ours, 5 rows by one, since weights in bfloat16 are four registers a step. Fewer rows wait
// for their chains of additions: 13 are faster by one panel than as 7 and 6 by two.
#if defined(__AVX512F__)
constexpr int kMostRows = 16;   // of a band
constexpr int kBandRows = 12;   // of one of several, at most,
constexpr int kBandPanels = 2;  // by so many panels
constexpr int kFewBandRows = 8;
// Rows that are one band, at most; more are several. On Zen 5, whose dots take half a cycle, loads hold up more rows by
// one panel (87 % of the peak with 16); on Zen 4, where they take a cycle each, 16 reach 97 %.
inline int64_t one_band(const Tuning& t) { return t.shared_into_l2 ? kMostRows : 13; }
#elif defined(__aarch64__)
// 32 of 128 bits hold 8 of ours: 4 rows beside two of weights, of which a pair of lines has two.
constexpr int kMostRows = 4;
constexpr int kBandRows = kMostRows;
constexpr int kBandPanels = 1;
constexpr int kFewBandRows = 1;
constexpr int64_t one_band(const Tuning&) { return kMostRows; }
#else
#if defined(__AVX2__)
constexpr int kMostRows = 5;
#else
constexpr int kMostRows = 6;
#endif
constexpr int kBandRows = kMostRows;
constexpr int kBandPanels = 1;
constexpr int kFewBandRows = 2;
constexpr int64_t one_band(const Tuning&) { return kMostRows; }
#endif

// The cache that weights of the next block are prefetched into, as __builtin_prefetch() has it: L2, or L1.
#if defined(__aarch64__)
constexpr int kNextLocality = 2;
#else
constexpr int kNextLocality = 3;
#endif
// Whether a band of so many rows, which is alone, has its weights prefetched into L2.
inline bool into_l2(int64_t rows, const Tuning& t) { return rows > 1 && t.shared_into_l2; }

// Sums of a block of accumulators.
template <class Format, int Rows, int Panels>
struct RegisterSums {
  f32x16 sums[Panels][Rows];

  // From [panel][row][16], or from zero.
  PENSTOCK_INLINE explicit RegisterSums(const float* before) {
    for (int p = 0; p < Panels; ++p)
      for (int r = 0; r < Rows; ++r)
        sums[p][r] = before ? f32x16::load(before + (p * Rows + r) * kPanelColumns) : f32x16::zero();
  }
  // Weights of a step, which lie `panel_bytes` apart, by x.
  PENSTOCK_INLINE void step(const std::byte* at, int64_t panel_bytes, const typename Format::Packed* a) {
    if constexpr (Rows <= 2) {  // which stay in registers, and weights need not
      for (int p = 0; p < Panels; ++p) {
        const typename Format::Weights weights = Format::load(at + p * panel_bytes);
        for (int r = 0; r < Rows; ++r) Format::accumulate(sums[p][r], weights, a[r]);
      }
    } else {
      typename Format::Weights weights[Panels];
      for (int p = 0; p < Panels; ++p) weights[p] = Format::load(at + p * panel_bytes);
      for (int r = 0; r < Rows; ++r)
        for (int p = 0; p < Panels; ++p) Format::accumulate(sums[p][r], weights[p], a[r]);
    }
  }
  PENSTOCK_INLINE void store(float* after) const {
    for (int p = 0; p < Panels; ++p)
      for (int r = 0; r < Rows; ++r) sums[p][r].store(after + (p * Rows + r) * kPanelColumns);
  }
};

template <class Format>
class RegisterKernel {
 public:
  using Packed = typename Format::Packed;
  static constexpr int kPanels = 2;
  static constexpr int64_t kRows = kMostRows;
  static constexpr int64_t kStep = Format::kStep;
  // Half of L2 for packed activations, a quarter each for the weights of a block of accumulators and for
  // the next. Rows that are too many for that read x from further away, for every block: one for each 8 KiB.
  // (Zen 5, L2 of a MiB, bf16, K = 2048, 512 rows: 512 at once 0.41 TFLOP/s, 128 at once 0.46.)
  static CacheBounds bounds(const Tuning& t) {
    const int64_t l2 = t.cache_bytes;
    return {std::clamp<int64_t>(l2 / (8 << 10), 64, kRowBlock), l2 / 2, l2 / 4 / kPanels};
  }
  static bool streams(int64_t rows, const Tuning& t) { return bands(rows, t) == 1; }
  static constexpr int64_t kElement = int64_t(sizeof(Packed)) / kStep;

  // One panel is one stream of memory, which is read fastest; two are more chains of additions.
  static int panels(int64_t rows, const Tuning& t) {
    if (bands(rows, t) > 1) return kBandPanels;
    return into_l2(rows, t) ? 1 : most_panels(rows);
  }
  static int64_t ahead(int64_t rows, const Tuning& t) {
#if defined(__aarch64__)
    return t.stream_ahead;
#else
    if (into_l2(rows, t)) return kAheadInL2;
    const bool busy = 2 * rows > kFewBandRows;
    return (busy ? std::max(t.stream_ahead, kLeastAhead) * 3 / 2 : t.stream_ahead) / panels(rows, t);
#endif
  }
  static constexpr int64_t padded_rows(int64_t rows) { return rows; }
  static int64_t bands(int64_t rows, const Tuning& t) {
    return rows <= one_band(t) ? 1 : ceil_div(rows, kBandRows);
  }
  static Range band(int64_t rows, int64_t b, const Tuning& t) {
    return even_share(rows, b, bands(rows, t));
  }

  RegisterKernel(int64_t, const Tuning& t) : tuning_(t) {}
  int64_t sum_rows(int64_t rows) const { return rows; }

  // To [step][row].
  void pack(const InputRows& x, int64_t first, int64_t rows, int64_t k, int64_t steps,
            std::byte* to) const {
    Packed* out = reinterpret_cast<Packed*>(to);
    for (int64_t r = 0; r < rows; ++r) Format::pack(x, first + r, k, steps, out + r, rows);
  }

  void multiply(const Block& b) const { multiply_rows<int(kRows)>(b); }

 private:
  // Panels of a block of one band, at most.
  static constexpr int most_panels(int64_t rows) {
    if (rows <= kFewBandRows) return Format::kFewPanels;
    return rows <= kBandRows ? kBandPanels : 1;
  }

  template <int Rows>
  void multiply_rows(const Block& b) const {
    if constexpr (Rows > 1)
      if (b.rows < Rows) return multiply_rows<Rows - 1>(b);
    constexpr int of_many = Rows <= kBandRows ? kBandPanels : 1;
    if constexpr (std::max(of_many, most_panels(Rows)) > 1)
      if ((b.streams ? panels(Rows, tuning_) : of_many) > 1) return multiply_panels<Rows, 2>(b);
    multiply_panels<Rows, 1>(b);
  }

  template <int Rows, int Wide>
  PENSTOCK_INLINE void multiply_panels(const Block& b) const {
    int panel = 0;
    for (; panel + Wide <= b.panels; panel += Wide) multiply_block<Rows, Wide>(b, panel);
    if constexpr (Wide > 1)
      if (panel < b.panels) multiply_block<Rows, 1>(b, panel);
  }

  template <int Rows, int Wide>
  void multiply_block(const Block& b, int first_panel) const {
    const int64_t offset = int64_t(first_panel) * Rows * kPanelColumns;
    RegisterSums<Format, Rows, Wide> sums(b.before ? b.before + offset : nullptr);
    constexpr int64_t lines = std::max<int64_t>(Format::kStepBytes / kLineBytes, 1);  // of a step
    const auto prefetch = [&](const std::byte* from, auto locality) __attribute__((always_inline)) {
      for (int64_t line = 0; line < lines; ++line)
        for (int p = 0; p < Wide; ++p)
          __builtin_prefetch(from + p * b.panel_bytes + line * kLineBytes, 0, locality.value);
    };

    const Packed* a = reinterpret_cast<const Packed*>(b.activations);
    const std::byte* w = b.weights + first_panel * b.panel_bytes;
    const auto step = [&](const std::byte* at) __attribute__((always_inline)) {
      sums.step(at, b.panel_bytes, a);
      a += Rows;
    };
    // These weights, which are used once.
    const auto stream = [&](auto locality) __attribute__((always_inline)) {
      const int64_t to_near = b.near - b.weights;
      const int64_t to_far = b.far - b.weights - (b.panels - Wide) * b.panel_bytes;
      for (int64_t s = 0; s < b.steps; ++s, w += Format::kStepBytes) {
        prefetch(w + (s < b.turn ? to_near : to_far), locality);
        step(w);
      }
    };
    if (b.streams && into_l2(Rows, tuning_)) {
      stream(std::integral_constant<int, 2>());
    } else if (b.streams) {
      stream(std::integral_constant<int, 3>());
    } else {  // the next ones, evenly over the steps: memory and arithmetic never wait for each other
      const std::byte* next = b.far + first_panel * b.panel_bytes + b.next_lines.first * kLineBytes;
      const int64_t every = lines * b.steps / std::max<int64_t>(b.next_lines.size(), 1);
      for (int64_t s = 0, due = 0; s < b.steps; ++s, w += Format::kStepBytes) {
        if (s == due) {
          prefetch(next, std::integral_constant<int, kNextLocality>());
          next += lines * kLineBytes;
          due += every;
        }
        step(w);
      }
    }

    sums.store(b.after + offset);
  }

  const Tuning& tuning_;
};

// Weights and x of any types in float32, one k a step.
template <class Weight, class X>
struct SingleFormat {
  using Packed = float;
  using Weights = f32x16;
  static constexpr int kFewPanels = kBandPanels > 1 && sizeof(Weight) == 4 ? 1 : 2;
  static constexpr int64_t kStep = 1;
  static constexpr int64_t kStepBytes = kPanelColumns * sizeof(Weight);

  static PENSTOCK_INLINE Weights load(const std::byte* from) {
    return f32x16::load(reinterpret_cast<const Weight*>(from));
  }
  static void pack(const InputRows& x, int64_t row, int64_t k, int64_t steps, Packed* to,
                   int64_t stride) {
    const X* in = x.row<X>(row) + k;
    const int64_t there = std::clamp<int64_t>(x.cols - k, 0, steps);
    for (int64_t i = 0; i < there; ++i) to[i * stride] = to_f32(in[i]);
    for (int64_t i = there; i < steps; ++i) to[i * stride] = 0;
  }
  static PENSTOCK_INLINE void accumulate(f32x16& sum, const Weights& w, Packed a) {
    sum = fma(f32x16::broadcast(a), w, sum);
  }
};

}  // namespace penstock
