// Formats of blocks: a decoder each. Kernels and packing are instantiated with one, so a new
// format is a struct here, a line in with_block_format() and what reads its blocks in
// gemm_block_read.cpp.
//
// A weight is scale * point(code) + least, with the scale and least of its group, both exact in
// float32. A panel is segments of whole blocks, or of a few: first the codes of 16 columns, then
// what belongs to their groups. To kernels a Format says
//   kSegment, kSegmentBytes  k of a segment, and its size
//   kGroup                   k of a group: 32 or 16
//   kBits                    of a code
//   kLeast                   whether groups have a least value
//   what Points say          of its codes (gemm_block_points.h)
//   quad(segment, run, q)    codes of 4 k of 16 columns: quad q of 8 of a run of 32 k
//   loose_quad(...)          likewise, for who looks at the bits of a code alone
//   looked_up(segment)       or, where many codes are looked up at once (gemm_block_shuffled.h), what
//                            is found of a segment, which is a run; and loose_quad(found, q)
//   scale(segment, group), least(segment, group)
// and, if they need it (gemm_points_format.h),
//   zeros(segment, behind, group)  what a group's codes stand for more than points
//   kBehind                  bytes of a segment that lie behind all of the panel's
//   kRowScaled               a scale of the row comes last, at PanelView::scales_at
// and to packing
//   put(segment, lane, k, four codes), put_group(segment, lane, group, block, group of the block)
#pragma once

#include <array>
#include <cstring>

#include "gemm_block.h"
#include "gemm_block_e8p.h"
#include "gemm_block_points.h"
#include "gemm_block_quad.h"
#include "gemm_block_shuffled.h"
#include "gemm_cuts.h"

namespace penstock {

constexpr int64_t kRunK = 32;  // what a quad is counted in
constexpr int kRunQuads = 8;

// Whether a Format has zeros.
template <class Format>
concept HasZeros = requires(const std::byte* at) { Format::zeros(at, at, int64_t(0)); };

// Whether it looks many codes up at once.
template <class Format>
concept HasLookups = requires(const std::byte* at) { Format::looked_up(at); };

template <class Format>
constexpr int64_t behind_bytes() {
  if constexpr (requires { Format::kBehind; }) return Format::kBehind;
  return 0;
}
template <class Format>
constexpr bool row_scaled() {
  if constexpr (requires { Format::kRowScaled; }) return Format::kRowScaled;
  return false;
}

// A block of a file as read: codes in the order of k, the bits of its scales in float16, and whole
// numbers that groups multiply them by; or one scale in float32.
struct FileBlock {
  std::array<uint8_t, 256> codes;
  f16 scale[4], least[4];         // by group where groups have their own, else the first
  uint8_t factors[16], leasts[16];  // as stored, offset where they are signed
  uint8_t exponent;
  float scale32;

  // All zero but codes, of which a block need not have so many.
  FileBlock() : scale{}, least{}, factors{}, leasts{}, exponent(0), scale32(0) {}
};

// Codes in planes: the low bits of all k of the segment, then the high ones.
template <int LowBits, int HighBits, int64_t Segment>
struct CodePlanes {
  static constexpr int kBits = LowBits + HighBits;
  static constexpr int64_t kSegment = Segment;
  static constexpr int64_t kHighAt = Segment * kPanelColumns * LowBits / 8;
  static constexpr int64_t kCodeBytes = Segment * kPanelColumns * kBits / 8;

  static PENSTOCK_INLINE Quad quad(const std::byte* segment, int64_t run, int q) {
    Quad codes = plane<LowBits>(segment, run, q);
    if constexpr (LowBits < 8) codes = codes.masked((1 << LowBits) - 1);
    if constexpr (HighBits > 0) {
      // Shifted to where they belong, up or down.
      constexpr int per_line = 8 / HighBits;
      const Quad line = Quad::load(segment + kHighAt + line_at<HighBits>(run, q));
      const int by = LowBits - q % per_line * HighBits;
      codes = codes.with(by >= 0 ? line.left(by) : line.right(-by),
                         ((1 << HighBits) - 1) << LowBits);
    }
    return codes;
  }

  // The same, where codes of 4 bits may have others above them.
  static PENSTOCK_INLINE Quad loose_quad(const std::byte* segment, int64_t run, int q) {
    if constexpr (LowBits == 4 && HighBits == 0) return plane<4>(segment, run, q);
    return quad(segment, run, q);
  }

