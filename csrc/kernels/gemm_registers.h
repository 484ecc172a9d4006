// Blocks of accumulators in vector registers, for any Format of weights and packed activations.
//
// A Format provides
//   Packed                      what one step of one row is packed to
//   kStep                       k per step
//   kStepBytes                  weights of a step in one panel
//   Weights                     those, in registers
//   load(from)                  -> Weights
//   pack(x, row, k)             -> Packed; k + i >= x.cols gives zero
//   accumulate(sum, weights, packed)
#pragma once

#include "../caches.h"
#include "gemm_walk.h"

namespace penstock {

// Accumulators and weights must fit the registers. 32 of 512 bits: 6 rows by 4 panels or 12 by 2, beside
// weights and a broadcast activation. More rows read weights fewer times, fewer rows have more chains of
// additions from several panels, each of which waits for itself. 16 of 256 bits hold 8 of ours.
#if defined(__AVX512F__)
constexpr int kRegisterRows = 12;
constexpr int kRegisterPanels = 4;
constexpr int register_panels(int64_t rows) { return rows <= 4 ? 4 : 2; }
#elif defined(__aarch64__)
// 32 of 128 bits hold 8 of ours: 4 rows beside two of weights, of which a pair of lines has two.
constexpr int kRegisterRows = 4;
constexpr int kRegisterPanels = 2;
constexpr int register_panels(int64_t rows) { return rows == 1 ? 2 : 1; }
#else
constexpr int kRegisterRows = 6;
constexpr int kRegisterPanels = 2;
// (Zen 5, AVX2, bf16, one row: one panel 24 to 29 GB/s, two 28 to 35.)
constexpr int register_panels(int64_t rows) { return rows <= 2 ? 2 : 1; }
#endif

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
  PENSTOCK_INLINE void add(const typename Format::Weights (&weights)[Panels],
                           const typename Format::Packed* a) {
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) Format::accumulate(sums[p][r], weights[p], a[r]);
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
  static constexpr int kPanels = kRegisterPanels;
  static constexpr int64_t kRows = kRegisterRows;
  static constexpr int64_t kStep = Format::kStep;
  // Half of L2 for packed activations, a quarter each for the weights of a block of accumulators and for
  // the next. Rows that are too many for that read x from further away, for every block. (Zen 5, L2 of
  // a MiB, bf16, K = 2048, 512 rows: 512 at once 0.41 TFLOP/s, 128 at once 0.46.)
  static CacheBounds bounds() {
    const int64_t l2 = second_level_cache();
    return {std::clamp<int64_t>(l2 >> 13, 64, kRowBlock), l2 / 2, l2 / 4 / 2};
  }
  static constexpr bool streams(int64_t rows) { return rows <= 4; }
  static constexpr int64_t kElement = int64_t(sizeof(Packed)) / kStep;

  static constexpr int panels(int64_t rows) { return register_panels(rows); }
  static constexpr int64_t padded_rows(int64_t rows) { return rows; }
  static constexpr int64_t bands(int64_t rows) { return ceil_div(rows, kRows); }
  static constexpr Range band(int64_t rows, int64_t b) {
    return even_share(rows, b, bands(rows));
  }

  explicit RegisterKernel(int64_t) {}
  int64_t sum_rows(int64_t rows) const { return rows; }

  // To [step][row].
  void pack(const InputRows& x, int64_t first, int64_t rows, int64_t k, int64_t steps,
            std::byte* to) const {
    Packed* out = reinterpret_cast<Packed*>(to);
    for (int64_t r = 0; r < rows; ++r) Format::pack(x, first + r, k, steps, out + r, rows);
  }

  void multiply(const Block& b) const { multiply_rows<int(kRows)>(b); }

 private:
  // A band of fewer rows may have a panel or two, as others of its walk have more rows.
  template <int Rows>
  static void multiply_rows(const Block& b) {
    if constexpr (Rows > 1)
      if (b.rows < Rows) return multiply_rows<Rows - 1>(b);
    constexpr int wide = register_panels(Rows);
    int panel = 0;
    for (; panel + wide <= b.panels; panel += wide) multiply_block<Rows, wide>(b, panel);
    if constexpr (wide > 2)
      for (; panel + 2 <= b.panels; panel += 2) multiply_block<Rows, 2>(b, panel);
    for (; panel < b.panels; ++panel) multiply_block<Rows, 1>(b, panel);
  }

  template <int Rows, int Panels_>
  static PENSTOCK_INLINE void multiply_block(const Block& b, int first_panel) {
    const int64_t offset = int64_t(first_panel) * Rows * kPanelColumns;
    RegisterSums<Format, Rows, Panels_> sums(b.before ? b.before + offset : nullptr);
    constexpr int64_t lines = std::max<int64_t>(Format::kStepBytes / kLineBytes, 1);  // of a step
    const auto prefetch = [&](const std::byte* from, auto locality) __attribute__((always_inline)) {
      for (int64_t line = 0; line < lines; ++line)
        for (int p = 0; p < Panels_; ++p)
          __builtin_prefetch(from + p * b.panel_bytes + line * kLineBytes, 0, locality.value);
    };

    const Packed* a = reinterpret_cast<const Packed*>(b.activations);
    const std::byte* w = b.weights + first_panel * b.panel_bytes;
    const auto step = [&](const std::byte* at) __attribute__((always_inline)) {
      typename Format::Weights weights[Panels_];
      for (int p = 0; p < Panels_; ++p) weights[p] = Format::load(at + p * b.panel_bytes);
      sums.add(weights, a);
      a += Rows;
    };
    if (b.streams) {  // these weights, which are used once
      const int64_t to_near = b.near - b.weights;
      const int64_t to_far = b.far - b.weights;
      for (int64_t s = 0; s < b.steps; ++s, w += Format::kStepBytes) {
        const std::byte* ahead = w + (s < b.turn ? to_near : to_far);
        prefetch(ahead, std::integral_constant<int, 3>());
        step(w);
      }
    } else {  // the next ones, evenly over the steps: memory and arithmetic never wait for each other
      const std::byte* next = b.far + first_panel * b.panel_bytes + b.next_lines.first * kLineBytes;
      const int64_t every = lines * b.steps / std::max<int64_t>(b.next_lines.size(), 1);
      for (int64_t s = 0, due = 0; s < b.steps; ++s, w += Format::kStepBytes) {
        if (s == due) {
          prefetch(next, std::integral_constant<int, 2>());
          next += lines * kLineBytes;
          due += every;
        }
        step(w);
      }
    }

    sums.store(b.after + offset);
  }
};

// Weights and x of any types in float32, one k a step.
template <class Weight, class X>
struct SingleFormat {
  using Packed = float;
  using Weights = f32x16;
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
