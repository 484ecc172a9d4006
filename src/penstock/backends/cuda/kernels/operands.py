"""Codes in words of 16 bits, made operands of tensor cores.

A word has the codes of two (8 bits) or four (4 bits) columns, one of each *plane* (``packing.py``).
Tensor cores take two neighbouring columns of a bfloat16 operand, or four of int8, from a register;
neighbouring words are neighbouring columns of every plane, so a plane's operands come of a register
of words by shift and mask, in place. The compiler alone would take every code out, convert it by
itself and put it back. For 4 bits that is more instructions than memory leaves time for: an H100
brings a multiprocessor 29 codes per cycle, which has 128 lanes, 64 of them for integers; here 8
codes take 11 instructions (grid: 15), the 4 multiplications among them not of integers.

The interpreter knows no assembly and computes the same numbers plainly, as do the rarer float32
activations.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply(a, b, sums, INTERPRETED: tl.constexpr):
    """Return ``sums + a @ b.T``, a ``[columns, k]``, b ``[rows, k]``, of one type.

    Float32 operands are multiplied as three products of TF32's 11 bits: those of whole numbers and
    of float16 weights come to 22 bits of the other. (The interpreter multiplies bfloat16 wrongly.)
    """
    if INTERPRETED and a.dtype.is_floating():
        a, b = a.to(tl.float32), b.to(tl.float32)
    # Triton before 3.8 takes sums for float32 by default.
    return tl.dot(a, tl.trans(b), sums, input_precision="tf32x3", out_dtype=sums.dtype)


@triton.jit
def seen(few, ks, k, EVEN: tl.constexpr):
    """Return a load's mask of columns ``ks`` of x's rows; ``EVEN``: there are no more than k."""
    if EVEN:
        return few[:, None]
    else:
        return few[:, None] & (ks < k)[None, :]


@triton.jit
def byte_of(four, index: tl.constexpr):
    """Return a signed byte of int32 ``four``, the lowest being the first."""
    return (four << (24 - 8 * index)) >> 24


@triton.jit
def _less(value):
    """Return ``-value`` of whole numbers int32 ``[c]``, for bfloat16 columns of operands."""
    return (-value).to(tl.float32).to(tl.bfloat16)[:, None]


@triton.jit
def bytes_as(words, z0, z1, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return two planes of int16 words ``[c, q]``: signed bytes less int32 zeros ``[c]``."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        # 0x4300 | u is 128 + u where u < 128. A code is its low 7 bits, less 128 if its top bit is
        # set, and 0x4300 | 128 is 256: (128 + low) - (128 or 256).
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, s, t, one, minus;
            mov.b32 one, 0x3F803F80;
            mov.b32 minus, 0xBF80BF80;
            shr.u32 q, $2, 8;
            lop3.b32 s, $2, 0x00800080, 0x43004300, 0xEA;
            lop3.b32 p, $2, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 t, q, 0x00800080, 0x43004300, 0xEA;
            lop3.b32 q, q, 0x007F007F, 0x43004300, 0xEA;
            fma.rn.bf16x2 p, s, minus, p;
            fma.rn.bf16x2 q, t, minus, q;
            fma.rn.bf16x2 $0, p, one, $3;
            fma.rn.bf16x2 $1, q, one, $4;
            }
            """,
            "=r,=r,r,r,r",
            [words, _less(z0), _less(z1)],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        wide = words.to(tl.int32)
        low = byte_of(wide, 0) - z0[:, None]
        high = byte_of(wide, 1) - z1[:, None]
        return low.to(tl.float32).to(dtype), high.to(tl.float32).to(dtype)


