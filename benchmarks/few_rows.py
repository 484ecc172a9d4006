"""What rounding loses that is told of few rows, as of experts that few tokens reach.

    python benchmarks/few_rows.py

Rows are normally distributed, with columns that depend on each other: of a spectrum that falls with
the given power. A matrix is rounded by the Hessian of some of them; the table has its loss for
others, as a part of that of rounding to nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quantize.awq import clipped_fit
from penstock.quantize.gptq import gptq
from penstock.quantize.grid import IntegerGrid

F32 = NDArray[np.float32]

COLUMNS: Final = 256
OUTPUTS: Final = 128
NUMBERS: Final = (4, 16, 32, 64, 128, 256, 512, 1024, 4096)


def main() -> None:
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(OUTPUTS, COLUMNS)).astype(np.float32)
    print("| spectrum | bits | group | rows a column | GPTQ, 0.01 | GPTQ, 0.1 | AWQ's clipping |")
    print("|---|---|---|--:|--:|--:|--:|")
    for power in (0.5, 1.0):
        rows = drawn(draw, power)
        many = rows(20000)
        whole = many.T @ many
        for bits, group in ((4, 32), (3, 64)):
            grid = IntegerGrid(bits, group, True, "float32")
            grouped = grid.grouped(matrix)
            nearest = grid.matrix(grouped, *grid.fit(grouped)).dequantize()
            base = loss(nearest - matrix, whole)
            for number in NUMBERS:
                some = rows(number)
                hessian = some.T @ some
                made = [
                    gptq(matrix, hessian, grid, "static", damping, "it") for damping in (0.01, 0.1)
                ]
                made.append(grid.matrix(grouped, *clipped_fit(grouped, grid, hessian)))
                parts = [loss(each.dequantize() - matrix, whole) / base for each in made]
                said = " | ".join(f"{part:.2f}" for part in parts)
                print(f"| {power} | {bits} | {group} | {number / COLUMNS:g} | {said} |")


def drawn(draw: np.random.Generator, power: float) -> Callable[[int], F32]:
    """What draws a number of rows of one distribution."""
    turned = np.linalg.qr(draw.normal(size=(COLUMNS, COLUMNS)))[0]
    sizes = np.arange(1, COLUMNS + 1) ** -power

    def rows(number: int) -> F32:
        made: F32 = ((draw.normal(size=(number, COLUMNS)) * sizes) @ turned.T).astype(np.float32)
        return made

    return rows


def loss(difference: F32, hessian: F32) -> float:
    return float(np.vdot(difference @ hessian, difference))


main()
