"""Measures this machine's peak bandwidth and arithmetic, with the instructions that kernels use.

Each takes about half a second. Other work on the machine lowers the figures.
"""

from __future__ import annotations

from penstock.backends.cpu.native import load


def measure_read_bandwidth(num_bytes: int, threads: int) -> float:
    """Bytes a second that ``threads`` threads read from one array of ``num_bytes``.

    Give it several times the last-level cache, or it measures the cache. The best pass counts.
    """
    if num_bytes < 1 or threads < 1:
        raise ValueError("num_bytes and threads must be at least 1")
    return load().measure_read_bandwidth(num_bytes, threads)


def measure_bf16_flops(threads: int = 1) -> float:
    """Operations a second of bfloat16 products summed in float32, a multiply-add being two.

    Of the best instruction in the loaded variant: TDPBF16PS (amx), VDPBF16PS (avx512), or the
    float32 multiply-add that stands in for them elsewhere.
    """
    if threads < 1:
        raise ValueError("threads must be at least 1")
    return load().measure_bf16_flops(threads)


def measure_int8_ops(threads: int = 1) -> float:
    """Operations a second of 8-bit products summed in 32 bits, a multiply-add being two.

    Of the best instruction in the loaded variant: TDPBUSD (amx), VPDPBUSD (avx512), PMADDUBSW
    and two more (avx2); 0.0 on ``baseline``, which has none.
    """
    if threads < 1:
        raise ValueError("threads must be at least 1")
    return load().measure_int8_ops(threads)
