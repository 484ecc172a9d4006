"""Weights of tokens as integers, in the float32 operations of ``sampling/select.py``, and in order.

Every kernel that calls these is launched with ``enable_fp_fusion=False``: a fused multiplication
and addition rounds once where the definition rounds twice.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from penstock.backends.cuda.kernels.sample_jobs import LOGITS, WIDTH
from penstock.sampling.select import ONE

WEIGHT_BITS = tl.constexpr(ONE.bit_length() - 1)
ONE_KEY = tl.constexpr(int(np.float32(1.0).view(np.int32)))
"""The key of the smallest weight that is not zero."""
MOST_KEY = tl.constexpr(int(np.float32(ONE).view(np.int32)))

_LOG2_E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e4p-1"))
_LN2_LOW = tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
# Adding and subtracting it rounds to the nearest integer, ties to even: its last bit counts ones.
_ROUND = tl.constexpr(1.5 * 2**23)
_C7 = tl.constexpr(float(np.float32(1 / 5040)))
_C6 = tl.constexpr(float(np.float32(1 / 720)))
_C5 = tl.constexpr(float(np.float32(1 / 120)))
_C4 = tl.constexpr(float(np.float32(1 / 24)))
_C3 = tl.constexpr(float(np.float32(1 / 6)))


@triton.jit
def weights_of(x, peak, inverse_temperature):
    """Whole numbers in float32, ``floor(2**40 e**((x - peak) / temperature))``; 0 where x is -inf.

    They have at most 24 significant bits, so float32 holds them exactly.
    """
    x = tl.maximum((x - peak) * inverse_temperature, -30.0)
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    power = r * _C7 + _C6
    power = power * r + _C5
    power = power * r + _C4
    power = power * r + _C3
    power = power * r + 0.5
    power = power * r + 1.0
    power = power * r + 1.0
    # The low bits of ``shifted`` are n in two's complement: they become the exponent.
    exponent = (shifted.to(tl.int32, bitcast=True) << 23) + ((127 + WEIGHT_BITS) << 23)
    scale = exponent.to(tl.float32, bitcast=True)
    return tl.floor(power * scale)


@triton.jit
def logits_of(jobs, job, ALIGNED: tl.constexpr):
    """Where the row of logits lies that a job is chosen from."""
    row = tl.load(jobs + job * WIDTH + LOGITS).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        row = tl.multiple_of(row, 16)
    return row


@triton.jit
def key_of(x):
    """int32 in the order of float32 ``x`` (no NaN); the two zeros have one key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weight_of_key(key):
    """The int64 weight of a key: keys of weights are their own bits."""
    return key.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def nucleus(total, top_p):
    """The sum that top-p must reach, of weights that sum to ``total`` (int64)."""
    product = top_p * total.to(tl.float64)
    whole = product.to(tl.int64)
    whole += (whole.to(tl.float64) < product).to(tl.int64)  # rounds up
    return tl.minimum(tl.maximum(whole, 1), total)


@triton.jit
def below(bits, limit):
    """``bits * limit / 2**64`` of int64 that hold unsigned ``bits`` and a positive ``limit``."""
    high = tl.umulhi(bits.to(tl.uint64, bitcast=True), limit.to(tl.uint64, bitcast=True))
    return high.to(tl.int64, bitcast=True)
