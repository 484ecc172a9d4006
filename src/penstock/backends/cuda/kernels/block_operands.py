"""Codes and marks of blocks (``block_layouts.py``), made operands and scales.

Kernels are compiled for a :class:`BlockLayout`, their constant ``LAYOUT``. Points are whole numbers
of 8 bits, or numbers whose mantissa has 4, so operands are exact in bfloat16 and float16 alike. As
in ``operands.py``, codes become bfloat16 in place, two neighbouring columns of each plane at a
time; the interpreter, and the rarer other types, take codes out one by one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.block_layouts import MARKED, BlockLayout
from penstock.backends.cuda.kernels.operands import bytes_as


@triton.constexpr_function
def _assembly(values: str, zero: int, low: int, high: int) -> str:
    """Four planes $0 to $3 of words $4, and of bits $5 where there are any, in bfloat16; of codes
    of 8 bits two planes of words $2."""
    lines = [".reg .b32 one, minus, scale, p, q, s, t, u, v, a, b, c;"]
    if low == 8:
        # Four bits of exponent and three of mantissa are those of a bfloat16 times 2**-120, also
        # where the exponent is 0.
        lines.append("mov.b32 scale, 0x7B807B80;")
        lines.append("mov.b32 minus, 0;")
        for plane in range(2):
            lines.append("shl.b32 t, $2, 4;" if plane == 0 else "shr.u32 t, $2, 4;")
            lines.append("and.b32 t, t, 0x07F007F0;")
            lines.append(f"shl.b32 s, $2, {8 - 8 * plane};")
            lines.append("lop3.b32 p, s, 0x80008000, t, 0xEA;")
            lines.append(f"fma.rn.bf16x2 ${plane}, p, scale, minus;")
        return "{\n" + "\n".join(lines) + "\n}"
    for plane in range(4):
        at = f"${plane}"
        if values == "whole":
            if plane == 0:
                # 0x4300 | u is 128 + u where u < 128. Whole numbers up to 256 are bfloat16 whose
                # last bit is 1.
                less = 128 + zero
                lines.append("mov.b32 one, 0x3F803F80;")
                lines.append(f"mov.b32 minus, 0x{(0xC300 + less - 128) * 0x10001:08X};")
            mask = (1 << low) - 1
            lines.append(f"shr.u32 t, $4, {low * plane};")
            lines.append(f"lop3.b32 p, t, 0x{mask * 0x10001:08X}, 0x43004300, 0xEA;")
            if high:
                mask = ((1 << high) - 1) << low
                shift = low - high * plane
                way = f"shl.b32 t, $5, {shift}" if shift >= 0 else f"shr.u32 t, $5, {-shift}"
                lines.append(way + ";")
                lines.append(f"lop3.b32 p, t, 0x{mask * 0x10001:08X}, p, 0xEA;")
            lines.append(f"fma.rn.bf16x2 {at}, p, one, minus;")
        elif values == "e2m1":
            # Two bits of exponent and one of mantissa are those of a bfloat16 times 2**-127, also
            # where they are 0 and 1; what is added makes -0 0.
            if plane == 0:
                lines.append("mov.b32 scale, 0x7F007F00;")
                lines.append("mov.b32 minus, 0;")
            shift = 6 - 4 * plane
            way = f"shl.b32 t, $4, {shift}" if shift >= 0 else f"shr.u32 t, $4, {-shift}"
            lines.append(way + ";")
            lines.append("and.b32 t, t, 0x01C001C0;")
            lines.append(f"shl.b32 s, $4, {12 - 4 * plane};")
            lines.append("lop3.b32 p, s, 0x80008000, t, 0xEA;")
            lines.append(f"fma.rn.bf16x2 {at}, p, scale, minus;")
        else:
            # Bytes of the table by place: codes 0 to 7, and 8 to 15, and which of the two. Then
            # the bytes of both words' codes of a plane, as bytes_as makes numbers of them.
            if plane == 0:
                table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
                fours = [
                    sum((value & 255) << 8 * i for i, value in enumerate(table[k : k + 4]))
                    for k in (0, 4, 8, 12)
                ]
                for name, four in zip("pqab", fours, strict=True):
                    lines.append(f"mov.b32 {name}, 0x{four:08X};")
                lines.append("mov.b32 one, 0xBF80BF80;")
                lines.append("and.b32 s, $4, 0x77777777;")
                lines.append("and.b32 t, $4, 0x88888888;")
                lines.append("shr.u32 t, t, 1;")
                lines.append("or.b32 t, t, 0x32103210;")
                lines.append("prmt.b32 u, p, q, s;")
                lines.append("prmt.b32 v, a, b, s;")
                lines.append("prmt.b32 c, u, v, t;")
                lines.append("shr.u32 s, s, 16;")
                lines.append("shr.u32 t, t, 16;")
                lines.append("prmt.b32 u, p, q, s;")
                lines.append("prmt.b32 v, a, b, s;")
                lines.append("prmt.b32 u, u, v, t;")
            places = plane | plane << 4 | (4 + plane) << 8 | (4 + plane) << 12
            lines.append(f"prmt.b32 p, c, u, 0x{places:04X};")
            lines.append("lop3.b32 s, p, 0x00800080, 0x43004300, 0xEA;")
            lines.append("lop3.b32 p, p, 0x007F007F, 0x43004300, 0xEA;")
            lines.append(f"fma.rn.bf16x2 {at}, s, one, p;")
    return "{\n" + "\n".join(lines) + "\n}"


@triton.jit
def code_of(words, bits, index, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Return codes of planes ``index``, int32."""
    code = (words.to(tl.int32) >> (LOW * index)) & ((1 << LOW) - 1)
    if HIGH > 0:
        code = code | (((bits.to(tl.int32) >> (HIGH * index)) & ((1 << HIGH) - 1)) << LOW)
    return code


