"""How fast a layer's matrices are read in every form, beside bfloat16: what decoding waits for.

    python benchmarks/decode_rates.py --threads 2

The matrices of a layer of a model of 1B parameters (queries, keys and values; attention's output;
gate and up; down) are multiplied by one row and by eight, or by as many as are given, with all that
a form needs around its products, such as turns. Weights come from memory, other ones each time, as
in a step. Forms take turns, in rounds. Each has its best time of a round, and the table the median
of the rounds, and their range, of bytes a second and of the time beside that of bfloat16 in the
same round. The last column is for one row and a matrix that stays in cache, without a lattice's
rotations: the rate of decoding weights and multiplying, where memory is not waited for.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from plain_products import best_time

from penstock.backends.cpu import native
from penstock.backends.cpu.arrays import as_bytes
from penstock.backends.cpu.forms import form_of
from penstock.backends.cpu.matrix_form import MatrixPart
from penstock.backends.cpu.turned import E8P, SECOND_POINTS
from penstock.hardware import detect
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Packed
from penstock.interface.weights import WeightValue
from penstock.models.lattice_codes import LatticeCodes
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import DType
from penstock.plan.ops import Linear, LinearPart
from penstock.quant import (
    BlockScheme,
    CodebookScheme,
    GridScheme,
    GroupScheme,
    LatticeScheme,
    QuantScheme,
)
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.lattice_matrix import RESIDUAL_SCALES
from penstock.quant.paley import paley_matrix
from penstock.quant.turn import Turn
from penstock.weights.dummy import DummyWeights
from penstock.weights.dummy_blocks import dummy_blocks, dummy_codes

SHAPES: Final = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))
"""Rows and columns of a layer's matrices."""
Shapes = Sequence[tuple[int, int]]
CACHED_COLUMNS: Final = 2048
"""Columns of the matrix that stays in cache."""
CACHED_PART: Final = 0.5
"""How much of the cache that takes."""
CACHED_TIMES: Final = 32
"""How often a step multiplies by it: what a step costs besides is little beside so many."""


@dataclass(frozen=True)
class Form:
    """What weights are in, and what multiplies them."""

    scheme: QuantScheme | None
    x: DType = "bfloat16"
    weight_only: bool = False


def _blocks(name: str, weight_only: bool = True) -> Form:
    scheme = BLOCK_FORMATS[name].scheme
    return Form(scheme, "bfloat16" if weight_only else "float32", weight_only)


FORMS: Final[dict[str, Form]] = {
    "bf16": Form(None),
    "int8": Form(GridScheme(8), "float32"),
    "int4": Form(GridScheme(4), "float32"),
    "int8 by row": Form(GroupScheme(8, None), "float32"),
    "int4 by 128": Form(GroupScheme(4, 128), "float32"),
    "2:4 int8 by row": Form(GroupScheme(8, None, sparse=True), "float32"),
    "2:4 int4 by 128": Form(GroupScheme(4, 128, sparse=True), "float32"),
    "int8 by 128, x in bf16": Form(GroupScheme(8, 128), weight_only=True),
    "int4 by 128, x in bf16": Form(GroupScheme(4, 128), weight_only=True),
    "codebooks, 4 bits": Form(CodebookScheme(4, 0.0045), weight_only=True),
    "codebooks, 3 bits": Form(CodebookScheme(3, 0.0045), weight_only=True),
    "lattice, 4 bits": Form(LatticeScheme(4, 0), weight_only=True),
    "lattice, 3 bits": Form(LatticeScheme(3, 0), weight_only=True),
    "lattice, 2 bits": Form(LatticeScheme(2, 0), weight_only=True),
    "NF4": _blocks("NF4"),
    "FP4": _blocks("FP4"),
    "MXFP4": _blocks("MXFP4", weight_only=False),
    "NVFP4": _blocks("NVFP4_SCALED"),
    "FP8 by row": _blocks("FP8_128"),
}


