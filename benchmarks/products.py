"""Products of the shapes of small models beside their floor, by the number of rows.

    python benchmarks/products.py --kinds bf16 int8 int4 --rows 1 4 8 16 32 128 512 2048

The floor is the longer of the time to read the weights and that of the arithmetic, by the ceilings
measured in the same process. Weights come from memory, other ones each time, as in a step.
"""

from __future__ import annotations

import argparse

from plain_products import KINDS, Products

from penstock.backends.cpu import native
from penstock.bench.machine import measure_speeds
from penstock.hardware import detect

SHAPES = {  # n x k
    "1b": ((2048, 2048), (8192, 2048), (2048, 8192)),
    "0.6b": ((1024, 1024), (3072, 1024), (1024, 3072)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 512, 2048])
    parser.add_argument("--models", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    a = parser.parse_args()
    speeds = measure_speeds(a.threads)
    if speeds.read is None or speeds.f32 is None or speeds.bf16 is None:
        print(f"nothing was measured: {speeds.unmeasured}")
        return 2
    integers = speeds.int8 or speeds.f32
    peaks = {"f32": speeds.f32.rate, "bf16": speeds.bf16.rate}
    print(
        f"{native.load().isa}, {a.threads} threads: {speeds.read.rate / 1e9:.1f} GB/s, bf16 "
        f"{speeds.bf16.rate / 1e9:.0f}, int8 {integers.rate / 1e9:.0f} Gop/s; Gop/s and % of floor"
    )
    uncached = max(256 << 20, 8 * detect().last_level_bytes)
    print(f"{'':<20}" + "".join(f"{rows:>13}" for rows in a.rows))
    for kind in a.kinds:
        for n, k in (shape for model in a.models for shape in SHAPES[model]):
            print(f"{kind:<10} {n:>4}x{k:<4}", end="", flush=True)
            for rows in a.rows:
                few = rows <= 64
                products = Products(
                    kind, n, k, rows=rows, threads=a.threads, num_bytes=uncached if few else 1
                )
                time = products.best(a.seconds)
                reading = products.bytes / speeds.read.rate if few else 0.0
                arithmetic = products.operations / peaks.get(kind, integers.rate)
                done = products.operations / time / 1e9
                print(f"{done:>8.0f} {max(reading, arithmetic) / time:>4.0%}", end="", flush=True)
            print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
