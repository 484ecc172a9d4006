"""What the device can do at most: reading memory, and multiplying matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import triton
import triton.language as tl

from gpu.results import Ceilings
from gpu.timing import Timer, best

_LEAST_SPAN = 1 << 30
_BLOCKS = ((1024, 16), (2048, 8), (4096, 8))
"""Integers that a program reads at once, and how often; which is fastest depends on the device."""
_MATRIX_SIZES = (4096, 8192)


@triton.jit  # type: ignore[untyped-decorator]
def _read(numbers, sums, BLOCK: tl.constexpr, TIMES: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * BLOCK * TIMES
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(TIMES):
        total += tl.load(numbers + first + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums + tl.program_id(0), tl.sum(total))


def read_all(numbers: torch.Tensor, sums: torch.Tensor, block: int, times: int) -> None:
    """Read ``numbers`` int32, a multiple of ``block * times``, once; sums of the parts to
    ``sums``."""
    parts = numbers.numel() // (block * times)
    _read[(parts,)](numbers, sums[:parts], BLOCK=block, TIMES=times, num_warps=8)


def span(l2_bytes: int, free_bytes: int) -> int:
    """Bytes to read so that the L2 cache hardly helps, a multiple of every kernel's part.

    Raises ValueError where so much memory is not free.
    """
    wanted = max(_LEAST_SPAN, 8 * l2_bytes)
    if min(wanted, free_bytes // 2) < 4 * l2_bytes:
        raise ValueError(
            f"{free_bytes >> 20} MiB are free on the GPU, too little to measure its bandwidth past "
            f"an L2 cache of {l2_bytes >> 20} MiB; end other programs (see nvidia-smi)"
        )
    part = max(block * times for block, times in _BLOCKS) * 4
    return min(wanted, free_bytes // 2) // part * part


def measure(
    timer: Timer,
    device: torch.device,
    span_bytes: int,
    sizes: Iterable[int] = _MATRIX_SIZES,
    repeats: int = 7,
) -> Ceilings:
    """The best rates that any of the ways to reach them gave."""
    read = _read_seconds(timer, device, span_bytes, repeats)
    rates = {size: _matrix_flops(timer, device, size, repeats) for size in sizes}
    fastest = max(rates, key=lambda size: rates[size])
    return Ceilings(
        read_bytes_per_s=span_bytes / read,
        matrix_flops=rates[fastest],
        read_span_bytes=span_bytes,
        matrix_size=fastest,
    )


def _read_seconds(timer: Timer, device: torch.device, span_bytes: int, repeats: int) -> float:
    numbers = torch.ones(span_bytes // 4, dtype=torch.int32, device=device)
    least = min(block * times for block, times in _BLOCKS)
    sums = torch.empty(numbers.numel() // least, dtype=torch.int32, device=device)
    calls: list[Callable[[], object]] = [
        partial(read_all, numbers, sums, block, times) for block, times in _BLOCKS
    ]
    calls.append(partial(torch.sum, numbers.view(torch.float32)))
    return min(best(timer, call, 10, repeats) for call in calls)


def _matrix_flops(timer: Timer, device: torch.device, size: int, repeats: int) -> float:
    # Normal values, as in use: zeros take less power, and the clock stays higher.
    x, y = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(x)
    return 2 * size**3 / best(timer, lambda: torch.mm(x, y, out=out), 10, repeats)
