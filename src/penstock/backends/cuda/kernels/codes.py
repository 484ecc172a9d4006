"""Codes that a cache keeps in the place of keys and values, as bytes: to them, and from them.

A part of a cache (its keys, or its values) says by the type of its array what its bytes are: int8
holds a code each, of keys that are turned, uint8 two codes of 4 bits of turned heads, that of the
component of even number in the low half, and float8_e4m3fn floats. Kernels get the last as bytes,
which every GPU can read, and the kind as a constant.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast, nearest_whole

PLAIN: Final = 0
"""Numbers of the array's own type: floats, or codes of 8 bits."""
NIBBLES: Final = 1
"""Two codes of 4 bits in a byte, of heads that are turned."""
FLOAT8: Final = 2
"""Floats of 8 bits, E4M3."""
TURNED: Final = 3
"""Codes of 8 bits, of heads that are turned."""


def kind_of_keys(part: Tensor) -> int:
    """What the bytes of keys are."""
    return TURNED if part.dtype == torch.int8 else kind_of_values(part)


def kind_of_values(part: Tensor) -> int:
    """What the bytes of values are."""
    return {torch.uint8: NIBBLES, torch.float8_e4m3fn: FLOAT8}.get(part.dtype, PLAIN)


def columns_of(part: Tensor) -> int:
    """Components of a head of keys, or of values."""
    return part.shape[-1] * (2 if part.dtype == torch.uint8 else 1)


def as_bytes(part: Tensor) -> Tensor:
    """The array as kernels get it."""
    return part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part


def run_of(head_dim: int) -> int:
    """Components of a head that are turned together."""
    return head_dim & -head_dim


@triton.jit
def turn(x, RUN: tl.constexpr, LEVELS: tl.constexpr):
    """Return float32 heads x ``[N, COLUMNS]``, powers of 2, turned, or turned back.

    ``plan.ops.KvWrite`` says how: by runs of RUN = 2**LEVELS components. Columns behind a head are
    zeros, and stay so.
    """
    rows: tl.constexpr = x.shape[0]
    columns: tl.constexpr = x.shape[1]
    x = x * (1.0 / (RUN**0.5))
    for level in tl.static_range(LEVELS):
        pairs = tl.reshape(x, [rows, columns // (2 << level), 2, 1 << level])
        first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
        both = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(both, (0, 1, 3, 2)), [rows, columns])
    return x


@triton.jit
def decoded(byte, column, KIND: tl.constexpr):
    """Return the numbers that bytes stand for at ``column``, which broadcasts to them.

    Whole numbers, or floats of which bfloat16 holds each.
    """
    if KIND == 1:
        whole = byte.to(tl.int32)
        half = tl.where(column % 2 == 0, whole & 15, whole >> 4)
        result = (half ^ 8) - 8
    elif KIND == 2:
        # Shifted into a float16 they are the same numbers over 256; subnormal ones, too.
        whole = byte.to(tl.int16)
        bits = ((whole & 0x80) << 8) | ((whole & 0x7F) << 7)
        result = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        result = byte
    return result


@triton.jit
def coded(
    x,
    INTERPRETED: tl.constexpr,
    STEPS: tl.constexpr = 127,
    LEAST: tl.constexpr = -127,
    MOST: tl.constexpr = 127,
):
    """Return the codes of float32 heads ``[N, BLOCK]``, still float32, and their bfloat16 scales
    ``[N]``, as ``plan.ops.KvWrite`` rounds them: the largest magnitude is so many steps."""
    ratio, usable, scale = scaled(x, STEPS, INTERPRETED)
    code = tl.minimum(tl.maximum(nearest_whole(ratio), LEAST * 1.0), MOST * 1.0)
    return tl.where(usable, code, 0.0), scale


@triton.jit
def scaled(x, STEPS: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return heads ``[N, BLOCK]`` over their scales, where those are usable, and the scales."""
    most = tl.max(tl.where(x != x, float("inf"), tl.abs(x)), axis=1)
    # A scale that is not finite is NaN, so that whatever reads these codes sees it.
    most = tl.where(most == float("inf"), float("nan"), most)
    by = tl.full([x.shape[0]], STEPS * 1.0, tl.float32)
    scale = cast(tl.div_rn(most, by), tl.bfloat16, INTERPRETED)
    divisor = scale.to(tl.float32)
    usable = (divisor > 0)[:, None]
    ratio = tl.div_rn(x, tl.where(usable, divisor[:, None], 1.0) + tl.zeros_like(x))
    return ratio, usable, scale


@triton.jit
def float8(x, INTERPRETED: tl.constexpr):
    """Return the E4M3 bytes of float32 heads ``[N, BLOCK]``, as int32, and their bfloat16 scales
    ``[N]``, as ``plan.ops.KvWrite`` rounds them."""
    ratio, usable, scale = scaled(x, 448, INTERPRETED)
    ratio = tl.minimum(tl.maximum(tl.where(usable, ratio, 0.0), -448.0), 448.0)
    bits = ratio.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude - (120 << 23) + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    # Below 2**-6 a number is whole in units of 2**-9: 1.5 * 2**23 leaves it in the low bits.
    units = tl.abs(ratio) * 512.0 + 12582912.0
    small = units.to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(magnitude < (121 << 23), small, normal)
    return code | ((bits >> 24) & 0x80), scale


@triton.jit
def store_part(
    x,
    part,
    scales,
    row,
    used,
    HEAD_DIM: tl.constexpr,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
    KIND: tl.constexpr,
    QUANTIZED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Write those of the float32 heads x ``[N, BLOCK]`` that are ``used`` ``[N]`` to ``row``
    ``[N]`` of keys, or of values, and their scales."""
    column = tl.arange(0, x.shape[1])
    if KIND == 1 or KIND == 3:
        x = turn(x, RUN, LEVELS)
    if KIND == 1:
        x, scale = coded(x, INTERPRETED, 8, -8, 7)
        low, high = tl.split(tl.reshape(x.to(tl.int32), [x.shape[0], x.shape[1] // 2, 2]))
        half = tl.arange(0, x.shape[1] // 2)
        cells = row[:, None] * (HEAD_DIM // 2) + half[None, :]
        byte = ((low & 15) | (high << 4)).to(tl.uint8)
        tl.store(part + cells, byte, mask=used[:, None] & (half < HEAD_DIM // 2)[None, :])
    else:
        cells = row[:, None] * HEAD_DIM + column[None, :]
        inside = used[:, None] & (column < HEAD_DIM)[None, :]
        if KIND == 2:
            code, scale = float8(x, INTERPRETED)
            tl.store(part + cells, code.to(tl.uint8), mask=inside)
        elif QUANTIZED:
            x, scale = coded(x, INTERPRETED)
            tl.store(part + cells, cast(x, part.dtype.element_ty, INTERPRETED), mask=inside)
        else:
            scale = x
            tl.store(part + cells, cast(x, part.dtype.element_ty, INTERPRETED), mask=inside)
    if QUANTIZED:
        tl.store(scales + row, scale, mask=used)
