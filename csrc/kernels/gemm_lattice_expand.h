// From codes of lattice points to points, a run of a panel at a time, for tiles (gemm_points_walk.h).
// All have one scale, a power of two, which comes last.
#pragma once

#include "gemm_block_weights.h"
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
    with_block_format(p.format, [&]<class Format>(Format) {
      if constexpr (Format::kGroup == kPointRun && Format::kSegment == kPointRun) choose<Format>();
    });
  }

  // What the sums of all k of a panel become.
  RowScaledSums scaled(const PanelView&, const std::byte*, const float* sums, int64_t part) const {
    return {sums, part, scales, 0};
  }

 private:
  template <class Format>
  void choose() {
    run = [](const PanelView&, const std::byte* panel, int64_t k, std::byte* to) {
      const std::byte* const segment = panel + k / kPointRun * Format::kSegmentBytes;
      using From = DirectWeights<Format, PairOperand>;
      const auto by = From::shift(segment, nullptr, 0);
#pragma GCC unroll 8
      for (int q = 0; q < kRunQuads; ++q) From::step(segment, 0, q, by).store(to + q * PairOperand::kStepBytes);
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