@triton.jit
def nibbles_as(words, z0, z1, z2, z3, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return four planes of int16 words ``[c, q]``: signed 4 bits less int32 zeros ``[c]``."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        # Four bits with the top one turned are code + 8; 0x4300 | u is 128 + u.
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, r, s, one;
            mov.b32 one, 0x3F803F80;
            shr.u32 q, $4, 4;
            shr.u32 r, $4, 8;
            shr.u32 s, $4, 12;
            lop3.b32 p, $4, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 q, q, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 r, r, 0x000F000F, 0x43084308, 0x6A;
            lop3.b32 s, s, 0x000F000F, 0x43084308, 0x6A;
            fma.rn.bf16x2 $0, p, one, $5;
            fma.rn.bf16x2 $1, q, one, $6;
            fma.rn.bf16x2 $2, r, one, $7;
            fma.rn.bf16x2 $3, s, one, $8;
            }
            """,
            "=r,=r,=r,=r,r,r,r,r,r",
            [words, _less(z0 + 136), _less(z1 + 136), _less(z2 + 136), _less(z3 + 136)],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        wide = words.to(tl.int32)
        p0 = (((wide & 15) ^ 8) - 8 - z0[:, None]).to(tl.float32).to(dtype)
        p1 = ((((wide >> 4) & 15) ^ 8) - 8 - z1[:, None]).to(tl.float32).to(dtype)
        p2 = ((((wide >> 8) & 15) ^ 8) - 8 - z2[:, None]).to(tl.float32).to(dtype)
        p3 = ((((wide >> 12) & 15) ^ 8) - 8 - z3[:, None]).to(tl.float32).to(dtype)
        return p0, p1, p2, p3


@triton.jit
def nibbles_by_16(words, INTERPRETED: tl.constexpr):
    """Return four planes of int16 words ``[c, q]``: signed 4 bits times 16, int8."""
    if INTERPRETED:
        wide = words.to(tl.int32)
        p0, p1 = (wide << 4) & 0xF0, wide & 0xF0
        p2, p3 = (wide >> 4) & 0xF0, (wide >> 8) & 0xF0
        return p0.to(tl.int8), p1.to(tl.int8), p2.to(tl.int8), p3.to(tl.int8)
    else:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, l, h;
            prmt.b32 l, $4, $5, 0x6420;
            prmt.b32 h, $4, $5, 0x7531;
            shl.b32 p, l, 4;
            shl.b32 q, h, 4;
            and.b32 $0, p, 0xF0F0F0F0;
            and.b32 $1, l, 0xF0F0F0F0;
            and.b32 $2, q, 0xF0F0F0F0;
            and.b32 $3, h, 0xF0F0F0F0;
            }
            """,
            "=r,=r,=r,=r,r,r",
            [words],
            dtype=(tl.int8, tl.int8, tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )


@triton.jit
def _step(windows, index: tl.constexpr):
    return ((windows >> (8 * index)) & 15) + 1


@triton.jit
def _origin(windows, index: tl.constexpr):
    return (windows >> (8 * index + 4)) & 15


@triton.jit
def _point(words, windows, index: tl.constexpr):
    """Return a plane's points of the grid, int32."""
    codes = (words.to(tl.int32) >> (4 * index)) & 15
    return _step(windows, index)[:, None] * (codes - _origin(windows, index)[:, None])


