// f32x16 on any machine: the compiler's own vectors. Included by simd.h, which has the rest.
#pragma once

#include <cmath>

namespace penstock {

struct f32x16 {
  static constexpr int lanes = 16;
  typedef float vector __attribute__((vector_size(64)));
  typedef int32_t integers __attribute__((vector_size(64)));
  vector v;

  static PENSTOCK_INLINE f32x16 zero() { return {vector{}}; }
  static PENSTOCK_INLINE f32x16 broadcast(float x) { return {vector{} + x}; }
  static PENSTOCK_INLINE f32x16 iota() {
    return {vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  }

  static PENSTOCK_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(&r.v, p, sizeof(r.v));
    return r;
  }
  template <class T>
  static PENSTOCK_INLINE f32x16 load(const T* p) {
    f32x16 r;
    for (int i = 0; i < lanes; ++i) r.v[i] = to_f32(p[i]);
    return r;
  }
  // The first n lanes (0 <= n <= 16), the others zero; touches no other memory.
  template <class T>
  static PENSTOCK_INLINE f32x16 load_n(const T* p, int n) {
    f32x16 r = zero();
    for (int i = 0; i < n; ++i) r.v[i] = to_f32(p[i]);
    return r;
  }

  PENSTOCK_INLINE void store(float* p) const { std::memcpy(p, &v, sizeof(v)); }
  template <class T>
  PENSTOCK_INLINE void store(T* p) const {
    for (int i = 0; i < lanes; ++i) p[i] = from_f32<T>(v[i]);
  }
  template <class T>
  PENSTOCK_INLINE void store_n(T* p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = from_f32<T>(v[i]);
  }
};

PENSTOCK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
PENSTOCK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
PENSTOCK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
PENSTOCK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
PENSTOCK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FMA__)
  for (int i = 0; i < f32x16::lanes; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
#else
  return {a.v * b.v + c.v};
#endif
}
// min and max give b where either is a NaN.
PENSTOCK_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
PENSTOCK_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }
PENSTOCK_INLINE f32x16 sqrt(f32x16 a) {
  for (int i = 0; i < f32x16::lanes; ++i) a.v[i] = std::sqrt(a.v[i]);
  return a;
}
PENSTOCK_INLINE f32x16 abs(f32x16 a) {
  return {(f32x16::vector)((f32x16::integers)a.v & 0x7fffffff)};
}
// a < b ? x : y, lane by lane; a NaN is not less.
PENSTOCK_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
  return {a.v < b.v ? x.v : y.v};
}
// For |a| < 2^22: adding 1.5 * 2^23 leaves no bits below one.
PENSTOCK_INLINE f32x16 round_even(f32x16 a) {
  const f32x16 magic = f32x16::broadcast(0x1.8p23f);
  return (a + magic) - magic;
}
// a * 2^n for whole n, -252 <= n <= 252. Two factors, because 2^n itself may be out of range
// where a * 2^n is not.
PENSTOCK_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  const f32x16::integers whole = __builtin_convertvector(n.v, f32x16::integers);
  const f32x16::integers half = whole >> 1;
  const f32x16 one{(f32x16::vector)((half + 127) << 23)};
  const f32x16 two{(f32x16::vector)((whole - half + 127) << 23)};
  return a * one * two;
}
// Lane i from lane i ^ kDistance, a power of two.
template <int kDistance>
PENSTOCK_INLINE f32x16 swap_lanes(f32x16 a) {
  f32x16 swapped = a;
  for (int i = 0; i < f32x16::lanes; ++i) swapped.v[i] = a.v[i ^ kDistance];
  return swapped;
}
// Lane i of the first n from x, the others from y.
PENSTOCK_INLINE f32x16 select_first(int n, f32x16 x, f32x16 y) {
  return select_less(f32x16::iota(), f32x16::broadcast(float(n)), x, y);
}
// Each lane's 32 bits as two bf16: the one in the low half, and the one in the high half.
PENSTOCK_INLINE f32x16 low_bf16(f32x16 pairs) {
  return {(f32x16::vector)((f32x16::integers)pairs.v << 16)};
}
PENSTOCK_INLINE f32x16 high_bf16(f32x16 pairs) {
  return {(f32x16::vector)((f32x16::integers)pairs.v & int(0xffff0000))};
}

}  // namespace penstock