@triton.jit
def e4m3_of(code):
    """Return numbers of 4 bits of exponent and 3 of mantissa, int32 without a sign, float32."""
    exponent, mantissa = code >> 3, (code & 7).to(tl.float32)
    power = ((exponent + 117) << 23).to(tl.float32, bitcast=True)  # of 2, less 10
    return tl.where(exponent == 0, mantissa * 0.001953125, (8.0 + mantissa) * power)


@triton.jit
def point_of(code, LAYOUT: tl.constexpr):
    """Return the points that codes int32 stand for: int32, float32 where they are no integers."""
    if LAYOUT.values == "e4m3":
        size = e4m3_of(code & 127)
        point = tl.where(code > 127, -size, size)
    elif LAYOUT.values == "whole":
        point = code - LAYOUT.zero
    elif LAYOUT.values == "signed":
        point = (code ^ 128) - 128
    elif LAYOUT.values == "e2m1":
        # 0, 1, 2, 3, 4, 6, 8, 12
        size = code & 7
        step = tl.maximum((size >> 1) - 1, 0)
        most = tl.where(size < 2, size, (2 + (size & 1)) << step)
        point = tl.where(code > 7, -most, most)
    else:
        tl.static_assert(LAYOUT.values == "iq4")
        # A byte of -127, -104, -83, ... 113 each.
        low = (0xF6EADDCFBFAD9881 >> ((code & 7) * 8).to(tl.uint64)).to(tl.int32)
        high = (0x7159453526190D01 >> ((code & 7) * 8).to(tl.uint64)).to(tl.int32)
        four = tl.where(code > 7, high, low)
        point = ((four & 255) ^ 128) - 128
    return point


@triton.jit
def _plain(
    words, bits, index: tl.constexpr, LOW: tl.constexpr, LAYOUT: tl.constexpr, dtype: tl.constexpr
):
    code = code_of(words, bits, index, LOW, LAYOUT.high)
    return point_of(code, LAYOUT).to(tl.float32).to(dtype)