@triton.jit
def points_as(words, windows, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return four planes of int16 words ``[c, q]`` as points of the grid, in ``dtype``; exact.

    windows int32 ``[c]``: a byte for each plane, ``step - 1 + 16 * origin``.
    """
    if dtype == tl.bfloat16 and not INTERPRETED:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, r, s, one, nil;
            mov.b32 one, 0x3F803F80;
            mov.b32 nil, 0x80008000;
            shr.u32 q, $4, 4;
            shr.u32 r, $4, 8;
            shr.u32 s, $4, 12;
            lop3.b32 p, $4, 0x000F000F, 0x43004300, 0x6A;
            lop3.b32 q, q, 0x000F000F, 0x43004300, 0x6A;
            lop3.b32 r, r, 0x000F000F, 0x43004300, 0x6A;
            lop3.b32 s, s, 0x000F000F, 0x43004300, 0x6A;
            fma.rn.bf16x2 p, p, one, $5;
            fma.rn.bf16x2 q, q, one, $6;
            fma.rn.bf16x2 r, r, one, $7;
            fma.rn.bf16x2 s, s, one, $8;
            fma.rn.bf16x2 $0, p, $9, nil;
            fma.rn.bf16x2 $1, q, $10, nil;
            fma.rn.bf16x2 $2, r, $11, nil;
            fma.rn.bf16x2 $3, s, $12, nil;
            }
            """,
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r",
            [
                words,
                _less(_origin(windows, 0) + 128),
                _less(_origin(windows, 1) + 128),
                _less(_origin(windows, 2) + 128),
                _less(_origin(windows, 3) + 128),
                _less(-_step(windows, 0)),
                _less(-_step(windows, 1)),
                _less(-_step(windows, 2)),
                _less(-_step(windows, 3)),
            ],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        p0 = _point(words, windows, 0).to(tl.float32).to(dtype)
        p1 = _point(words, windows, 1).to(tl.float32).to(dtype)
        p2 = _point(words, windows, 2).to(tl.float32).to(dtype)
        p3 = _point(words, windows, 3).to(tl.float32).to(dtype)
        return p0, p1, p2, p3


@triton.jit
def points_as_bytes(words, windows, INTERPRETED: tl.constexpr):
    """Return what :func:`points_as` does, in int8."""
    if INTERPRETED:
        p0, p1 = _point(words, windows, 0), _point(words, windows, 1)
        p2, p3 = _point(words, windows, 2), _point(words, windows, 3)
        return p0.to(tl.int8), p1.to(tl.int8), p2.to(tl.int8), p3.to(tl.int8)
    else:
        # step * u is at most 240, so that one product is four. origin * step is then taken from
        # each byte, with nothing borrowed from the next: its low 7 bits by themselves, the top one
        # by exclusive or. What depends on windows alone ptxas has computed once a row.
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, r, s, l, h, a, b, c, o, steps, origins;
            and.b32 steps, $6, 0x0F0F0F0F;
            add.u32 steps, steps, 0x01010101;
            shr.u32 origins, $6, 4;
            and.b32 origins, origins, 0x0F0F0F0F;
            prmt.b32 l, $4, $5, 0x6420;
            prmt.b32 h, $4, $5, 0x7531;
            shr.u32 q, l, 4;
            shr.u32 s, h, 4;
            and.b32 p, l, 0x0F0F0F0F;
            and.b32 q, q, 0x0F0F0F0F;
            and.b32 r, h, 0x0F0F0F0F;
            and.b32 s, s, 0x0F0F0F0F;
            prmt.b32 a, steps, 0, 0x4440;
            prmt.b32 o, origins, 0, 0x4440;
            mul.lo.u32 p, p, a;
            mul.lo.u32 c, o, a;
            prmt.b32 c, c, 0, 0;
            and.b32 b, c, 0x7F7F7F7F;
            or.b32 a, p, 0x80808080;
            sub.u32 a, a, b;
            xor.b32 p, p, c;
            lop3.b32 $0, p, 0x80808080, a, 0xA6;
            prmt.b32 a, steps, 0, 0x4441;
            prmt.b32 o, origins, 0, 0x4441;
            mul.lo.u32 q, q, a;
            mul.lo.u32 c, o, a;
            prmt.b32 c, c, 0, 0;
            and.b32 b, c, 0x7F7F7F7F;
            or.b32 a, q, 0x80808080;
            sub.u32 a, a, b;
            xor.b32 q, q, c;
            lop3.b32 $1, q, 0x80808080, a, 0xA6;
            prmt.b32 a, steps, 0, 0x4442;
            prmt.b32 o, origins, 0, 0x4442;
            mul.lo.u32 r, r, a;
            mul.lo.u32 c, o, a;
            prmt.b32 c, c, 0, 0;
            and.b32 b, c, 0x7F7F7F7F;
            or.b32 a, r, 0x80808080;
            sub.u32 a, a, b;
            xor.b32 r, r, c;
            lop3.b32 $2, r, 0x80808080, a, 0xA6;
            prmt.b32 a, steps, 0, 0x4443;
            prmt.b32 o, origins, 0, 0x4443;
            mul.lo.u32 s, s, a;
            mul.lo.u32 c, o, a;
            prmt.b32 c, c, 0, 0;
            and.b32 b, c, 0x7F7F7F7F;
            or.b32 a, s, 0x80808080;
            sub.u32 a, a, b;
            xor.b32 s, s, c;
            lop3.b32 $3, s, 0x80808080, a, 0xA6;
            }
            """,
            "=r,=r,=r,=r,r,r,r,r,r,r",
            [words, windows[:, None]],
            dtype=(tl.int8, tl.int8, tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
