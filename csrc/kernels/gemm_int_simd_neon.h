// Lanes and dots for AArch64: four registers of four columns, each four k. Included by
// gemm_int_simd.h.
//
// USDOT multiplies unsigned bytes by signed ones, as VPDPBUSD does; SDOT and the widening
// multiplications of older CPUs take both signed.
#pragma once

#if defined(__aarch64__)

namespace penstock {

// sum + dots of each four bytes.
PENSTOCK_INLINE int32x4_t add_dots(int32x4_t sum, uint8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(sum, w, x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, vreinterpretq_s8_u8(w), x);
#else
  const int8x16_t codes = vreinterpretq_s8_u8(w);
  const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
  const int16x8_t high = vmull_s8(vget_high_s8(codes), vget_high_s8(x));
  return vpadalq_s16(sum, vpaddq_s16(low, high));  // two products: at most 2 * 128 * 127
#endif
}
// Likewise, with one quad of x, which has 8 or 16 bytes.
template <int Quad>
PENSTOCK_INLINE int32x4_t add_dots(int32x4_t sum, uint8x16_t w, int8x8_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_lane_s32(sum, w, x, Quad);
#elif defined(__ARM_FEATURE_DOTPROD)
  return vdotq_lane_s32(sum, vreinterpretq_s8_u8(w), x, Quad);
#else
  return add_dots(sum, w, vreinterpretq_s8_s32(vdupq_lane_s32(vreinterpret_s32_s8(x), Quad)));
#endif
}
template <int Quad>
PENSTOCK_INLINE int32x4_t add_dots(int32x4_t sum, uint8x16_t w, int8x16_t x) {
  return Quad < 2 ? add_dots<Quad % 2>(sum, w, vget_low_s8(x))
                  : add_dots<Quad % 2>(sum, w, vget_high_s8(x));
}

PENSTOCK_INLINE uint8x16_t load_bytes(const std::byte* from) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(from));
}

struct i32x16 {
  int32x4_t v[4];

  template <class F>
  static PENSTOCK_INLINE i32x16 each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  static PENSTOCK_INLINE i32x16 broadcast(int32_t x) {
    return each([=](int) { return vdupq_n_s32(x); });
  }
  PENSTOCK_INLINE f32x16 to_float() const {
    return f32x16::each([&](int c) { return vcvtq_f32_s32(v[c]); });
  }
  // Of 16 unsigned bytes.
  static PENSTOCK_INLINE i32x16 widen(const std::byte* from) {
    const uint8x16_t bytes = load_bytes(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    const auto wide = [](uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); };
    return {{wide(vget_low_u16(low)), wide(vget_high_u16(low)), wide(vget_low_u16(high)),
             wide(vget_high_u16(high))}};
  }
  PENSTOCK_INLINE void store(int32_t* to) const {
    for (int c = 0; c < 4; ++c) vst1q_s32(to + 4 * c, v[c]);
  }
  PENSTOCK_INLINE i32x16 operator*(i32x16 b) const {
    return each([&](int c) { return vmulq_s32(v[c], b.v[c]); });
  }
  PENSTOCK_INLINE i32x16 operator+(i32x16 b) const {
    return each([&](int c) { return vaddq_s32(v[c], b.v[c]); });
  }
  PENSTOCK_INLINE i32x16 times_short(int32_t b) const {
    return each([&](int c) { return vmulq_n_s32(v[c], b); });
  }
  PENSTOCK_INLINE i32x16 right(int bits) const {
    return each([&](int c) { return v[c] >> bits; });
  }
  PENSTOCK_INLINE i32x16 masked(int32_t mask) const {
    return each([&](int c) { return vandq_s32(v[c], vdupq_n_s32(mask)); });
  }
};

// 2^(e - 127) of 16 bytes e below 255; the least of them are subnormal.
PENSTOCK_INLINE f32x16 powers_of_two(const std::byte* from) {
  const i32x16 e = i32x16::widen(from);
  return f32x16::each([&](int c) {
    return vreinterpretq_f32_s32(vmaxq_s32(vshlq_n_s32(e.v[c], 23), vdupq_n_s32(1 << 22)));
  });
}

// 16 bytes in E4M3 as numbers; as float16's bits they are 2^8 times too small.
PENSTOCK_INLINE f32x16 e4m3_of(const std::byte* from) {
  const uint8x16_t bytes = load_bytes(from);
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))};
  const auto four = [](uint16x4_t codes) {
    const uint16x4_t sign = vshl_n_u16(vand_u16(codes, vdup_n_u16(128)), 8);
    const uint16x4_t rest = vshl_n_u16(vand_u16(codes, vdup_n_u16(127)), 7);
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(sign, rest))), 256.0f);
  };
  return f32x16::each([&](int c) {
    return four(c % 2 ? vget_high_u16(halves[c / 2]) : vget_low_u16(halves[c / 2]));
  });
}

template <int Bits>
struct Line {
  uint8x16_t quads[kQuads<Bits>][4];

  static PENSTOCK_INLINE Line load(const std::byte* from) {
    Line line;
    for (int c = 0; c < 4; ++c) {
      const uint8x16_t codes = load_bytes(from + 16 * c);
      if constexpr (Bits == 8) {
        line.quads[0][c] = kSignedBytes ? veorq_u8(codes, vdupq_n_u8(128)) : codes;
      } else {
        line.quads[0][c] = vandq_u8(codes, vdupq_n_u8(15));
        line.quads[1][c] = vshrq_n_u8(codes, 4);
      }
    }
    return line;
  }
  // What load() reads.
  PENSTOCK_INLINE void store(std::byte* to) const
    requires(Bits == 8)
  {
    for (int c = 0; c < 4; ++c) {
      const uint8x16_t codes = quads[0][c];
      vst1q_u8(reinterpret_cast<uint8_t*>(to) + 16 * c,
               kSignedBytes ? veorq_u8(codes, vdupq_n_u8(128)) : codes);
    }
  }
};

}  // namespace penstock

#endif
