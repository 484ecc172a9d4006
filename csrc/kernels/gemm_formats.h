// Formats of weights by groups: a decoder each. Kernels are instantiated with one, so a new format is
// a struct here and a line in with_block_format().
//
// To kernels a Format says
//   kBits        of a code: 8, or 4 of which the first four k of a line are the low nibbles
//   kGroups      groups of a segment: their codes come first, then the scales of each
//   kScaleBytes  of a group and column
//   kZeros       whether a matrix may have zero points
//   load(line)   -> Line<kBits> of unsigned codes that stand for points plus kOffset; of 4 bits they
//                are below 32 (gemm_int_simd.h)
//   scales(from) -> a group's, in float32
// and, where its matrices come in blocks of files (gemm_block.h), to packing and to checks
//   read(block)  -> BlockCodes
//   kNothing     a code whose point is zero
//   point(code), scale(block)   whose product the weight is, exactly
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "gemm_block.h"
#include "gemm_int_simd.h"
#include "gemm_panels.h"

namespace penstock {

// A block of a file: codes in the order of k, of 8 bits unsigned, and the bytes of its scale.
struct BlockCodes {
  std::array<uint8_t, kBlockK> codes;
  std::array<std::byte, 2> scale;
};

// A block that begins with its scale, and whose nibbles are those of its first half, then those of the
// other.
template <class Format>
BlockCodes read_block(const std::byte* block) {
  BlockCodes to{};
  std::memcpy(to.scale.data(), block, size_t(Format::kScaleBytes));
  block += Format::kScaleBytes;
  for (size_t i = 0; i < kBlockK; ++i) {
    const auto byte = uint8_t(block[Format::kBits == 8 ? i : i % 16]);
    to.codes[i] = Format::kBits == 8 ? uint8_t(byte ^ 0x80) : i < 16 ? byte & 15 : byte >> 4;
  }
  return to;
}

template <int Bits>
struct IntFormat {
  static constexpr int kBits = Bits;
  static constexpr int kOffset = code_offset(Bits);
  static constexpr int kGroups = 1;
  static constexpr int64_t kScaleBytes = sizeof(float);
  static constexpr bool kZeros = true;

  static PENSTOCK_INLINE Line<Bits> load(const std::byte* line) { return Line<Bits>::load(line); }
  static PENSTOCK_INLINE f32x16 scales(const std::byte* from) {
    return f32x16::load(reinterpret_cast<const float*>(from));
  }
};

// Q8_0 and Q4_0 of GGUF: the same with scales in float16.
template <int Bits>
struct HalfFormat : IntFormat<Bits> {
  static constexpr int kGroups = 2;
  static constexpr int64_t kScaleBytes = sizeof(f16);
  static constexpr bool kZeros = false;
  static constexpr uint8_t kNothing = uint8_t(code_offset(Bits));

  static PENSTOCK_INLINE f32x16 scales(const std::byte* from) {
    return f32x16::load(reinterpret_cast<const f16*>(from));
  }
  static BlockCodes read(const std::byte* block) { return read_block<HalfFormat>(block); }
  static int point(uint8_t code) { return int(code) - code_offset(Bits); }
  static float scale(const BlockCodes& block) { return to_f32(std::bit_cast<f16>(block.scale)); }
};

// MXFP4 of GGUF: codes are numbers of E2M1, twice which are points; scales are powers of two.
struct Mxfp4Format {
  static constexpr int kBits = 4;
  static constexpr int kOffset = 12;
  static constexpr int kGroups = 4;
  static constexpr int64_t kScaleBytes = 1;
  static constexpr bool kZeros = false;
  static constexpr uint8_t kNothing = 0;
  alignas(16) static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                     12, 11, 10, 9,  8,  6,  4,  0};

  static PENSTOCK_INLINE Line<4> load(const std::byte* line) {
    return lookup(kTable, Line<4>::load(line));
  }
  static PENSTOCK_INLINE f32x16 scales(const std::byte* from) {
    return powers_of_two(from) * f32x16::broadcast(0.5f);
  }
  static BlockCodes read(const std::byte* block) { return read_block<Mxfp4Format>(block); }
  static int point(uint8_t code) { return int(kTable[code]) - kOffset; }
  static float scale(const BlockCodes& block) { return std::ldexp(1.0f, int(block.scale[0]) - 128); }
};

// Calls f with the Format of a matrix: of blocks, and of any.
template <class F>
auto with_block_format(WeightFormat format, F&& f) {
  if (format == WeightFormat::q8_0) return f(HalfFormat<8>());
  if (format == WeightFormat::q4_0) return f(HalfFormat<4>());
  return f(Mxfp4Format());
}
template <class F>
auto with_format(WeightFormat format, F&& f) {
  if (format == WeightFormat::int8) return f(IntFormat<8>());
  if (format == WeightFormat::int4) return f(IntFormat<4>());
  return with_block_format(format, f);
}

}  // namespace penstock