def value_of(scheme: QuantScheme | None, n: int, k: int) -> WeightValue:
    """A random matrix, quantized where packing rounds no floats to the scheme."""
    normal = np.random.default_rng(n * k).standard_normal(1 << 20, np.float32)
    if isinstance(scheme, BlockScheme):
        return dummy_blocks(dummy_codes(normal, scheme), scheme, n, k)
    if isinstance(scheme, LatticeScheme | CodebookScheme):
        kept: LatticeCodes | RowCodebooks = (
            LatticeCodes(scheme.bits, scheme.seed, decoded=False)
            if isinstance(scheme, LatticeScheme)
            else RowCodebooks(scheme.bits, scheme.outliers, decoded=False)
        )
        weights = {"w": PlanWeight(Packed("w", (n, k), kept))}
        return DummyWeights(weights, 0, "bfloat16").get("w")
    matrix: NDArray[np.float32] = np.resize(normal, (n, k))
    if isinstance(scheme, GroupScheme) and scheme.sparse:
        matrix[:, 1::4] = matrix[:, 2::4] = 0
    return matrix


def cached_shape(form: Form, threads: int) -> tuple[int, int]:
    """Rows and columns of a matrix of a form, of which each thread's share stays in its cache."""
    room = CACHED_PART * threads * native.load().second_level_cache()
    one = Layers(form, ((64, CACHED_COLUMNS),), rows=1, threads=1, num_bytes=0, turned=False).bytes
    return 64 * max(1, int(room / one)), CACHED_COLUMNS


