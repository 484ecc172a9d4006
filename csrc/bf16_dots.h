// dpbf16() of lanes that hold two bfloat16 each, where there are instructions for it.
#pragma once

#include "simd.h"

#if defined(__AVX512BF16__)
#define PENSTOCK_BF16_DOTS

namespace penstock {

PENSTOCK_INLINE f32x16 dpbf16(f32x16 acc, f32x16 row, uint32_t pair) {
  return dpbf16(acc, _mm512_castps_si512(row.v), pair);
}

}  // namespace penstock

#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PENSTOCK_BF16_DOTS
#endif
