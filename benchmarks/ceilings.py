"""What this machine can do, as `penstock bench` states it, beside the fastest products.

    PENSTOCK_ISA=avx2 python benchmarks/ceilings.py --threads 1

One row is held against reading, many against arithmetic. A product that is faster than its ceiling
by more than ``--noise`` shows that the ceiling is wrong, and ends this with status 1.
"""

from __future__ import annotations

import argparse

from plain_products import KINDS, Products

from penstock.backends.cpu import native
from penstock.backends.cpu.measure import Ceiling
from penstock.bench.machine import measure_speeds
from penstock.cli.options import positive_int
from penstock.hardware import detect
from penstock.threads import format_count

WIDTH = 2048
MANY = 512


def share(name: str, rate: float, ceiling: Ceiling, unit: str) -> float:
    print(f"  {name:<22} {rate / 1e9:8,.1f} {unit}  {rate / ceiling.rate:6.1%} of the ceiling")
    return rate / ceiling.rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=positive_int, default=detect().compute_threads)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--noise", type=float, default=0.05, help="(default: 0.05)")
    a = parser.parse_args()
    before = measure_speeds(a.threads)
    rates = []
    uncached = max(256 << 20, 8 * detect().last_level_bytes)
    for kind in KINDS:
        one = Products(kind, WIDTH, WIDTH, rows=1, threads=a.threads, num_bytes=uncached)
        many = Products(kind, WIDTH, WIDTH, rows=MANY, threads=a.threads, num_bytes=1)
        rates.append(
            (kind, one.bytes / one.best(a.seconds), many.operations / many.best(a.seconds))
        )
    speeds = before.best(measure_speeds(a.threads))
    if speeds.read is None or speeds.f32 is None or speeds.bf16 is None:
        print(f"not everything was measured: {speeds.unmeasured}")
        return 2
    print(f"{native.load().isa}, {format_count(a.threads)}")
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
