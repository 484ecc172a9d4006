"""An executor of products alone, for benchmarks of kernels through the whole native runtime."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from penstock.backends.cpu import native
from penstock.backends.cpu.forms import form_of
from penstock.hardware import detect
from penstock.models.spec import DType
from penstock.plan.ops import Linear, LinearPart
from penstock.quant import GridScheme, GroupScheme, QuantScheme

KINDS: dict[str, tuple[DType, QuantScheme | None]] = {
    "f32": ("float32", None),
    "bf16": ("bfloat16", None),
    "int8": ("float32", GridScheme(8)),
    "int8 by 64": ("float32", GroupScheme(8, 64)),
    "int4": ("float32", GridScheme(4)),
    "int4 by 64": ("float32", GroupScheme(4, 64)),
}
"""The type of x, and what weights are rounded to."""


class Products:
    """Products of one kind and shape, one after the other, of other weights each."""

    def __init__(
        self, kind: str, n: int, k: int, *, rows: int, threads: int, num_bytes: int
    ) -> None:
        """So many products that their weights take at least ``num_bytes``."""
        elem, scheme = KINDS[kind]
        x_bytes = k * (2 if elem == "bfloat16" else 4) + 64  # an odd number of lines apart
        out_bytes = 4 * n + 64
        hardware = detect()
        self._native: Any = native.load().Executor(
            threads=threads,
            cpus=list(hardware.placement)[:threads],
            crowded=threads > hardware.room,
            num_blocks=1,
            max_tokens=rows,
            max_logits=1,
            max_sequences=rows,
            max_positions=1,
            vocabulary=1,
            arena_bytes=rows * (x_bytes + out_bytes) + (1 << 20),
            kv_elem="float32",
            kv_layers=[],
        )
        x = self._native.add_buffer(0, elem, k, x_bytes, "1T")
        out = self._native.add_buffer(rows * x_bytes, "float32", n, out_bytes, "1T")
        form = form_of(scheme, elem)
        self.count, self.bytes = 0, 0
        while self.bytes < num_bytes:
            op = Linear("", "", k, (LinearPart("", n),), None, scheme, False)
            self._native.append_linear(form.add(self._native, op, 1), None, x, out, "none")
            self.count += 1
            self.bytes = sum(self._native.region_bytes)
        self.operations = 2 * n * k * rows * self.count
        self._rows, self._threads = rows, threads

    def best(self, seconds: float) -> float:
        """The shortest time of all products together."""
        return best_time(self._native, self._rows, self._threads, seconds)


def best_time(executor: Any, rows: int, threads: int, seconds: float) -> float:
    """The shortest time of a step of ``rows`` tokens that an executor takes within ``seconds``."""
    # On one thread processor time, which other processes do not lengthen.
    clock = time.thread_time if threads == 1 else time.perf_counter
    none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
    zeros = np.zeros(rows, np.int32)
    starts = np.arange(rows + 1, dtype=np.int32)
    step: Any = (zeros, zeros, starts, zeros + 1, [], none, none, pairs, none, pairs)
    best, end = float("inf"), time.perf_counter() + seconds
    turns = 0
    while turns < 3 or time.perf_counter() < end:
        start = clock()
        executor.run(*step, features=None)
        best = min(best, clock() - start)
        turns += 1
    return best