  // Four codes from k on, a multiple of 4. Codes lie there as zeros.
  static void put(std::byte* segment, int lane, int64_t k, const uint8_t* codes) {
    uint32_t four;
    std::memcpy(&four, codes, sizeof(four));
    put_bits<LowBits>(segment, lane, k, four);
    if constexpr (HighBits > 0) put_bits<HighBits>(segment + kHighAt, lane, k, four >> LowBits);
  }

 private:
  template <int Bits>
  static constexpr int64_t line_at(int64_t run, int q) {
    return (run * Bits + q * Bits / 8) * kLineBytes;
  }
  template <int Bits>
  static PENSTOCK_INLINE Quad plane(const std::byte* at, int64_t run, int q) {
    const Quad line = Quad::load(at + line_at<Bits>(run, q));
    const int by = Bits == 8 ? 0 : q % (8 / Bits) * Bits;
    return by ? line.right(by) : line;
  }
  template <int Bits>
  static void put_bits(std::byte* at, int lane, int64_t k, uint32_t four) {
    const int q = int(k % kRunK / 4);
    at += line_at<Bits>(k / kRunK, q) + lane * 4;
    uint32_t there;
    std::memcpy(&there, at, sizeof(there));
    there |= (four & ((1u << Bits) - 1) * 0x01010101u) << (Bits == 8 ? 0 : q % (8 / Bits) * Bits);
    std::memcpy(at, &there, sizeof(there));
  }
};

inline void put_half(std::byte* at, int lane, f16 value) { std::memcpy(at + lane * 2, &value, 2); }
PENSTOCK_INLINE f32x16 halves(const std::byte* from) {
  return f32x16::load(reinterpret_cast<const f16*>(from));
}

// A scale in float16 for each group, and perhaps a least value.
template <class Codes, class Points, int64_t Group, bool Least>
struct HalfFormat : Codes, Points {
  static constexpr int64_t kGroup = Group, kGroups = Codes::kSegment / Group;
  static constexpr bool kLeast = Least;
  static constexpr int64_t kHalves = kPanelColumns * 2;
  static constexpr int64_t kLeastAt = Codes::kCodeBytes + kGroups * kHalves;
  static constexpr int64_t kSegmentBytes = kLeastAt + (Least ? kGroups * kHalves : 0);

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return halves(segment + Codes::kCodeBytes + group * kHalves);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* segment, int64_t group) {
    return halves(segment + kLeastAt + group * kHalves);
  }
  static void put_group(std::byte* segment, int lane, int64_t group, const FileBlock& from, int64_t i) {
    put_half(segment + Codes::kCodeBytes + group * kHalves, lane, from.scale[i]);
    if (Least) put_half(segment + kLeastAt + group * kHalves, lane, from.least[i]);
  }
};

// Powers of two, a byte for each 32 k, and as many bits less.
template <class Codes, class Points, int Less>
struct PowerFormat : Codes, Points {
  static constexpr int64_t kGroup = 32;
  static constexpr bool kLeast = false;
  static constexpr int64_t kSegmentBytes =
      Codes::kCodeBytes + Codes::kSegment / kGroup * kPanelColumns;

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    const f32x16 power = powers_of_two(segment + Codes::kCodeBytes + group * kPanelColumns);
    if constexpr (Less == 0) return power;
    return power * f32x16::broadcast(1.0f / float(1 << Less));
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte*, int64_t) { return f32x16::zero(); }
  static void put_group(std::byte* segment, int lane, int64_t group, const FileBlock& from, int64_t) {
    segment[Codes::kCodeBytes + group * kPanelColumns + lane] = std::byte(from.exponent);
  }
};

