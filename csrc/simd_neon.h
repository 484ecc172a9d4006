// f32x16 on AArch64: four registers of four lanes. Included by simd.h, which has the rest.
#pragma once

#include <arm_neon.h>

namespace penstock {

struct f32x16 {
  static constexpr int lanes = 16;
  float32x4_t v[4];

  template <class F>
  static PENSTOCK_INLINE f32x16 each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }

  static PENSTOCK_INLINE f32x16 zero() { return broadcast(0.0f); }
  static PENSTOCK_INLINE f32x16 broadcast(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {{all, all, all, all}};
  }
  static PENSTOCK_INLINE f32x16 iota() {
    const float32x4_t four{0, 1, 2, 3};
    return each([=](int i) { return vaddq_f32(four, vdupq_n_f32(float(4 * i))); });
  }

  static PENSTOCK_INLINE f32x16 load(const float* p) {
    return each([=](int i) { return vld1q_f32(p + 4 * i); });
  }
  static PENSTOCK_INLINE f32x16 load(const bf16* p) {
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
    return each([=](int i) {
      return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bits + 4 * i), 16));
    });
  }
  static PENSTOCK_INLINE f32x16 load(const f16* p) {
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
    return each([=](int i) {
      return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits + 4 * i)));
    });
  }
  // The first n lanes (0 <= n <= 16), the others zero; touches no other memory.
  template <class T>
  static PENSTOCK_INLINE f32x16 load_n(const T* p, int n) {
    if (n == lanes) return load(p);
    alignas(16) T padded[lanes] = {};
    std::memcpy(padded, p, size_t(n) * sizeof(T));
    return load(padded);
  }

  PENSTOCK_INLINE void store(float* p) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v[i]);
  }
  PENSTOCK_INLINE void store(bf16* p) const {
    for (int i = 0; i < 4; ++i) vst1_u16(reinterpret_cast<uint16_t*>(p) + 4 * i, narrow(v[i]));
  }
  PENSTOCK_INLINE void store(f16* p) const {
    for (int i = 0; i < 4; ++i)
      vst1_u16(reinterpret_cast<uint16_t*>(p) + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v[i])));
  }
  template <class T>
  PENSTOCK_INLINE void store_n(T* p, int n) const {
    if (n == lanes) return store(p);
    alignas(16) T padded[lanes];
    store(padded);
    std::memcpy(p, padded, size_t(n) * sizeof(T));
  }

  // bf16 bits, rounded to nearest even; a NaN stays one.
  static PENSTOCK_INLINE uint16x4_t narrow(float32x4_t x) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return vreinterpret_u16_bf16(vcvt_bf16_f32(x));
#else
    const uint32x4_t u = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
#endif
  }
};

PENSTOCK_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return f32x16::each([=](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return f32x16::each([=](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return f32x16::each([=](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return f32x16::each([=](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return f32x16::each([=](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// min and max give b where either is a NaN, which FMIN and FMAX do not.
PENSTOCK_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return f32x16::each(
      [=](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return f32x16::each(
      [=](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
PENSTOCK_INLINE f32x16 sqrt(f32x16 a) {
  return f32x16::each([=](int i) { return vsqrtq_f32(a.v[i]); });
}
PENSTOCK_INLINE f32x16 abs(f32x16 a) {
  return f32x16::each([=](int i) { return vabsq_f32(a.v[i]); });
}
// a < b ? x : y, lane by lane; a NaN is not less.
PENSTOCK_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
  return f32x16::each(
      [=](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]); });
}
PENSTOCK_INLINE f32x16 round_even(f32x16 a) {
  return f32x16::each([=](int i) { return vrndnq_f32(a.v[i]); });
}
// a * 2^n for whole n, -252 <= n <= 252. Two factors, because 2^n itself may be out of range
// where a * 2^n is not.
PENSTOCK_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  return f32x16::each([=](int i) {
    const int32x4_t whole = vcvtq_s32_f32(n.v[i]);
    const int32x4_t half = vshrq_n_s32(whole, 1);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t one = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t two = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
    return vmulq_f32(vmulq_f32(a.v[i], vreinterpretq_f32_s32(one)), vreinterpretq_f32_s32(two));
  });
}
// Lane i from lane i ^ kDistance, a power of two.
template <int kDistance>
PENSTOCK_INLINE f32x16 swap_lanes(f32x16 a) {
  return f32x16::each([&](int i) {
    if constexpr (kDistance == 1) return vrev64q_f32(a.v[i]);
    else if constexpr (kDistance == 2) return vextq_f32(a.v[i], a.v[i], 2);
    else return a.v[i ^ (kDistance / 4)];
  });
}
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return select_less(f32x16::iota(), f32x16::broadcast(float(n)), x, y);
}

// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  return f32x16::each([=](int i) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs.v[i]), 16));
  });
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  return f32x16::each([=](int i) {
    return vreinterpretq_f32_u32(
        vandq_u32(vreinterpretq_u32_f32(pairs.v[i]), vdupq_n_u32(0xffff0000)));
  });
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// acc[i] += row[2i] * b[0] + row[2i + 1] * b[1] for lanes of two bfloat16 and the pair b of them held in
// one word (b[0] in the low half). BFDOT adds the two products first, rounds each sum to odd and takes
// subnormals for zero, whatever FPCR says, but for FPCR.EBF, which Linux leaves zero.
PENSTOCK_INLINE f32x16 dpbf16(f32x16 acc, f32x16 row, uint32_t pair) {
  const bfloat16x8_t b = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  return f32x16::each(
      [&](int i) { return vbfdotq_f32(acc.v[i], vreinterpretq_bf16_f32(row.v[i]), b); });
}
#endif

// The sum of the lanes, by the tree of simd.h.
PENSTOCK_INLINE float hsum(f32x16 a) {
  const float32x4_t four =
      vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

// The largest lane. Lanes must not be NaN.
PENSTOCK_INLINE float hmax(f32x16 a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3])));
}

}  // namespace penstock
