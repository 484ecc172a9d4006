// Codes of weights by groups, of 8 or 4 bits, as kernels for registers load them.
//
// load() gives a line of unsigned codes that stand for points plus kOffset; of 8 bits a line is 4 k of
// 16 columns, of 4 bits 8, of which the first four are the low nibbles.
#pragma once

#include "gemm_int_simd.h"
#include "gemm_panels.h"

namespace penstock {

template <int Bits>
struct IntFormat {
  static constexpr int kBits = Bits;
  static constexpr int kOffset = code_offset(Bits);

  static PENSTOCK_INLINE Line<Bits> load(const std::byte* line) { return Line<Bits>::load(line); }
  static PENSTOCK_INLINE f32x16 scales(const std::byte* from) {
    return f32x16::load(reinterpret_cast<const float*>(from));
  }
};

// Calls f with the Format of a matrix.
template <class F>
auto with_format(WeightFormat format, F&& f) {
  return format == WeightFormat::int8 ? f(IntFormat<8>()) : f(IntFormat<4>());
}

}  // namespace penstock
