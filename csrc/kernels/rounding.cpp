#include "rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

PENSTOCK_INLINE void store_codes(f32x16 codes, int8_t* to, int count) {
  int8_t bytes[f32x16::lanes];
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes),
                   _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(codes.v)));
#else
  alignas(64) float values[f32x16::lanes];
  codes.store(values);
  for (int i = 0; i < f32x16::lanes; ++i) bytes[i] = int8_t(values[i]);
#endif
  if (count == f32x16::lanes) std::memcpy(to, bytes, sizeof bytes);
  else std::memcpy(to, bytes, size_t(count));
}

// Rows may lie at odd addresses (a view into a file): then elements are copied before they are read.
template <class T>
PENSTOCK_INLINE f32x16 load_values(const std::byte* x, int64_t first, int count) {
  const std::byte* from = x + first * int64_t(sizeof(T));
  if (reinterpret_cast<uintptr_t>(from) % alignof(T) != 0) {
    T values[f32x16::lanes] = {};
    std::memcpy(values, from, size_t(count) * sizeof(T));
    return f32x16::load(values);
  }
  return f32x16::load_n(reinterpret_cast<const T*>(from), count);
}

// The scale underflowed, or all is zero: the quotients are infinite, or of zeros and not numbers.
template <class T>
void round_by_zero(const std::byte* x, int64_t count, float scale, float low, float high,
                   int8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    alignas(64) float value[f32x16::lanes];
    load_values<T>(x, i, 1).store(value);
    const float quotient = value[0] / scale;
    codes[i] = std::isnan(quotient) ? int8_t(0) : int8_t(std::max(low, std::min(high, quotient)));
  }
}

template <class T>
float round_group(const std::byte* x, int64_t count, int bits, int8_t* codes) {
  const auto there = [count](int64_t i) { return int(std::min<int64_t>(count - i, kLanes)); };
  // Starting from zero, and the zeros beyond a group's end, change neither scale: they could only
  // be an extreme whose opposite is further from zero.
  f32x16 highest = f32x16::zero(), lowest = f32x16::zero(), nothing = f32x16::zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const f32x16 v = load_values<T>(x, i, there(i));
    highest = max(v, highest);
    lowest = min(v, lowest);
    nothing = fma(v, f32x16::zero(), nothing);  // NaN if v is NaN or infinite
  }
  const float high = hmax(highest), depth = hmax(f32x16::zero() - lowest);
  const float scale =
      bits == 8 ? std::max(high, depth) / 127.0f : (high > depth ? high : -depth) / -8.0f;
  const float most = bits == 8 ? 127.0f : 7.0f, least = bits == 8 ? -127.0f : -8.0f;
  if (scale == 0) {
    round_by_zero<T>(x, count, scale, least, most, codes);
    return hsum(nothing);  // +0, as the groups that quant/tensor.py finds empty have
  }
  const f32x16 by = f32x16::broadcast(scale);
  const f32x16 top = f32x16::broadcast(most), bottom = f32x16::broadcast(least);
  for (int64_t i = 0; i < count; i += kLanes) {
    const f32x16 quotient = load_values<T>(x, i, there(i)) / by;
    store_codes(round_even(max(bottom, min(top, quotient))), codes + i, there(i));
  }
  return scale + hsum(nothing);
}

// As round_group, with a zero point.
template <class T>
float span_group(const std::byte* x, int64_t count, int bits, int8_t* codes, int8_t& zero) {
  const auto there = [count](int64_t i) { return int(std::min<int64_t>(count - i, kLanes)); };
  f32x16 highest = f32x16::zero(), lowest = f32x16::zero(), nothing = f32x16::zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const f32x16 v = load_values<T>(x, i, there(i));
    highest = max(v, highest);
    lowest = min(v, lowest);
    nothing = fma(v, f32x16::zero(), nothing);  // NaN if v is NaN or infinite
  }
  const float low = -hmax(f32x16::zero() - lowest), high = hmax(highest);
  const float most = bits == 8 ? 127.0f : 7.0f, least = bits == 8 ? -128.0f : -8.0f;
  const float scale = (high - low) / (most - least);
  zero = 0;
  if (!(scale > 0)) {
    std::memset(codes, 0, size_t(count));
    return hsum(nothing);
  }
  const float shift = std::clamp(std::nearbyint(least - low / scale), least, most);
  if (shift == shift) zero = int8_t(shift);
  const f32x16 by = f32x16::broadcast(scale), from = f32x16::broadcast(shift);
  const f32x16 top = f32x16::broadcast(most), bottom = f32x16::broadcast(least);
  for (int64_t i = 0; i < count; i += kLanes) {
    const f32x16 quotient = load_values<T>(x, i, there(i)) / by;
    store_codes(max(bottom, min(top, round_even(quotient) + from)), codes + i, there(i));
  }
  return scale + hsum(nothing);
}

template <class T>
void round_rows(const std::byte* rows, int64_t n, int64_t k, int bits, int64_t group,
                int8_t* codes, float* scales, int8_t* zeros, const Worker& worker) {
  const int64_t size = group ? group : k;
  const int64_t groups = (k + size - 1) / size;
  const Share mine = share(n, worker);
  for (int64_t r = mine.begin; r < mine.end; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * size, count = std::min(size, k - first);
      const std::byte* const from = rows + (r * k + first) * int64_t(sizeof(T));
      int8_t* const to = codes + r * k + first;
      scales[r * groups + g] = zeros ? span_group<T>(from, count, bits, to, zeros[r * groups + g])
                                     : round_group<T>(from, count, bits, to);
    }
}

}  // namespace

void round_weights(Elem elem, const std::byte* rows, int64_t n, int64_t k, int bits, int64_t group,
                   int8_t* codes, float* scales, int8_t* zeros, const Worker& worker) {
  if (elem == Elem::bf16)
    round_rows<bf16>(rows, n, k, bits, group, codes, scales, zeros, worker);
  else if (elem == Elem::f16)
    round_rows<f16>(rows, n, k, bits, group, codes, scales, zeros, worker);
  else
    round_rows<float>(rows, n, k, bits, group, codes, scales, zeros, worker);
}

}  // namespace penstock
