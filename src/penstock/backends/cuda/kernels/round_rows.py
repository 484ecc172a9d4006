"""Activations rounded to int8, as ``plan.ops.Linear`` defines it, bit by bit."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.cast import nearest_whole


@triton.jit
def round_rows_kernel(
    x,
    codes,
    scales,
    sums,
    k,
    padded,
    x_stride,
    codes_stride,
    BY_QUOTIENT: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Round rows, one a program, to codes int8 ``[rows, padded]`` and scales float32 ``[rows]``.

    Codes are zero from column k on.

    Codes are ``x * (127 / max|x|)`` as on the grid, or ``BY_QUOTIENT`` ``x / scale`` as in groups.
    ``SUMS``: sums int32 ``[rows]`` receive those of a row's codes.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    bits = tl.zeros([BLOCK], tl.int32)
    for at in range(0, k, BLOCK):
        value = tl.load(x + row * x_stride + at + columns, mask=at + columns < k, other=0.0)
        bits = tl.maximum(bits, _magnitude(value))
    # One element wide: divisions of tensors can be asked to round correctly.
    top = tl.max(bits, axis=0, keep_dims=True)
    scale, by, usable = _scale(top, BY_QUOTIENT)
    tl.store(scales + row + tl.arange(0, 1), scale)
    total = tl.zeros([BLOCK], tl.int32)
    for at in range(0, padded, BLOCK):
        value = tl.load(x + row * x_stride + at + columns, mask=at + columns < k, other=0.0)
        code = _codes(value.to(tl.float32), by, usable, BY_QUOTIENT)
        total += code.to(tl.int32)
        tl.store(codes + row * codes_stride + at + columns, code, mask=at + columns < padded)
    if SUMS:
        tl.store(sums + row, tl.sum(total, axis=0))


@triton.jit
def transform_rows_kernel(x, out, x_stride, out_stride, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """``penstock.quant.hadamard.transform_rows`` of a block of ``BLOCK = 2 ** STAGES`` columns.

    Grid: rows, blocks. out float32.
    """
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    columns = tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + first + columns).to(tl.float32)
    mixed = columns.to(tl.uint32) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA77
    odd = (mixed ^ (mixed >> 13)) & 1
    value = value * tl.where(odd == 1, -1.0 / BLOCK, 1.0 / BLOCK)
    for stage in tl.static_range(STAGES):
        # Columns as [further, pair, distance]; the pair's two are brought to the end and apart.
        pairs = tl.reshape(value, [BLOCK // (2 << stage), 2, 1 << stage])
        one, other = tl.split(tl.permute(pairs, 0, 2, 1))
        value = tl.reshape(tl.permute(tl.join(one + other, one - other), 0, 2, 1), [BLOCK])
    tl.store(out + row * out_stride + first + columns, value)


@triton.jit(do_not_specialize=["groups_stride"])
def round_groups_kernel(
    x,
    codes,
    scales,
    sums,
    k,
    padded,
    x_stride,
    codes_stride,
    groups_stride,
    SUMS: tl.constexpr,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Round ``GROUPS`` groups of ``SIZE`` columns of one row as ``round_rows_kernel`` rounds rows,
    but with scales and sums ``[groups, rows]``.

    Grid: rows, groups of groups. Groups that begin at ``padded`` or later are left out.
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + row * x_stride + columns, mask=columns < k, other=0.0)
    top = tl.max(_magnitude(value), axis=1, keep_dims=True)
    scale, by, usable = _scale(top, True)
    inside = group[:, None] * SIZE < padded
    at = group[:, None].to(tl.int64) * groups_stride + row
    tl.store(scales + at, scale, mask=inside)
    code = _codes(value.to(tl.float32), by, usable, True)
    tl.store(codes + row * codes_stride + columns, code, mask=inside)
    if SUMS:
        total = tl.sum(code.to(tl.int32), axis=1, keep_dims=True)
        tl.store(sums + at, total, mask=inside)


@triton.jit
def _magnitude(value):
    """Return ``|value|`` as bits, which order as numbers do, infinity and then NaN above all."""
    return value.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _scale(top, BY_QUOTIENT: tl.constexpr):
    """Return scales, what codes are multiplied (or divided) by, and whether any code is not 0."""
    finite = top < 0x7F800000
    most = tl.where(finite, top, 0).to(tl.float32, bitcast=True)
    scale = tl.div_rn(most, tl.full(top.shape, 127.0, tl.float32))
    if BY_QUOTIENT:
        usable = scale > 0
        by = tl.where(usable, scale, 1.0)
    else:
        usable = most >= 1e-30
        by = tl.div_rn(tl.full(top.shape, 127.0, tl.float32), tl.where(usable, most, 1.0))
        scale = tl.where(usable, scale, 0.0)
    return tl.where(finite, scale, float("nan")), by, usable


@triton.jit
def _codes(value, by, usable, BY_QUOTIENT: tl.constexpr):
    value = tl.where(usable, value, 0.0)
    scaled = tl.div_rn(value, tl.broadcast_to(by, value.shape)) if BY_QUOTIENT else value * by
    return tl.minimum(tl.maximum(nearest_whole(scaled), -127.0), 127.0).to(tl.int8)
