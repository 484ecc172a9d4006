// Quads on AArch64: four registers of four columns. Included by gemm_block_quad.h.
#pragma once

#if defined(__aarch64__)

namespace penstock {

struct Quad {
  uint8x16_t v[4];

  template <class F>
  static PENSTOCK_INLINE Quad each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  PENSTOCK_INLINE uint32x4_t words(int c) const { return vreinterpretq_u32_u8(v[c]); }

  static PENSTOCK_INLINE Quad load(const std::byte* from) {
    return each([=](int c) { return load_bytes(from + 16 * c); });
  }
  PENSTOCK_INLINE void store(std::byte* to) const {
    for (int c = 0; c < 4; ++c) vst1q_u8(reinterpret_cast<uint8_t*>(to) + 16 * c, v[c]);
  }
  // By so many bits within each column's four bytes: what comes over from a neighbour is to be masked.
  PENSTOCK_INLINE Quad right(int bits) const {
    return each([&](int c) { return vreinterpretq_u8_u32(words(c) >> uint32_t(bits)); });
  }
  PENSTOCK_INLINE Quad left(int bits) const {
    return each([&](int c) { return vreinterpretq_u8_u32(words(c) << uint32_t(bits)); });
  }
  PENSTOCK_INLINE Quad masked(int mask) const {
    return each([&](int c) { return vandq_u8(v[c], vdupq_n_u8(uint8_t(mask))); });
  }
  PENSTOCK_INLINE Quad flipped(int mask) const {
    return each([&](int c) { return veorq_u8(v[c], vdupq_n_u8(uint8_t(mask))); });
  }
  // This, and the masked bits of b.
  PENSTOCK_INLINE Quad with(Quad b, int mask) const {
    return each(
        [&](int c) { return vorrq_u8(v[c], vandq_u8(b.v[c], vdupq_n_u8(uint8_t(mask)))); });
  }
  // By a table of 16 bytes.
  PENSTOCK_INLINE Quad lookup(const std::array<uint8_t, 16>& table) const {
    const uint8x16_t all = vld1q_u8(table.data());
    return each([&](int c) { return vqtbl1q_u8(all, v[c]); });
  }
  // Byte i of each column as a number: as one with so many bits behind the point.
  PENSTOCK_INLINE f32x16 number(int i) const {
    const auto all = [&](auto convert) __attribute__((always_inline)) {
      return f32x16::each(
          [&](int c) { return convert(vandq_u32(words(c), vdupq_n_u32(255u << 8 * i))); });
    };
    switch (i) {
      case 0: return all([](uint32x4_t x) { return vcvtq_f32_u32(x); });
      case 1: return all([](uint32x4_t x) { return vcvtq_n_f32_u32(x, 8); });
      case 2: return all([](uint32x4_t x) { return vcvtq_n_f32_u32(x, 16); });
      default: return all([](uint32x4_t x) { return vcvtq_n_f32_u32(x, 24); });
    }
  }
  // What numbers of bytes are to be less by.
  struct Less {
    f32x16 by;
    Less() = default;
    PENSTOCK_INLINE explicit Less(f32x16 of) : by(of) {}
  };
  PENSTOCK_INLINE f32x16 number(int i, const Less& less) const { return number(i) - less.by; }
  // As a number of E4M3; as float32's bits it is 2^120 times too small.
  PENSTOCK_INLINE f32x16 float8(int i) const {
    return f32x16::each([&](int c) {
      const int32x4_t codes = vreinterpretq_s32_u32(words(c) << uint32_t(24 - 8 * i));
      const int32x4_t bits = vandq_s32(vshrq_n_s32(codes, 4), vdupq_n_s32(kFloat8Bits));
      return vmulq_n_f32(vreinterpretq_f32_s32(bits), 0x1p120f);
    });
  }
  // Its lowest four bits by a table of numbers, 64-byte aligned.
  PENSTOCK_INLINE f32x16 looked_up(int i, const std::array<float, 16>& table) const {
    const uint8x16x4_t all = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table.data()));
    return f32x16::each([&](int c) {
      const uint32x4_t code = vandq_u32(words(c) >> uint32_t(8 * i), vdupq_n_u32(15));
      // The places of its number's four bytes.
      const uint32x4_t at = vmlaq_u32(vdupq_n_u32(0x03020100), code, vdupq_n_u32(0x04040404));
      return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_u32(at)));
    });
  }
};

// Two quads by 8 k of x.
template <bool Wide>
PENSTOCK_INLINE void dot_quads(i32x16& sum, const Quad (&w)[2], const int8_t* x) {
  const int8x8_t k = vld1_s8(x);
  for (int c = 0; c < 4; ++c)
    sum.v[c] = add_dots<1>(add_dots<0>(sum.v[c], w[0].v[c], k), w[1].v[c], k);
}

}  // namespace penstock

#endif
