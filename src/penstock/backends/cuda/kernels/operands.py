"""From codes in bytes to operands of tensor cores.

A thread holds four bytes of codes to a register, and its operands two bfloat16 or four int8 to one.
Compiled code works on whole registers: the compiler would take every byte out, convert it by itself
and put it back, which for 4 bits costs more instructions than the memory leaves time for (an H100
brings a multiprocessor 29 such codes per cycle, and it has 64 integer lanes; here they take 13 to
16 instructions per 8 codes). The interpreter knows no assembly and computes the same numbers
plainly, as do the rarer float32 activations.

Packed 4-bit codes have one column in a byte's low half, and one half a unit on in its high half
(``packing.py``), so that both come out as operands by shift and mask, in place.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply(a, b, sums, INTERPRETED: tl.constexpr):
    """``sums + a @ b.T``, a ``[columns, k]``, b ``[rows, k]``, of one type.

    Float32 operands are multiplied as three products of TF32's 11 bits: those of whole numbers and
    of float16 weights come to 22 bits of the other. (The interpreter multiplies bfloat16 wrongly.)
    """
    if INTERPRETED and a.dtype.is_floating():
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, tl.trans(b), sums, input_precision="tf32x3")


@triton.jit
def bytes_as(codes, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """int8 ``codes`` in the floating ``dtype``; exact."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        # 0x4300 | u is 128 + u where u < 128. A code is its low 7 bits, less 128 if its top bit is
        # set, and 0x4300 | 128 is 256: (128 + low) - (128 or 256).
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, s, t, less;
            mov.b32 less, 0xBF80BF80;
            prmt.b32 p, $2, 0, 0x4140;
            prmt.b32 q, $2, 0, 0x4342;
            lop3.b32 s, p, 0x00800080, 0x43004300, 0xEA;
            lop3.b32 t, q, 0x00800080, 0x43004300, 0xEA;
            lop3.b32 p, p, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 q, q, 0x007F007F, 0x43004300, 0xEA;
            fma.rn.bf16x2 $0, s, less, p;
            fma.rn.bf16x2 $1, t, less, q;
            }
            """,
            "=r,=r,r",
            [codes],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        return codes.to(tl.float32).to(dtype)


@triton.jit
def bytes_less(codes, zeros, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """int8 codes ``[c, k]`` less zeros int32 ``[c]``, in the floating ``dtype``; exact."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        return bytes_as(codes, dtype, INTERPRETED) - zeros.to(tl.float32).to(tl.bfloat16)[:, None]
    else:
        return (codes.to(tl.float32) - zeros.to(tl.float32)[:, None]).to(dtype)


