// What the outliers of columns add to sums: looked up in one row of x after another, or in sixteen at
// once, whose elements at a k lie together.
#pragma once

#include <cmath>

#include "gemm_codebook_panels.h"

namespace penstock {

// As a lane of fma().
PENSTOCK_INLINE float fma_of_lane(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Of a panel, eight columns at a time.
template <class Operand>
class CodebookOutliers {
  using Element = Operand::Element;

 public:
  static constexpr int64_t kRows = f32x16::lanes;  // of those that lie beside each other

  PENSTOCK_INLINE CodebookOutliers(const CodebookPanels& p, const std::byte* panel)
      : p_(p), runs_(p.runs(panel)) {}

  // They lie elsewhere, and come while codes are read.
  void fetch() const {
    for (int lane = 0; lane < kPanelColumns; ++lane) {
      const auto [first, count] = runs_[lane];
      const std::byte* const from = reinterpret_cast<const std::byte*>(p_.excess() + first);
      for (int64_t i = 0; i < int64_t(count) * 4; i += kLineBytes) __builtin_prefetch(from + i);
      const std::byte* const at = reinterpret_cast<const std::byte*>(p_.places() + first);
      for (int64_t i = 0; i < int64_t(count) * 2; i += kLineBytes) __builtin_prefetch(at + i);
    }
  }

  // By a row x, as Operand has made it, to the sums of eight columns.
  PENSTOCK_INLINE void add(int half, const std::byte* x, float* sums) const {
    const OutlierRun* const runs = runs_ + half * kCodebookColumns;
    for (int c = 0; c < kCodebookColumns; ++c) {
      const float* const excess = p_.excess() + runs[c].first;
      const uint16_t* const places = p_.places() + runs[c].first;
      float chains[kChains] = {};
      in_turn(runs[c].count, [&](int64_t i, int chain) __attribute__((always_inline)) {
        chains[chain] = fma_of_lane(excess[i], Operand::element(x, places[i]), chains[chain]);
      });
      sums[c] += (chains[0] + chains[1]) + (chains[2] + chains[3]);
    }
  }

  // Likewise by `rows` rows, of which x has the elements: at each k of as many as may be. A row's sums
  // are 16 behind those of the row before.
  void add(int half, const Element* x, int64_t rows, float* sums) const {
    const OutlierRun* const runs = runs_ + half * kCodebookColumns;
    for (int c = 0; c < kCodebookColumns; ++c) {
      const float* const excess = p_.excess() + runs[c].first;
      const uint16_t* const places = p_.places() + runs[c].first;
      f32x16 chains[kChains];
      for (f32x16& chain : chains) chain = f32x16::zero();
      in_turn(runs[c].count, [&](int64_t i, int chain) __attribute__((always_inline)) {
        chains[chain] = fma(f32x16::broadcast(excess[i]), f32x16::load(x + places[i] * kRows),
                            chains[chain]);
      });
      float found[kRows];
      ((chains[0] + chains[1]) + (chains[2] + chains[3])).store(found);
      for (int64_t own = 0; own < rows; ++own) sums[own * kPanelColumns + c] += found[own];
    }
  }

 private:
  static constexpr int kChains = 4;

  // Calls add(outlier, its chain).
  template <class Add>
  static PENSTOCK_INLINE void in_turn(int64_t count, Add&& add) {
    int64_t i = 0;
    for (; i + kChains <= count; i += kChains)
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) add(i + chain, chain);
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain)
      if (i + chain < count) add(i + chain, chain);
  }

  const CodebookPanels& p_;
  const OutlierRun* const runs_;
};

}  // namespace penstock
