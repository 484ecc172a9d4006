// Rounding of activations to int8, a group at a time, as gemm_int.h says.
#pragma once

#include <algorithm>
#include <cstring>

#include "gemm_int_simd.h"

namespace penstock {

// One group of a row: `count` values of x, zeros up to `group`. start: -zero times the sum of codes.
template <class T>
void quantize_group(const T* x, int64_t count, int64_t group, int32_t zero, int8_t* codes,
                    float& scale, int32_t& start) {
  f32x16 most = f32x16::zero(), nothing = f32x16::zero();
  for (int64_t i = 0; i < count; i += f32x16::lanes) {
    const f32x16 v = f32x16::load_n(x + i, int(std::min<int64_t>(count - i, f32x16::lanes)));
    most = max(abs(v), most);
    nothing = fma(v, f32x16::zero(), nothing);  // NaN if v is NaN or infinite
  }
  // A value that is not finite makes the scale NaN, and so the row's results.
  scale = hmax(most) / 127.0f + hsum(nothing);
  start = 0;
  if (!(scale > 0)) {
    std::memset(codes, 0, size_t(group));
    return;
  }
  const f32x16 by = f32x16::broadcast(scale);
  const f32x16 limit = f32x16::broadcast(127.0f);  // the division of subnormals is not exact
  const f32x16 low = f32x16::broadcast(-127.0f);
  f32x16 total = f32x16::zero();
  for (int64_t i = 0; i < group; i += f32x16::lanes) {
    f32x16 q = f32x16::zero();
    if (i < count) {
      const int there = int(std::min<int64_t>(count - i, f32x16::lanes));
      q = max(low, min(limit, round_even(f32x16::load_n(x + i, there) / by)));
    }
    total += q;
    store_codes(q, codes + i);
  }
  start = -zero * int32_t(hsum(total));  // below 2^24 in every lane: exact
}

}  // namespace penstock
