// bfloat16 and float16 as they are stored, and conversions to and from float, one value at a time.
#pragma once

#include <bit>
#include <cstdint>

#include "inline.h"

namespace penstock {

// Storage types. Distinct from uint16_t so that overloads choose the conversion.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

PENSTOCK_INLINE float to_f32(float x) { return x; }

PENSTOCK_INLINE float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

inline float to_f32(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  if (magnitude < 0x0400) {  // zero, subnormal: exact in float
    const float value = float(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Round to nearest, ties to even; a NaN stays a NaN.
PENSTOCK_INLINE bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffff) > 0x7f800000) return {uint16_t((u >> 16) | 0x40)};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

inline f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return {uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff))};
  if (magnitude >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // 65520 and up round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is subnormal: adding 0.5 aligns the mantissa to 2^-24 and rounds it.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1);
  return {uint16_t(sign | (rounded >> 13))};
}

template <class T>
T from_f32(float x);
template <>
PENSTOCK_INLINE float from_f32<float>(float x) {
  return x;
}
template <>
PENSTOCK_INLINE bf16 from_f32<bf16>(float x) {
  return to_bf16(x);
}
template <>
PENSTOCK_INLINE f16 from_f32<f16>(float x) {
  return to_f16(x);
}

}  // namespace penstock
