// From codes of lattice points to points, a run of a panel at a time, for tiles (gemm_points_walk.h).
// All have one scale, a power of two, which comes last.
#pragma once

#include "gemm_block_operands.h"
#include "gemm_epilogue.h"
#include "gemm_points_expand.h"

namespace penstock {

#if defined(__AVX512BF16__)

// As PairPoints have them.
struct LatticePairs {
  static constexpr int64_t kBytes = PairPoints::kBytes;
};

template <>
struct Expand<LatticePairs> {
  using Run = void (*)(const PanelView&, const std::byte* panel, int64_t k, std::byte* to);
  using Fetch = void (*)(const PanelView&, const std::byte* panel, int64_t k);

  Run run;
  Fetch fetch;
  alignas(kLineBytes) float scales[kPanelColumns];

  explicit Expand(const PanelView& p) {
    if (p.format == WeightFormat::e8p) choose<E8p>();
    else choose<SmallE8>();
  }

  // What the sums of all k of a panel become.
  RowScaledSums scaled(const PanelView&, const std::byte*, const float* sums, int64_t part) const {
    return {sums, part, scales, 0};
  }

 private:
  static_assert(E8p::kSegment == kPointRun && SmallE8::kSegment == kPointRun);

  template <class Format>
  void choose() {
    run = [](const PanelView&, const std::byte* panel, int64_t k, std::byte* to) {
      const std::byte* const segment = panel + k / kPointRun * Format::kSegmentBytes;
#pragma GCC unroll 8
      for (int q = 0; q < kRunQuads; ++q) {
        const Quad codes[PairOperand::kQuads] = {Format::quad(segment, 0, q)};
        PairOperand::decode<Format>(codes).store(to + q * PairOperand::kStepBytes);
      }
    };
    fetch = [](const PanelView&, const std::byte* panel, int64_t k) {
      const std::byte* const segment = panel + k / kPointRun * Format::kSegmentBytes;
      for (int64_t line = 0; line < Format::kSegmentBytes; line += kLineBytes)
        __builtin_prefetch(segment + line, 0, 2);
    };
    Format::scale(nullptr, 0).store(scales);
  }
};

#endif

}  // namespace penstock