@triton.jit
def block_points(
    words, bits, columns,
    LOW: tl.constexpr, LAYOUT: tl.constexpr, dtype: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Return the planes ``[c, plane]`` of words ``[c, plane]``, points in ``dtype``.

    bits: bytes, of which the lowest bits are those of these planes; anything where the layout
    has none.
    """
    if LOW == 8:
        if LAYOUT.values == "signed":
            zero = tl.zeros_like(columns).to(tl.int32)
            return bytes_as(words, zero, zero, dtype, INTERPRETED)
        elif dtype == tl.bfloat16 and not INTERPRETED:
            return tl.inline_asm_elementwise(
                _assembly("e4m3", 0, 8, 0),
                "=r,=r,r",
                [words],
                dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        else:
            low = _plain(words, bits, 0, LOW, LAYOUT, dtype)
            high = _plain(words, bits, 1, LOW, LAYOUT, dtype)
            return low, high
    else:
        if dtype == tl.bfloat16 and not INTERPRETED:
            if LAYOUT.high > 0:
                return tl.inline_asm_elementwise(
                    _assembly(LAYOUT.values, LAYOUT.zero, LOW, LAYOUT.high),
                    "=r,=r,=r,=r,r,r",
                    [words.to(tl.int16), bits.to(tl.int16)],
                    dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                    is_pure=True,
                    pack=2,
                )
            else:
                return tl.inline_asm_elementwise(
                    _assembly(LAYOUT.values, LAYOUT.zero, LOW, 0),
                    "=r,=r,=r,=r,r",
                    [words.to(tl.int16)],
                    dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                    is_pure=True,
                    pack=2,
                )
        else:
            p0 = _plain(words, bits, 0, LOW, LAYOUT, dtype)
            p1 = _plain(words, bits, 1, LOW, LAYOUT, dtype)
            p2 = _plain(words, bits, 2, LOW, LAYOUT, dtype)
            p3 = _plain(words, bits, 3, LOW, LAYOUT, dtype)
            return p0, p1, p2, p3


@triton.jit
def _half(two, index):
    """Return a number in float16 of int32 ``two``, the lower being the first."""
    return (two >> (16 * index)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(four, index):
    return (four >> (8 * index)) & 255


@triton.jit
def scale_of(four, unit, index, LAYOUT: tl.constexpr):
    """Return the scale float32 of the plane that is ``index`` in marks ``four``, with its units."""
    if LAYOUT.scales == "halves":
        scale = _half(four, index)
    elif LAYOUT.scales == "levels":
        level = _byte(four, index)
        scale = _half(unit, 0) * ((level ^ 128) - 128).to(tl.float32)
    elif LAYOUT.scales == "pairs":
        scale = _half(unit, 0) * (_byte(four, index) & 15).to(tl.float32)
    elif LAYOUT.scales == "singles":
        scale = four.to(tl.float32, bitcast=True)
    elif LAYOUT.scales == "products":
        scale = unit.to(tl.float32, bitcast=True) * e4m3_of(_byte(four, index) & 127) * 0.5
    elif LAYOUT.scales == "powers":
        # 2 ** (byte - 127), of which the least is no normal number
        byte = _byte(four, index)
        scale = tl.where(byte > 0, byte << 23, 0x00400000).to(tl.float32, bitcast=True)
    elif LAYOUT.scales == "e8m0":
        # 2 ** (byte - 128), of which the two least are no normal numbers
        byte = _byte(four, index)
        number = tl.where(byte > 1, (byte - 1) << 23, 0x00200000 << (byte & 1))
        scale = number.to(tl.float32, bitcast=True)
    else:
        tl.static_assert(LAYOUT.scales == "e4m3")
        byte = _byte(four, index)
        scale = tl.where(byte == 127, 0.0, e4m3_of(byte & 127) * 0.5)
    return scale


@triton.jit
def least_of(four, unit, index, LAYOUT: tl.constexpr):
    """Return likewise what is added to a plane's values."""
    if LAYOUT.scales == "halves":
        least = _half(four, index)
    elif LAYOUT.scales == "levels":
        least = _half(unit, 1) * _byte(four, index).to(tl.float32)
    else:
        tl.static_assert(LAYOUT.scales == "pairs")
        least = _half(unit, 1) * (_byte(four, index) >> 4).to(tl.float32)
    return least


@triton.constexpr_function
def mark_of(layout: BlockLayout, index: int, least: bool) -> int:
    """Which of a 128 columns' marks has the scale, or the least value, of plane ``index``."""
    if layout.scales == "singles":
        return index * layout.plane // layout.shared
    if layout.scales == "halves":
        return index if layout.least else index // 2
    levels = MARKED // layout.plane // 4 if least and layout.scales == "levels" else 0
    return levels + index // 4


@triton.constexpr_function
def place_of(layout: BlockLayout, index: int, least: bool) -> int:
    """Where in its mark it is."""
    if layout.scales == "halves":
        if layout.least:
            return 1 if least else 0
        return index % 2
    return index % 4