// A scale in float32 for each `Scaled` k, of several groups or of one.
template <class Codes, class Points, int64_t Scaled>
struct FloatFormat : Codes, Points {
  static constexpr int64_t kGroup = 32;
  static constexpr bool kLeast = false;
  static constexpr int64_t kSegmentBytes = Codes::kCodeBytes + Codes::kSegment / Scaled * kLineBytes;

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return f32x16::load(reinterpret_cast<const float*>(scale_at(segment, group)));
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte*, int64_t) { return f32x16::zero(); }
  static void put_group(std::byte* segment, int lane, int64_t group, const FileBlock& from, int64_t) {
    std::byte* const at = const_cast<std::byte*>(scale_at(segment, group));
    std::memcpy(at + lane * 4, &from.scale32, sizeof(from.scale32));
  }

 private:
  static PENSTOCK_INLINE const std::byte* scale_at(const std::byte* segment, int64_t group) {
    return segment + Codes::kCodeBytes + group * kGroup / Scaled * kLineBytes;
  }
};

// A scale in E4M3 for each 16 k, and what multiplies it in float32, the same for all of a row.
template <class Codes, class Points>
struct TwiceScaledFormat : Codes, Points {
  static constexpr int64_t kGroup = 16, kGroups = Codes::kSegment / kGroup;
  static constexpr bool kLeast = false;
  static constexpr int64_t kFactorsAt = Codes::kCodeBytes + kLineBytes;
  static constexpr int64_t kSegmentBytes = kFactorsAt + kGroups * kPanelColumns;

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    const f32x16 whole = f32x16::load(reinterpret_cast<const float*>(segment + Codes::kCodeBytes));
    return e4m3_of(segment + kFactorsAt + group * kPanelColumns) * whole;
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte*, int64_t) { return f32x16::zero(); }
  static void put_group(std::byte* segment, int lane, int64_t group, const FileBlock& from, int64_t i) {
    if (group == 0)  // what pads a segment has none
      std::memcpy(segment + Codes::kCodeBytes + lane * 4, &from.scale32, sizeof(from.scale32));
    segment[kFactorsAt + group * kPanelColumns + lane] = std::byte(from.factors[i]);
  }
};

// Superblocks of 256: a scale and perhaps a least value in float16, which each group multiplies by a
// whole number; offset: of these as stored. Nibbles: both are four bits of one byte.
template <class Codes, class Points, int64_t Group, int Offset, bool Least, bool Nibbles = false>
struct SuperFormat : Codes, Points {
  static constexpr int64_t kGroup = Group, kGroups = 256 / Group;
  static constexpr bool kLeast = Least;
  static constexpr int64_t kFactorsAt = Codes::kCodeBytes + kLineBytes;
  static constexpr int64_t kLeastsAt = kFactorsAt + kGroups * kPanelColumns;
  static constexpr int64_t kSegmentBytes =
      kLeastsAt + (Least && !Nibbles ? kGroups * kPanelColumns : 0);

  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    f32x16 by = stored(segment + kFactorsAt, group);
    if constexpr (Nibbles) by = fma(high_nibble(by), f32x16::broadcast(-16.0f), by);
    if constexpr (Offset != 0) by = by - f32x16::broadcast(float(Offset));
    return halves(segment + Codes::kCodeBytes) * by;
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* segment, int64_t group) {
    const f32x16 unit = f32x16::zero() - halves(segment + Codes::kCodeBytes + kPanelColumns * 2);
    if constexpr (Nibbles) return unit * high_nibble(stored(segment + kFactorsAt, group));
    return unit * stored(segment + kLeastsAt, group);
  }
  static void put_group(std::byte* segment, int lane, int64_t group, const FileBlock& from, int64_t i) {
    put_half(segment + Codes::kCodeBytes, lane, from.scale[0]);
    put_half(segment + Codes::kCodeBytes + kPanelColumns * 2, lane, Least ? from.least[0] : f16{0});
    const int64_t at = group * kPanelColumns + lane;
    const auto least = Nibbles ? unsigned(from.leasts[i]) << 4 : 0u;
    segment[kFactorsAt + at] = std::byte(from.factors[i] | least);
    if (Least && !Nibbles) segment[kLeastsAt + at] = std::byte(from.leasts[i]);
  }

 private:
  static PENSTOCK_INLINE f32x16 stored(const std::byte* from, int64_t group) {
    return i32x16::widen(from + group * kPanelColumns).to_float();
  }
  // Of a byte.
  static PENSTOCK_INLINE f32x16 high_nibble(f32x16 byte) {
    return round_even(fma(byte, f32x16::broadcast(0.0625f), f32x16::broadcast(-0.46875f)));
  }
};

