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

#include "gemm_walk.h"

namespace penstock {

// Accumulators and weights must fit the registers. 32 of 512 bits: 6 rows by 4 panels, with 4 of
// weights; activations are broadcast from memory by the multiplication itself. 16 of 256 bits hold
// 8 of ours: 6 rows by 1 panel.
#if defined(__AVX512F__)
constexpr int kRegisterRows = 6;
constexpr int kRegisterPanels = 4;
#else
constexpr int kRegisterRows = 6;
constexpr int kRegisterPanels = 1;
#endif

template <class Format>
class RegisterKernel {
 public:
  using Packed = typename Format::Packed;
  static constexpr int kPanels = kRegisterPanels;
  static constexpr int64_t kRows = kRegisterRows;
  static constexpr int64_t kStep = Format::kStep;
  static constexpr int64_t kElement = int64_t(sizeof(Packed)) / kStep;

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

  void multiply(const Block& b) const {
    switch (b.rows) {
      case 1: return multiply_rows<1>(b);
      case 2: return multiply_rows<2>(b);
      case 3: return multiply_rows<3>(b);
      case 4: return multiply_rows<4>(b);
      case 5: return multiply_rows<5>(b);
      default: return multiply_rows<6>(b);
    }
  }

 private:
  template <int Rows>
  static void multiply_rows(const Block& b) {
    int panel = 0;
    for (; panel + kPanels <= b.panels; panel += kPanels) multiply_block<Rows, kPanels>(b, panel);
    for (; panel < b.panels; ++panel) multiply_block<Rows, 1>(b, panel);
  }

  template <int Rows, int Panels_>
  static PENSTOCK_INLINE void multiply_block(const Block& b, int first_panel) {
    f32x16 sums[Panels_][Rows];
    const int64_t offset = int64_t(first_panel) * Rows * kPanelColumns;
    for (int p = 0; p < Panels_; ++p)
      for (int r = 0; r < Rows; ++r)
        sums[p][r] = b.before ? f32x16::load(b.before + offset + (p * Rows + r) * kPanelColumns)
                              : f32x16::zero();

    const Packed* a = reinterpret_cast<const Packed*>(b.activations);
    const std::byte* w = b.weights + first_panel * b.panel_bytes;
    const int64_t to_near = b.near - b.weights;
    const int64_t to_far = b.far - b.weights;
    const bool once = b.lines.size() == 16;  // else the weights are used again, from cache
    for (int64_t s = 0; s < b.steps; ++s, a += Rows, w += Format::kStepBytes) {
      if (once) {
        const std::byte* ahead = w + (s < b.turn ? to_near : to_far);
        for (int p = 0; p < Panels_; ++p)
          __builtin_prefetch(ahead + p * b.panel_bytes);
      }
      typename Format::Weights weights[Panels_];
      for (int p = 0; p < Panels_; ++p) weights[p] = Format::load(w + p * b.panel_bytes);
      for (int r = 0; r < Rows; ++r)
        for (int p = 0; p < Panels_; ++p) Format::accumulate(sums[p][r], weights[p], a[r]);
    }

    for (int p = 0; p < Panels_; ++p)
      for (int r = 0; r < Rows; ++r)
        sums[p][r].store(b.after + offset + (p * Rows + r) * kPanelColumns);
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
