"""What every kernel of the sampler reads of a job: its record, and the weights of its tokens.

A record is one row of 64-bit columns, int64 or float64 (which holds float32 options exactly), so
that a launch sends one array. Weights are whole numbers, in the float32 operations of
``sampling/select.py``. Every kernel that computes them is launched with ``enable_fp_fusion=False``:
a fused multiplication and addition rounds once where the definition rounds twice.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from penstock.sampling.select import ONE

WIDTH = tl.constexpr(16)
"""Columns of a record."""

# int64
LOGITS = tl.constexpr(0)
"""Address of the float32 row that is chosen from: the model's, or the one that options changed."""
ROW = tl.constexpr(1)
"""Index of the row in the model's logits."""
BITS = tl.constexpr(2)
"""The uniform 64 bits that decide the draw."""
LEAST = tl.constexpr(3)
"""Weights below this are zero: min-p."""
TOP_K = tl.constexpr(4)
"""0 keeps all."""
COUNTS = tl.constexpr(5)
"""Address of int32 ``[vocab]``: twice the occurrences in the output, plus 1 if in the prompt; or
twice those among the last tokens, where penalties look at these alone. 0: the row has no
penalties."""
LISTS = tl.constexpr(6)
"""Address of int32: tokens with a bias, ascending; their biases as float32; ending tokens,
ascending."""
NUM_BIASES = tl.constexpr(7)
NUM_ENDING = tl.constexpr(8)
"""Ending tokens that must not be chosen yet; 0 once the sequence is long enough."""
MASK = tl.constexpr(9)
"""Address of int32 words whose bits, the lowest first, are set for tokens that the sequence's
grammar allows. 0: it allows all."""

# float64
INVERSE_TEMPERATURE = tl.constexpr(10)
TOP_P = tl.constexpr(11)
REPETITION = tl.constexpr(12)
FREQUENCY = tl.constexpr(13)
PRESENCE = tl.constexpr(14)

# int64
PLACE = tl.constexpr(15)
"""Address of int32: the token that leaves the last tokens, or -1, where the chosen one is kept. 0:
none leaves."""

# What is wrong with a job's row; 0 is nothing.
NOT_A_NUMBER = tl.constexpr(1)
INFINITE = tl.constexpr(2)
ONLY_NEGATIVE_INFINITE = tl.constexpr(3)
NO_TOKEN_LEFT = tl.constexpr(4)

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
    """Return ``floor(2**40 e**((x - peak) / temperature))`` in float32; 0 where x is -inf.

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
def option_of(jobs, job, COLUMN: tl.constexpr):
    """Return a float64 column of a job's record."""
    return tl.load(jobs + job * WIDTH + COLUMN).to(tl.float64, bitcast=True)


@triton.jit
def logits_of(jobs, job, ALIGNED: tl.constexpr):
    """Return the address of the row of logits that a job is chosen from."""
    row = tl.load(jobs + job * WIDTH + LOGITS).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        row = tl.multiple_of(row, 16)
    return row


@triton.jit
def key_of(x):
    """Return int32 in the order of float32 ``x`` (no NaN); the two zeros have one key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weight_of_key(key):
    """Return the int64 weight of a key: keys of weights are their own bits."""
    return key.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def nucleus(total, top_p):
    """Return the sum that top-p must reach, of weights that sum to ``total`` (int64)."""
    product = top_p * total.to(tl.float64)
    whole = product.to(tl.int64)
    whole += (whole.to(tl.float64) < product).to(tl.int64)  # rounds up
    return tl.minimum(tl.maximum(whole, 1), total)


@triton.jit
def below(bits, limit):
    """Return ``bits * limit / 2**64`` of int64 that hold unsigned ``bits`` and a positive
    ``limit``."""
    high = tl.umulhi(bits.to(tl.uint64, bitcast=True), limit.to(tl.uint64, bitcast=True))
    return high.to(tl.int64, bitcast=True)