using Q4_0 = HalfFormat<CodePlanes<4, 0, 64>, PlainPoints<8, false>, 32, false>;
using Q4_1 = HalfFormat<CodePlanes<4, 0, 64>, PlainPoints<0, false>, 32, true>;
using Q5_0 = HalfFormat<CodePlanes<4, 1, 64>, PlainPoints<16, false>, 32, false>;
using Q5_1 = HalfFormat<CodePlanes<4, 1, 64>, PlainPoints<0, false>, 32, true>;
using Q8_0 = HalfFormat<CodePlanes<8, 0, 64>, PlainPoints<128, true>, 32, false>;
using Iq4Nl = HalfFormat<CodePlanes<4, 0, 64>, Iq4Points, 32, false>;
using Nvfp4 = HalfFormat<CodePlanes<4, 0, 64>, E2m1Points, 16, false>;
using Q2K = SuperFormat<CodePlanes<2, 0, 256>, PlainPoints<0, false>, 16, 0, true, true>;
using Q3K = SuperFormat<CodePlanes<2, 1, 256>, PlainPoints<4, false>, 16, 32, false>;
using Q4K = SuperFormat<CodePlanes<4, 0, 256>, PlainPoints<0, false>, 32, 0, true>;
using Q5K = SuperFormat<CodePlanes<4, 1, 256>, PlainPoints<0, false>, 32, 0, true>;
using Q6K = SuperFormat<CodePlanes<4, 2, 256>, PlainPoints<32, false>, 16, 128, false>;
using Mxfp4 = PowerFormat<CodePlanes<4, 0, 128>, E2m1Points, 1>;
using Iq4Xs = SuperFormat<CodePlanes<4, 0, 256>, Iq4Points, 32, 32, false>;

// Of checkpoints that are no GGUF files.
using Fp8By128 = FloatFormat<CodePlanes<8, 0, 128>, E4m3Points, 128>;
using Fp8By32 = FloatFormat<CodePlanes<8, 0, 64>, E4m3Points, 32>;
using Mxfp8 = PowerFormat<CodePlanes<8, 0, 128>, E4m3Points, 0>;
using Nf4 = FloatFormat<CodePlanes<4, 0, 64>, Nf4Points, 64>;
using Fp4 = FloatFormat<CodePlanes<4, 0, 64>, Fp4Points, 64>;
using NvFp4Scaled = TwiceScaledFormat<CodePlanes<4, 0, 128>, E2m1Points>;

// Calls f with the Format of a matrix.
template <class F>
auto with_block_format(WeightFormat format, F&& f) {
  switch (format) {
    case WeightFormat::q4_1: return f(Q4_1());
    case WeightFormat::q5_0: return f(Q5_0());
    case WeightFormat::q5_1: return f(Q5_1());
    case WeightFormat::q8_0: return f(Q8_0());
    case WeightFormat::q2_k: return f(Q2K());
    case WeightFormat::q3_k: return f(Q3K());
    case WeightFormat::q4_k: return f(Q4K());
    case WeightFormat::q5_k: return f(Q5K());
    case WeightFormat::q6_k: return f(Q6K());
    case WeightFormat::iq4_nl: return f(Iq4Nl());
    case WeightFormat::iq4_xs: return f(Iq4Xs());
    case WeightFormat::mxfp4: return f(Mxfp4());
    case WeightFormat::nvfp4: return f(Nvfp4());
    case WeightFormat::fp8_128: return f(Fp8By128());
    case WeightFormat::fp8_32: return f(Fp8By32());
    case WeightFormat::mxfp8: return f(Mxfp8());
    case WeightFormat::nf4: return f(Nf4());
    case WeightFormat::fp4: return f(Fp4());
    case WeightFormat::nvfp4_scaled: return f(NvFp4Scaled());
#if defined(__AVX512VNNI__)
    case WeightFormat::e8p: return shuffles_bytes() ? f(ShuffledE8p()) : f(E8p());
    case WeightFormat::small_e8: return shuffles_bytes() ? f(ShuffledSmallE8()) : f(SmallE8());
#else
    case WeightFormat::e8p: return f(E8p());
    case WeightFormat::small_e8: return f(SmallE8());
#endif
    case WeightFormat::q4_0:
    case WeightFormat::int8:
    case WeightFormat::int4: break;
  }
  return f(Q4_0());
}

}  // namespace penstock
