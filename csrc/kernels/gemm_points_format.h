// Formats of IntMatrix and GridMatrix where weights alone are quantized: decoders for the walk of
// gemm_block_path.h, as those of files are. A code stands for a point, itself less an offset or the
// zero of its group, which bfloat16 holds exactly. Then
//   out = sum over ascending groups g of  scale[g] * (sum over the k of g of x * point),
// each a float32 fused multiply-add; the inner sum is one chain of additions from zero, whose order
// depends on the instruction set alone. With one scale for a row it is of all k, and is multiplied by
// the scale last. On the grid in 4 bits groups are windows: their scale is the step, their zero the
// origin, and the row's scale comes last. x is in bfloat16 where something multiplies that, else in
// float32; bfloat16 on tiles is gemm_points_walk.h.
#pragma once

#include "gemm_block_format.h"
#include "gemm_grid_blocks.h"
#include "gemm_panels.h"

namespace penstock {

// Groups of so many k, each with a float scale; 0: no groups, and the row's scale comes last. Zeroed:
// zeros of groups lie behind the panel's segments.
template <int Bits, int64_t Group, bool Zeroed>
struct GroupFormat : CodePlanes<Bits, 0, Group ? Group : kGridStep>,
                     PlainPoints<Zeroed ? 0 : code_offset(Bits), Bits == 8> {
  using Codes = CodePlanes<Bits, 0, Group ? Group : kGridStep>;
  static constexpr int64_t kGroup = Group;
  static constexpr bool kLeast = false, kRowScaled = Group == 0;
  static constexpr int64_t kSegmentBytes = Codes::kCodeBytes + (Group ? kScaleBytes : 0);
  static constexpr int64_t kBehind = Zeroed && Group ? kPanelColumns : 0;

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t) {
    return f32x16::load(reinterpret_cast<const float*>(segment + Codes::kCodeBytes));
  }
  static PENSTOCK_INLINE i32x16 zeros(const std::byte*, const std::byte* behind, int64_t)
    requires Zeroed
  {
    return i32x16::widen(behind);
  }
};

// Windows of 16 k: a group's scale is the window's step, its zero the origin.
struct WindowFormat : CodePlanes<4, 0, kWindowedK>, PlainPoints<0, false> {
  static constexpr int64_t kGroup = kGridGroup;
  static constexpr bool kLeast = false, kRowScaled = true;
  static constexpr int64_t kSegmentBytes = kWindowedBytes;

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return stored(segment, group).masked(15).to_float() + f32x16::broadcast(1.0f);
  }
  static PENSTOCK_INLINE i32x16 zeros(const std::byte* segment, const std::byte*, int64_t group) {
    return stored(segment, group).right(4);
  }

 private:
  static PENSTOCK_INLINE i32x16 stored(const std::byte* segment, int64_t group) {
    return i32x16::widen(segment + kCodeBytes + group * kPanelColumns);
  }
};

// Calls f with the Format of a matrix.
struct PointFormats {
  template <class F>
  static auto with(const PanelView& p, F&& f) {
    if (p.windows) return f(WindowFormat());
    return p.bits == 8 ? by_group<8>(p, f) : by_group<4>(p, f);
  }

 private:
  template <int Bits, class F>
  static auto by_group(const PanelView& p, F&& f) {
    return p.zero_points ? by_group<Bits, true>(p, f) : by_group<Bits, false>(p, f);
  }
  template <int Bits, bool Zeroed, class F>
  static auto by_group(const PanelView& p, F&& f) {
    switch (p.grouped) {
      case 32: return f(GroupFormat<Bits, 32, Zeroed>());
      case 64: return f(GroupFormat<Bits, 64, Zeroed>());
      case 128: return f(GroupFormat<Bits, 128, Zeroed>());
      default: return f(GroupFormat<Bits, 0, Zeroed>());
    }
  }
};

// And of one whose format is a file's.
struct FileFormats {
  template <class F>
  static auto with(const PanelView& p, F&& f) {
    return with_block_format(p.format, f);
  }
};

}  // namespace penstock
