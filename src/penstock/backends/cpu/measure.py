"""Measures this machine's peak bandwidth and arithmetic, with the instructions that kernels use.

Each is measured again and again until the best three measurements agree within 2 %: a third of a
second on a quiet machine, and ``seconds`` at most. Other work on the machine only lowers figures.
"""

from __future__ import annotations

import msgspec

from penstock.backends.cpu.native import load


class Ceiling(msgspec.Struct, frozen=True):
    """A rate that nothing on this machine exceeds."""

    rate: float  # the best measurement, a second
    spread: float = 0.0
    """How much less the third best was, as a part of ``rate``: how far that can be trusted."""


def reading(num_bytes: int, threads: int, seconds: float = 3.0) -> Ceiling:
    """Bytes a second that ``threads`` threads read from one array of ``num_bytes``.

    Give it several times the last-level caches, or it measures these. Numbers of streams and
    distances of prefetching are tried, and the fastest count.
    """
    if num_bytes < 1:
        raise ValueError("num_bytes must be at least 1")
    return Ceiling(*load().measure_reading(num_bytes, threads, seconds))


def f32(threads: int = 1, seconds: float = 2.0) -> Ceiling:
    """Operations a second of float32 products and sums, a multiply-add being two."""
    return Ceiling(*load().measure_f32(threads, seconds))


def bf16(threads: int = 1, seconds: float = 2.0) -> Ceiling:
    """Operations a second of bfloat16 products summed in float32, a multiply-add being two.

    Of the best instruction in the loaded variant: TDPBF16PS (amx), VDPBF16PS (avx512), BFMMLA
    (i8mm), or the float32 multiply-add that stands in for them elsewhere.
    """
    return Ceiling(*load().measure_bf16(threads, seconds))


def int8(threads: int = 1, seconds: float = 2.0) -> Ceiling | None:
    """Operations a second of 8-bit products summed in 32 bits, a multiply-add being two.

    Of the best instructions in the loaded variant: TDPBUSD (amx), VPDPBUSD (avx512, avx_vnni),
    PMADDUBSW and its additions, for weights of 4 bits (avx2), USMMLA (i8mm), SDOT (dotprod), SMULL
    and SADALP (neon). None on ``baseline``, which has none.
    """
    found = Ceiling(*load().measure_int8(threads, seconds))
    return found if found.rate else None
