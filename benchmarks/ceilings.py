"""What this machine can do, as `penstock bench` states it, beside the fastest products.

    PENSTOCK_ISA=avx2 python benchmarks/ceilings.py --threads 1

One row is held against reading, many against arithmetic. A product that is faster than its ceiling
by more than ``--noise`` shows that the ceiling is wrong, and ends this with status 1.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from penstock.backends.cpu import native
from penstock.backends.cpu.forms import form_of
from penstock.backends.cpu.measure import Ceiling
from penstock.bench.machine import measure_speeds
from penstock.hardware import detect
from penstock.models.spec import DType
from penstock.plan.ops import Linear, LinearPart
from penstock.quant import GridScheme, GroupScheme, QuantScheme

WIDTH = 2048
MANY = 512
KINDS: dict[str, tuple[DType, QuantScheme | None]] = {
    "f32": ("float32", None),
    "bf16": ("bfloat16", None),
    "int8": ("float32", GridScheme(8)),
    "int8 by 64": ("float32", GroupScheme(8, 64)),
    "int4": ("float32", GridScheme(4)),
    "int4 by 64": ("float32", GroupScheme(4, 64)),
}


class Products:
    """An executor of products of one kind, one after the other, and of nothing else."""

    def __init__(self, kind: str, threads: int, rows: int, num_bytes: int) -> None:
        """So many products that their weights take ``num_bytes``."""
        elem, scheme = KINDS[kind]
        row_bytes = WIDTH * (2 if elem == "bfloat16" else 4) + 64
        hardware = detect()
        self._native: Any = native.load().Executor(
            threads=threads,
            cpus=list(hardware.placement)[:threads],
            crowded=threads > hardware.compute_threads,
            num_blocks=1,
            max_tokens=rows,
            max_logits=1,
            max_sequences=rows,
            max_positions=1,
            vocabulary=1,
            arena_bytes=rows * (row_bytes + 4 * WIDTH + 64) + (1 << 20),
            kv_elem="float32",
            kv_layers=[],
        )
        x = self._native.add_buffer(0, elem, WIDTH, row_bytes, "1T")
        out = self._native.add_buffer(rows * row_bytes, "float32", WIDTH, 4 * WIDTH + 64, "1T")
        form = form_of(scheme, elem)
        self.count, self.bytes = 0, 0
        while self.bytes < num_bytes:
            op = Linear("", "", WIDTH, (LinearPart("", WIDTH),), None, scheme, False)
            self._native.append_linear(form.add(self._native, op, 1), None, x, out, "none")
            self.count += 1
            self.bytes = sum(self._native.region_bytes)
        self._rows = rows

    def best(self, seconds: float) -> float:
        """The shortest step's time."""
        none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
        zeros = np.zeros(self._rows, np.int32)
        starts = np.arange(self._rows + 1, dtype=np.int32)
        tables: list[Any] = []
        step = (zeros, zeros, starts, zeros + 1, tables, none, none, pairs, none, pairs)
        best, end = float("inf"), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            self._native.run(*step, features=None)
            best = min(best, time.perf_counter() - start)
        return best


def share(name: str, rate: float, ceiling: Ceiling, unit: str) -> float:
    print(f"  {name:<22} {rate / 1e9:8,.1f} {unit}  {rate / ceiling.rate:6.1%} of the ceiling")
    return rate / ceiling.rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=detect().compute_threads)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--noise", type=float, default=0.05, help="(default: 0.05)")
    a = parser.parse_args()
    before = measure_speeds(a.threads)
    rates = []
    uncached = max(64 << 20, 2 * detect().last_level_bytes)
    for kind in KINDS:
        one = Products(kind, a.threads, 1, uncached)
        many = Products(kind, a.threads, MANY, 1)
        operations = 2 * WIDTH * WIDTH * MANY * many.count
        rates.append((kind, one.bytes / one.best(a.seconds), operations / many.best(a.seconds)))
    speeds = before.best(measure_speeds(a.threads))
    if speeds.read is None or speeds.f32 is None or speeds.bf16 is None:
        print(f"nothing was measured: {speeds.unmeasured}")
        return 2
    print(f"{native.load().isa}, {a.threads} threads")
    for name, ceiling in (
        ("reading", speeds.read),
        ("f32", speeds.f32),
        ("bf16", speeds.bf16),
        ("int8", speeds.int8),
    ):
        if ceiling is not None:
            rate = f"{ceiling.rate / 1e9:8,.1f} G/s"
            print(f"  {name:<22} {rate}, best three within {ceiling.spread:.1%}")
    highest = 0.0
    for kind, read, done in rates:
        highest = max(highest, share(f"{kind}, 1 row", read, speeds.read, "GB/s"))
        arithmetic = {"f32": speeds.f32, "bf16": speeds.bf16}.get(kind, speeds.int8)
        if arithmetic is not None:
            highest = max(highest, share(f"{kind}, {MANY} rows", done, arithmetic, "Gop/s"))
    return int(highest > 1 + a.noise)


if __name__ == "__main__":
    raise SystemExit(main())