class Layers:
    """Layers of one form, one after another: so many that their weights take ``num_bytes``."""

    def __init__(
        self,
        form: Form,
        shapes: Shapes = SHAPES,
        *,
        rows: int,
        threads: int,
        num_bytes: int,
        turned: bool = True,
        times: int = 1,
    ) -> None:
        """``rows``: the most that they are multiplied by. ``turned``: whether what is multiplied
        by points of a lattice is turned, and so are the products; ``times``: how often a layer is
        multiplied by."""
        hardware = detect()
        self._form, self._rows, self._threads, self._at = form, rows, threads, 0
        self._turned, self._times = turned, times
        columns = sum(max(k, 8 * n) + k for n, k in shapes)
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
            arena_bytes=rows * 8 * columns + (1 << 20),
            kv_elem="float32",
            kv_layers=[],
        )
        self._turns: dict[Turn, tuple[Any, Any]] = {}
        values = {shape: value_of(form.scheme, *shape) for shape in shapes}
        places = {shape: self._buffers(*shape) for shape in shapes}
        self.count = 0
        while self.count == 0 or self.bytes < num_bytes:
            for shape in shapes:
                self._append(values[shape], *shape, *places[shape])
            self.count += 1

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(self._native.region_bytes)

    def seconds(self, rows: int, least: float) -> float:
        """The shortest time of a layer by so many rows, within ``least`` seconds."""
        return best_time(self._native, rows, self._threads, least) / self.count / self._times

    def _buffer(self, elem: DType, columns: int) -> Any:
        size = columns * (2 if elem == "bfloat16" else 4) + 64  # an odd number of lines apart
        place = self._at
        self._at += self._rows * size
        return self._native.add_buffer(place, elem, columns, size, "1T")

    def _buffers(self, n: int, k: int) -> tuple[Any, Any, Any, Any, Any]:
        """x, x turned, products with the first and the second points, and the output."""
        elem = self._form.x
        x, out = self._buffer(elem, k), self._buffer("float32", n)
        if not isinstance(self._form.scheme, LatticeScheme):
            return x, x, out, out, out
        points = self._buffer("float32", n), self._buffer("float32", n)
        return x, self._buffer(elem, k), *points, out

    def _append(
        self,
        value: WeightValue,
        n: int,
        k: int,
        x: Any,
        turned: Any,
        first: Any,
        second: Any,
        out: Any,
    ) -> None:
        scheme = self._form.scheme
        if not isinstance(scheme, LatticeScheme):
            self._product(scheme, value, n, k, x, out)
            return
        if self._turned:
            turn = self._turn(Turn(k, scheme.seed, "input"))
            self._native.append_turn_rows(x=x, out=turned, **turn)
        self._product(E8P, value, n, k, turned, first)
        if scheme.bits > 2:
            self._product(SECOND_POINTS[scheme.bits], value, n, k, turned, second)
        if not self._turned:
            return
        self._native.append_turn_back(
            x=first,
            second=second if scheme.bits > 2 else None,
            out=out,
            first=0,
            by=0.0 if scheme.bits == 2 else float(1 / RESIDUAL_SCALES[scheme.bits]),
            scale=self._floats(np.ones(1, np.float32)),
            bias=None,
            **self._turn(Turn(n, scheme.seed, "output")),
        )

    def _product(
        self, scheme: QuantScheme | None, value: WeightValue, n: int, k: int, x: Any, out: Any
    ) -> None:
        form = form_of(scheme, self._form.x)
        only = self._form.weight_only
        op = Linear("", "", k, (LinearPart("", n),), None, scheme, only)
        matrix = form.add(self._native, op, 1)
        for _ in range(self._times):
            self._native.append_linear(matrix, None, x, out, "none")
        form.pack(MatrixPart(self._native, matrix, 0, "a matrix"), value)

    def _floats(self, values: NDArray[Any]) -> Any:
        return self._native.add_constant(as_bytes(np.ascontiguousarray(values, np.float32)))

    def _turn(self, turn: Turn) -> dict[str, Any]:
        if turn not in self._turns:
            matrix = paley_matrix(turn.base)
            if matrix is not None and turn.side == "input":
                matrix = matrix.T
            base = None if matrix is None else self._floats(matrix)
            self._turns[turn] = self._floats(turn.signs), base
        signs, base = self._turns[turn]
        return {
            "signs": signs,
            "doubled": turn.doubled,
            "base": turn.base,
            "base_matrix": base,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forms", choices=FORMS, nargs="+", default=list(FORMS), metavar="FORM")
    parser.add_argument("--rows", type=int, default=[1, 8], nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each figure of a round")
    a = parser.parse_args()
    hardware = detect()
    names = list(dict.fromkeys(["bf16", *a.forms]))
    uncached = max(128 << 20, 4 * hardware.last_level_bytes)
    layers = {
        name: Layers(FORMS[name], rows=max(a.rows), threads=a.threads, num_bytes=uncached)
        for name in names
    }
    cached = {
        name: Layers(
            FORMS[name],
            (cached_shape(FORMS[name], a.threads),),
            rows=1,
            threads=a.threads,
            num_bytes=0,
            turned=False,
            times=CACHED_TIMES,
        )
        for name in names
    }
    arithmetic: dict[str, list[float]] = {name: [] for name in names}
    times: dict[tuple[str, int], list[float]] = {(n, rows): [] for n in names for rows in a.rows}
    for _ in range(a.rounds):
        for name in names:
            arithmetic[name].append(cached[name].bytes / cached[name].seconds(1, a.seconds) / 1e9)
        for rows in a.rows:
            for name in names:
                times[name, rows].append(layers[name].seconds(rows, a.seconds))
    print(f"{hardware.cpu_model}, {native.load().isa}, {a.threads} threads, {a.rounds} rounds\n")
    weights = sum(math.prod(shape) for shape in SHAPES)
    head = "".join(f" {_counted(rows)}: GB/s | times bf16's |" for rows in a.rows)
    print(f"| | bits a weight |{head} one row, in cache: GB/s |")
    print("|---|---:|" + "---:|---:|" * len(a.rows) + "---:|")
    for name in names:
        own = layers[name].bytes / layers[name].count
        cells = [name, f"{8 * own / weights:.2f}"]
        for rows in a.rows:
            taken, base = times[name, rows], times["bf16", rows]
            cells.append(f"{own / statistics.median(taken) / 1e9:.1f}")
            cells.append(_spread([each / of for each, of in zip(taken, base, strict=True)]))
        cells.append(f"{statistics.median(arithmetic[name]):.1f}")
        print(f"| {' | '.join(cells)} |")
    return 0


def _counted(rows: int) -> str:
    return "one row" if rows == 1 else f"{rows} rows"


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
