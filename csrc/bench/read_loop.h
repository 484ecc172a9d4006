// What the benches hold their kernels against: a plain loop over the same bytes. It is no ceiling;
// a loop that prefetches, as measure_reading() also tries, reads about a sixth more.
#pragma once

#include <cstddef>

#include "../simd.h"

namespace penstock {

inline void read_bytes(const std::byte* from, size_t bytes, float* sink) {
  f32x16 sums[4] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  for (size_t i = 0; i + 256 <= bytes; i += 256)
    for (size_t j = 0; j < 4; ++j)
      sums[j] += f32x16::load(reinterpret_cast<const float*>(from + i + 64 * j));
  *sink += hsum(sums[0] + sums[1] + sums[2] + sums[3]);
}

}  // namespace penstock
