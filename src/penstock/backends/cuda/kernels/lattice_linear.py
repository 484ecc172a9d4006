"""Products with lattice points: 8 neighbouring columns of a row are one code.

A code becomes a word of 8 nibbles by two look-ups (``lattice_tables.py``), and the nibbles of two
neighbouring codes become two bfloat16 of each component, by shift, mask and one multiplication in
place. Component i of the codes of 256 columns is a plane of 32, so x has its columns in that order
(``turn.py`` writes it so): plane by plane, and not point by point.

Floors. Codes of 2 bits of an ``[4096, 4096]`` matrix are 4 MiB, 1.3 us of an H100's memory, which
brings a multiprocessor 58 columns a cycle. 16 columns take 26 instructions and some 8 for looking
up, of which all but 8 are of integers, and for these a multiprocessor has 64 lanes; and four
look-ups in 1 KiB each, whose lines of 128 bytes are read one a cycle. So about 20 columns a cycle
are to be expected, with 2 bits a third of what memory would bring. None of this has been measured.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import multiply
from penstock.backends.cuda.lattice_tables import SIGNS, SMALL
from penstock.quant.lattice_matrix import RESIDUAL_SCALES

PLANE: Final = 32
"""Codes of a row that are read at once: each has one column of every plane."""
_SIGNS = tl.constexpr(SIGNS)
_SMALL = tl.constexpr(SMALL)
_OF_SMALL = tl.constexpr(float(1 / RESIDUAL_SCALES[3]))
_OF_SECOND = tl.constexpr(float(1 / RESIDUAL_SCALES[4]))


@triton.jit
def lattice_section(
    x, w, second, tables, x_rows, w_rows, few, first, last, P: tl.constexpr,
):  # fmt: skip
    """Return ``points @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    x has its columns by planes, and zeros from k on. w int16 ``[n, padded / 8]`` has codes of E8P;
    with 3 bits second has those of the smaller codebook, uint8, with 4 bits more of E8P. tables:
    ``lattice_tables()``.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    BITS: tl.constexpr = P.bits
    element: tl.constexpr = x.dtype.element_ty
    within = tl.arange(0, P.plane)
    sums = tl.zeros([COLS, ROWS], tl.float32)
    rest = tl.zeros([COLS, ROWS], tl.float32)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        places = w_rows[:, None] + (at // 8 + within)[None, :]
        a = _e8p(tl.load(w + places), tables, element, P.interpreted)
        if BITS == 3:
            found = tl.load(tables + _SMALL + tl.load(second + places).to(tl.int32))
            more = components(found, False, element, P.interpreted)
        elif BITS == 4:
            more = _e8p(tl.load(second + places), tables, element, P.interpreted)
        for plane in tl.static_range(8):
            ks = at + plane * P.plane + within
            b = tl.load(x + x_rows[:, None] + ks[None, :], mask=few[:, None], other=0)
            sums = multiply(a[plane], b, sums, P.interpreted)
            if BITS > 2:
                rest = multiply(more[plane], b, rest, P.interpreted)
    if BITS > 2:
        sums += rest * (_OF_SMALL if BITS == 3 else _OF_SECOND)
    return sums


@triton.jit
def _e8p(codes, tables, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return the components of codes of E8P int16 ``[c, q]``."""
    wide = codes.to(tl.int32)
    sizes = tl.load(tables + (wide & 255))
    signs = tl.load(tables + _SIGNS + ((wide >> 8) & 255))
    return components(sizes ^ signs, True, dtype, INTERPRETED)


@triton.constexpr_function
def assembly(moved: bool) -> str:
    """Components $0 to $7 of two neighbouring words $8 and $9, in bfloat16."""
    # The mantissa of a bfloat16 from 32 to 64 counts quarters: a nibble lies a bit higher.
    base = 0x42014201 if moved else 0x42004200
    lines = [
        ".reg .b32 one, minus, l, h, t;",
        "mov.b32 one, 0x3F803F80;",
        "mov.b32 minus, 0xC210C210;",  # 32, and half of the 8 that a nibble has too much
        "prmt.b32 l, $8, $9, 0x5410;",
        "prmt.b32 h, $8, $9, 0x7632;",
    ]
    for component in range(8):
        four, shift = "lh"[component // 4], 4 * (component % 4) - 1
        way = f"shl.b32 t, {four}, 1;" if shift < 0 else f"shr.u32 t, {four}, {shift};"
        lines.append(way)
        lines.append(f"lop3.b32 t, t, 0x001E001E, 0x{base:08X}, 0xEA;")
        lines.append(f"fma.rn.bf16x2 ${component}, t, one, minus;")
    return "{\n" + "\n".join(lines) + "\n}"


@triton.jit
def components(words, MOVED: tl.constexpr, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return the 8 components of words int32 ``[c, q]`` of nibbles: ``nibble / 2 - 4``, and a
    quarter where points are ``MOVED``. All are exact in every type of x."""
    if dtype == tl.bfloat16 and not INTERPRETED:
        return tl.inline_asm_elementwise(
            assembly(MOVED),
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
            [words],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=2,
        )
    else:
        p0 = _component(words, 0, MOVED, dtype)
        p1 = _component(words, 1, MOVED, dtype)
        p2 = _component(words, 2, MOVED, dtype)
        p3 = _component(words, 3, MOVED, dtype)
        p4 = _component(words, 4, MOVED, dtype)
        p5 = _component(words, 5, MOVED, dtype)
        p6 = _component(words, 6, MOVED, dtype)
        p7 = _component(words, 7, MOVED, dtype)
        return p0, p1, p2, p3, p4, p5, p6, p7


@triton.jit
def _component(words, index: tl.constexpr, MOVED: tl.constexpr, dtype: tl.constexpr):
    less: tl.constexpr = 3.75 if MOVED else 4.0
    return (((words >> (4 * index)) & 15).to(tl.float32) * 0.5 - less).to(dtype)