@triton.jit
def halves_as(packed, low_zeros, high_zeros, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Both halves of bytes ``[c, k]`` as signed 4 bits, less zeros int32 ``[c]``; exact."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        # A half with its top bit turned is code + 8; 0x4300 | u is 128 + u.
        low = -(low_zeros + 136).to(tl.float32).to(tl.bfloat16)[:, None]
        high = -(high_zeros + 136).to(tl.float32).to(tl.bfloat16)[:, None]
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, r, s, one;
            mov.b32 one, 0x3F803F80;
            prmt.b32 p, $4, 0, 0x4140;
            prmt.b32 q, $4, 0, 0x4342;
            shr.u32 r, p, 4;
            shr.u32 s, q, 4;
            lop3.b32 p, p, 0x000F000F, 0x43084308, 0x6A;
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
            [packed, low, high],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        wide = packed.to(tl.int32)
        low_points = ((wide & 15) ^ 8) - 8 - low_zeros[:, None]
        high_points = (((wide >> 4) & 15) ^ 8) - 8 - high_zeros[:, None]
        return low_points.to(tl.float32).to(dtype), high_points.to(tl.float32).to(dtype)


@triton.jit
def halves_by_16(packed, INTERPRETED: tl.constexpr):
    """Both halves of bytes ``[c, k]`` as signed 4 bits times 16, int8."""
    if INTERPRETED:
        wide = packed.to(tl.int32)
        return (wide << 4).to(tl.int8), (wide & 0xF0).to(tl.int8)
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 p;
        shl.b32 p, $2, 4;
        and.b32 $0, p, 0xF0F0F0F0;
        and.b32 $1, $2, 0xF0F0F0F0;
        }
        """,
        "=r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def windows_as(packed, low_window, high_window, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Both halves of bytes ``[c, k]`` as points of the grid, in the floating ``dtype``; exact.

    Windows int32 ``[c]``: ``step - 1 + 16 * origin``.
    """
    if dtype == tl.bfloat16 and not INTERPRETED:
        low_step = ((low_window & 15) + 1).to(tl.float32).to(tl.bfloat16)[:, None]
        high_step = ((high_window & 15) + 1).to(tl.float32).to(tl.bfloat16)[:, None]
        low_less = -((low_window >> 4) + 128).to(tl.float32).to(tl.bfloat16)[:, None]
        high_less = -((high_window >> 4) + 128).to(tl.float32).to(tl.bfloat16)[:, None]
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 p, q, r, s, one, nil;
            mov.b32 one, 0x3F803F80;
            mov.b32 nil, 0x80008000;
            prmt.b32 p, $4, 0, 0x4140;
            prmt.b32 q, $4, 0, 0x4342;
            shr.u32 r, p, 4;
            shr.u32 s, q, 4;
            lop3.b32 p, p, 0x000F000F, 0x43004300, 0x6A;
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
            [packed, low_less, high_less, low_step, high_step],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = _points(packed, low_window, high_window)
        return low.to(tl.float32).to(dtype), high.to(tl.float32).to(dtype)


@triton.jit
def windows_as_bytes(packed, low_window, high_window, INTERPRETED: tl.constexpr):
    """Both halves of bytes ``[c, k]`` as points of the grid, int8; windows int32 ``[c]``."""
    if INTERPRETED:
        low, high = _points(packed, low_window, high_window)
        return low.to(tl.int8), high.to(tl.int8)
    low_step, high_step = (low_window & 15) + 1, (high_window & 15) + 1
    low_less = -(low_window >> 4) * low_step
    high_less = -(high_window >> 4) * high_step
    # step * u is at most 240: four products in one. Bytes are added without carries between them.
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 l, h, s, t, a, b;
        and.b32 l, $2, 0x0F0F0F0F;
        shr.u32 h, $2, 4;
        and.b32 h, h, 0x0F0F0F0F;
        and.b32 s, $3, 0xFF;
        and.b32 t, $4, 0xFF;
        mul.lo.u32 l, l, s;
        mul.lo.u32 h, h, t;
        and.b32 a, l, 0x7F7F7F7F;
        and.b32 b, $5, 0x7F7F7F7F;
        add.u32 a, a, b;
        xor.b32 l, l, $5;
        and.b32 l, l, 0x80808080;
        xor.b32 $0, a, l;
        and.b32 a, h, 0x7F7F7F7F;
        and.b32 b, $6, 0x7F7F7F7F;
        add.u32 a, a, b;
        xor.b32 h, h, $6;
        and.b32 h, h, 0x80808080;
        xor.b32 $1, a, h;
        }
        """,
        "=r,=r,r,r,r,r,r",
        [
            packed,
            low_step.to(tl.int8)[:, None],
            high_step.to(tl.int8)[:, None],
            low_less.to(tl.int8)[:, None],
            high_less.to(tl.int8)[:, None],
        ],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def _points(packed, low_window, high_window):
    wide = packed.to(tl.int32)
    low = ((low_window & 15) + 1)[:, None] * ((wide & 15) - (low_window >> 4)[:, None])
    high = ((high_window & 15) + 1)[:, None] * (((wide >> 4) & 15) - (high_window >> 4)[:, None])
    return low, high
