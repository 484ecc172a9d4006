// Where the kernel of gemm_block_kernel.h takes weights from: codes as a Format has them, which become
// weights in the registers that multiply them, or what was expanded of these before.
#pragma once

#include "gemm_block_operands.h"
#include "gemm_panels.h"

namespace penstock {

struct NoShift {};

// Weights as a Format has them, prefetched into a level of the cache.
template <class Format, class Operand, int Level = 1>
struct DirectWeights {
  static constexpr int64_t kGroup = Format::kGroup;
  static constexpr bool kLeast = Format::kLeast, kWide = Format::kWide;
  static constexpr int64_t kRuns = Format::kSegment / kRunK;  // of a segment
  static constexpr int64_t kBytes = Format::kSegmentBytes;
  static constexpr int64_t kBehind = behind_bytes<Format>();
  static constexpr int kLevel = Level;

  // What all codes of a group are moved by, or what is looked up of them.
  static PENSTOCK_INLINE auto shift(const std::byte* segment, const std::byte* behind,
                                    int64_t group) {
    if constexpr (HasZeros<Format>)
      return typename Operand::template Shift<Format>(Format::zeros(segment, behind, group));
    else if constexpr (HasLookups<Format>)
      return Format::looked_up(segment);
    else
      return NoShift();
  }
  using Shift = decltype(shift(nullptr, nullptr, 0));

  static PENSTOCK_INLINE Operand::Weights step(const std::byte* segment, int64_t run, int step,
                                               [[maybe_unused]] const Shift& by) {
    Quad codes[Operand::kQuads];
    for (int i = 0; i < Operand::kQuads; ++i) {
      const int q = step * Operand::kQuads + i;
      if constexpr (HasLookups<Format>) {
        codes[i] = Format::loose_quad(by, q);
        if constexpr (!Operand::kLoose) codes[i] = codes[i].masked((1 << Format::kBits) - 1);
      } else if constexpr (Operand::kLoose && !HasZeros<Format>) {
        codes[i] = Format::loose_quad(segment, run, q);
      } else {
        codes[i] = Format::quad(segment, run, q);
      }
    }
    if constexpr (HasZeros<Format>) return by.decode(codes);
    else return Operand::template decode<Format>(codes);
  }
  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return Format::scale(segment, group);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* segment, int64_t group) {
    return Format::least(segment, group);
  }
};

// And expanded, a run at a time: its steps; then scales and least values in float32, those of long
// groups behind their runs.
template <class Operand, int64_t Group, bool Least, bool Wide>
struct ExpandedWeights {
  static constexpr int64_t kGroup = Group;
  static constexpr int64_t kRuns = std::max<int64_t>(Group / kRunK, 1);  // of a segment
  static constexpr int64_t kGroups = Group ? kRuns * kRunK / Group : 0;
  static constexpr bool kLeast = Least, kWide = Wide;
  static constexpr int64_t kSteps = kRunQuads / Operand::kQuads;  // of a run
  static constexpr int64_t kRunBytes = kSteps * Operand::kStepBytes;
  static constexpr int64_t kScalesAt = kRuns * kRunBytes;
  static constexpr int64_t kLeastsAt = kScalesAt + kGroups * kScaleBytes;
  static constexpr int64_t kBytes = kLeastsAt + (Least ? kGroups * kScaleBytes : 0);
  static constexpr int64_t kBehind = 0;
  static constexpr int kLevel = 0;  // they are not prefetched

  using Shift = NoShift;
  static PENSTOCK_INLINE Shift shift(const std::byte*, const std::byte*, int64_t) { return {}; }
  static PENSTOCK_INLINE Operand::Weights step(const std::byte* segment, int64_t run, int step,
                                               Shift) {
    return Operand::Weights::load(segment + run * kRunBytes + step * Operand::kStepBytes);
  }
  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return f32x16::load(reinterpret_cast<const float*>(segment + kScalesAt) + group * kPanelColumns);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* segment, int64_t group) {
    return f32x16::load(reinterpret_cast<const float*>(segment + kLeastsAt) + group * kPanelColumns);
  }
};
template <class Format, class Operand>
using Expanded =
    ExpandedWeights<Operand, Format::kGroup, Format::kLeast, Format::kWide && kSignedBytes>;

// Runs of a panel, from a whole segment on.
template <class Format, class Operand>
void expand_runs(const std::byte* segment, const std::byte* behind, int64_t runs, int64_t ahead,
                 std::byte* to) {
  using From = DirectWeights<Format, Operand>;
  using To = Expanded<Format, Operand>;
  // Groups begin in a run, or runs in a group.
  constexpr int64_t shifts = Format::kGroup && Format::kGroup < kRunK ? kRunK / Format::kGroup : 1;
  constexpr int steps = int(To::kSteps / shifts);
  constexpr int64_t per_run = From::kBytes / From::kRuns;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t run = i % From::kRuns, run_to = i % To::kRuns;
    if (i && run == 0) segment += From::kBytes, behind += From::kBehind;
    if (i && run_to == 0) to += To::kBytes;
    for (int64_t at = 0; at < per_run; at += kLineBytes)
      __builtin_prefetch(segment + ahead + run * per_run + at, 0, 2);
    const int64_t group = Format::kGroup ? run * kRunK / std::max<int64_t>(Format::kGroup, 1) : 0;
    for (int half = 0; half < int(shifts); ++half) {
      const auto by = From::shift(segment, behind, group + half);
#pragma GCC unroll 8
      for (int s = half * steps; s < (half + 1) * steps; ++s)
        From::step(segment, run, s, by)
            .store(to + run_to * To::kRunBytes + s * Operand::kStepBytes);
    }
    if (run_to) continue;
    for (int64_t g = 0; g < To::kGroups; ++g) {
      float* const scales = reinterpret_cast<float*>(to + To::kScalesAt) + g * kPanelColumns;
      From::scale(segment, group + g).store(scales);
      if constexpr (To::kLeast)
        From::least(segment, group + g).store(scales + To::kGroups * kPanelColumns);
    }
  }
}

}  // namespace penstock
