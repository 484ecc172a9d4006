// Functions of f32x16: exp, tanh, activations. One text for every instruction set.
#pragma once

#include "simd.h"

namespace penstock {

// e^x within 2 ulp. exp(-inf) and anything below -104 is 0, above 88.73 infinity; NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2)/2, ln 2 in two parts; e^r by its Taylor series to r^7, whose
// remainder there is below 6e-9.
PENSTOCK_INLINE f32x16 exp(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  x = min(c(89.0f), max(c(-104.0f), x));
  const f32x16 n = round_even(x * c(0x1.715476p+0f));
  const f32x16 r = fma(n, c(-0x1.7f7d1cp-20f), fma(n, c(-0x1.62e4p-1f), x));
  f32x16 p = c(1.0f / 5040);
  p = fma(p, r, c(1.0f / 720));
  p = fma(p, r, c(1.0f / 120));
  p = fma(p, r, c(1.0f / 24));
  p = fma(p, r, c(1.0f / 6));
  p = fma(p, r, c(0.5f));
  p = fma(p, r, c(1.0f));
  p = fma(p, r, c(1.0f));
  return scale_pow2(p, n);
}

// e^x - 1 - x for x <= 0, within 1e-7 of itself: its Taylor series to x^8 near zero, where the
// difference cancels.
PENSTOCK_INLINE f32x16 expm1_less(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  f32x16 p = c(1.0f / 40320);
  p = fma(p, x, c(1.0f / 5040));
  p = fma(p, x, c(1.0f / 720));
  p = fma(p, x, c(1.0f / 120));
  p = fma(p, x, c(1.0f / 24));
  p = fma(p, x, c(1.0f / 6));
  p = fma(p, x, c(0.5f));
  return select_less(x, c(-0.5f), exp(x) - c(1.0f) - x, x * x * p);
}

// x / (1 + e^-x)
PENSTOCK_INLINE f32x16 silu(f32x16 x) {
  return x / (f32x16::broadcast(1.0f) + exp(f32x16::zero() - x));
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as x times the logistic function of twice
// the argument, which cancels nothing.
PENSTOCK_INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 inner = fma(f32x16::broadcast(0.044715f) * x * x, x, x);
  const f32x16 e = exp(inner * f32x16::broadcast(-1.5957691216057308f));  // -2 sqrt(2/pi)
  return x / (f32x16::broadcast(1.0f) + e);
}

// x/2 (1 + erf(x / sqrt 2)) = x (1 - e) for x >= 0 and x e below, with e = erfc(|x| / sqrt 2) / 2.
//
// erfc(z) = t exp(-z^2) Q(t) with t = 1 / (1 + z/2) and Q of degree 8, fitted by us at Chebyshev
// nodes for 0 <= z <= 10.5, where erfc leaves float; relative error 6e-8.
PENSTOCK_INLINE f32x16 gelu(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  const f32x16 t = c(1.0f) / fma(abs(x), c(0.35355339059327373f), c(1.0f));  // 1 / (2 sqrt 2)
  f32x16 q = c(-0.06020521f);
  q = fma(q, t, c(0.28990433f));
  q = fma(q, t, c(-0.49774992f));
  q = fma(q, t, c(0.2895327f));
  q = fma(q, t, c(-0.03407368f));
  q = fma(q, t, c(0.20563397f));
  q = fma(q, t, c(0.24241343f));
  q = fma(q, t, c(0.28246245f));
  q = fma(q, t, c(0.2820819f));
  const f32x16 e = t * exp(x * x * c(-0.5f)) * q * c(0.5f);
  return x * select_less(x, f32x16::zero(), e, c(1.0f) - e);
}

// 1 / (1 + e^-x)
PENSTOCK_INLINE f32x16 sigmoid(f32x16 x) {
  const f32x16 one = f32x16::broadcast(1.0f);
  return one / (one + exp(f32x16::zero() - x));
}

// log(1 + e^x) within 2e-7 of itself; NaN stays NaN.
//
// max(x, 0) + log(1 + y) with y = e^-|x| <= 1, and log(1 + y) = 2 artanh(z) with z = y / (2 + y) <= 1/3
// by its Taylor series to z^15, whose remainder there is below 4e-9 of it.
PENSTOCK_INLINE f32x16 softplus(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  const f32x16 y = exp(f32x16::zero() - abs(x));
  const f32x16 z = y / (y + c(2.0f));
  const f32x16 square = z * z;
  f32x16 p = c(1.0f / 15);
  p = fma(p, square, c(1.0f / 13));
  p = fma(p, square, c(1.0f / 11));
  p = fma(p, square, c(1.0f / 9));
  p = fma(p, square, c(1.0f / 7));
  p = fma(p, square, c(1.0f / 5));
  p = fma(p, square, c(1.0f / 3));
  p = fma(p, square, c(1.0f));
  return fma(z + z, p, select_less(x, f32x16::zero(), f32x16::zero(), x));
}

// x, or 0 where it is less; NaN stays NaN.
PENSTOCK_INLINE f32x16 relu(f32x16 x) {
  return select_less(x, f32x16::zero(), f32x16::zero(), x);
}

// tanh(x) within 1 ulp near zero and 2^-24 elsewhere; 1 or -1 far away, and NaN stays NaN.
//
// Near zero x + x^3 P(x^2), P of degree 4, fitted by us at Chebyshev nodes for |x| <= 5/8; relative
// error 8e-8. Elsewhere 1 - 2 / (e^(2 |x|) + 1), which cancels nothing there, and the sign of x.
PENSTOCK_INLINE f32x16 tanh(f32x16 x) {
  const auto c = [](float value) { return f32x16::broadcast(value); };
  const f32x16 square = x * x;
  f32x16 p = c(-0.00609671418f);
  p = fma(p, square, c(0.0209971797f));
  p = fma(p, square, c(-0.0538509078f));
  p = fma(p, square, c(0.133327693f));
  p = fma(p, square, c(-0.333333284f));
  const f32x16 size = abs(x);
  const f32x16 far = c(1.0f) - c(2.0f) / (exp(size + size) + c(1.0f));
  return select_less(size, c(0.625f), fma(x * square, p, x),
                     select_less(x, f32x16::zero(), f32x16::zero() - far, far));
}

}  // namespace penstock
