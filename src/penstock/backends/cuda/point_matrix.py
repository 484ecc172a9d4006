"""Matrices of lattice points on the GPU: turns, and a product with the points in between.

The order is that of ``plan.ops.Linear``: rows of x are turned, rounded to their type, multiplied by
the points of all parts at once, and what comes of a part's points is scaled and turned back.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda import rounding
from penstock.backends.cuda.coded_matrix import Array, Matrix, Shape, check
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.lattice_linear import PLANE
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.turn import UNIT, DeviceTurn, turn_back, turn_rows
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.lattice_tables import lattice_tables
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.interface.weights import QuantizedTensor
from penstock.models.spec import Gating
from penstock.quant import LatticeMatrix, LatticeScheme
from penstock.quant.lattice import SIZE
from penstock.quant.turn import Turn

_ROWS_AT_ONCE = 512
"""Rows that are turned, multiplied and turned back together: the scratch that has them between is
not to be larger than that of other products. What a row becomes does not depend on it."""
_APART = 4
"""Scales lie so many numbers apart, 16 bytes, that kernels are compiled once for all."""


class PointMatrix(Matrix):
    """Weights as codes of lattice points."""

    def __init__(
        self, shape: Shape, scheme: LatticeScheme, workspace: Workspace, x_dtype: torch.dtype
    ) -> None:
        self.shape, self._scheme, self._workspace = shape, scheme, workspace
        self._x_dtype = x_dtype
        parts = shape.parts or (shape.weight_rows,)
        ends = np.cumsum(parts).tolist()
        self._parts = [slice(end - size, end) for size, end in zip(parts, ends, strict=True)]
        padded = -(-shape.k // UNIT) * UNIT
        self._product = Shape(shape.weight_rows, padded, min(shape.max_rows, _ROWS_AT_ONCE))
        self._scales = torch.zeros((len(parts), _APART), device=workspace.device)
        self._turn = device_turn(Turn(shape.k, scheme.seed, "input"), workspace)
        self._back = [device_turn(Turn(size, scheme.seed, "output"), workspace) for size in parts]
        self.weights = _room(shape.weight_rows, padded, scheme, workspace)
        own = carved_bytes(*self._between(self._product.max_rows))
        further = launch.scratch(self.weights, self._product, x_dtype, workspace.capability)
        workspace.reserve(own + further)

    @property
    def nbytes(self) -> int:
        """Device memory of the weights, padding included; tables and turns are the workspace's."""
        second = self.weights.high
        codes = self.weights.w.nbytes + (0 if second is None else second.nbytes)
        return codes + self._scales.nbytes

    def tile(self, rows: int) -> Tile | None:
        at, rows = self._workspace.capability, min(rows, _ROWS_AT_ONCE)
        return launch.tile_of(self.weights, self._product, self._x_dtype, rows, at)

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        raise ValueError(f"{name} is no matrix of points, and nothing rounds to {self._scheme}")

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        if not isinstance(part, LatticeMatrix) or part.scheme != self._scheme:
            raise ValueError(f"{name} is stored as {part.scheme}, and not in {self._scheme}")
        (n, k), rows = part.shape, slice(first_row, first_row + part.shape[0])
        if part.kept is not None or rows not in self._parts or k != self.shape.k:
            raise ValueError(
                f"{name} is {n} rows of {k} columns in {self._scheme}, and no matrix by itself: "
                "turning back joins all rows"
            )
        self._scales[self._parts.index(rows), 0] = float(part.scale)
        for some in rounding.slices(n, k):
            to = slice(first_row + some.start, first_row + some.stop)
            codes = put(np.ascontiguousarray(part.codes[some]))
            blocks = codes.shape[1]
            self.weights.w[to, :blocks] = _codes(codes[:, :, :2])
            if self.weights.high is not None:
                self.weights.high[to, :blocks] = _codes(codes[:, :, 2:])

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        check(self.shape, x, out, bias, gated)
        for first in range(0, len(x), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            self._multiply(x[some], out[some], bias, gated)

    def _between(self, rows: int) -> launch.Parts:
        """What is made of so many rows on the way: turned, multiplied, and with a gate turned
        back."""
        parts: launch.Parts = [
            ((rows, self.weights.padded), self._x_dtype),
            ((rows, self.shape.weight_rows), torch.float32),
        ]
        return parts + (parts[1:] if self.shape.gated else [])

    def _multiply(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        between = self._between(len(x))
        turned, sums, *both = self._workspace.carve(*between)
        turn_rows(x, self._turn, turned)
        launch.product(
            self.weights,
            self._product,
            turned,
            sums,
            None,
            None,
            self._workspace,
            taken=carved_bytes(*between),
        )
        target, of_parts = (out, bias) if gated is None else (both[0], None)
        for i, (rows, back) in enumerate(zip(self._parts, self._back, strict=True)):
            own = None if of_parts is None else of_parts[rows]
            turn_back(sums[:, rows], back, self._scales[i], own, target[:, rows])
        if gated is not None:
            launch.finish_sums(target, bias, gated, out)


def _room(n: int, padded: int, scheme: LatticeScheme, workspace: Workspace) -> Weights:
    """Zeros for codes, beside the tables that they are looked up in."""

    def codes(dtype: torch.dtype) -> Tensor:
        return torch.zeros((n, padded // SIZE), dtype=dtype, device=workspace.device)

    high = {2: None, 3: torch.uint8, 4: torch.int16}[scheme.bits]
    return Weights(
        "lattice",
        codes(torch.int16),
        padded,
        bits=scheme.bits,
        plane=PLANE,
        depth=UNIT,
        marks=workspace.constant("lattice tables", lattice_tables),
        high=None if high is None else codes(high),
    )


def _codes(octets: Tensor) -> Tensor:
    """Codes ``[n, blocks]`` of their bytes uint8 ``[n, blocks, 1 or 2]``, the low byte first."""
    if octets.shape[2] == 1:
        return octets[:, :, 0]
    # Bytes of a word ascend on every device that torch runs on.
    return octets.contiguous().view(torch.int16)[:, :, 0]


def device_turn(turn: Turn, workspace: Workspace) -> DeviceTurn:
    """What kernels need of ``turn``, which matrices of one size share."""
    left, right = turn.factors
    right = right.T if turn.side == "output" else right
    return DeviceTurn(
        workspace.constant(turn, lambda: turn.signs.astype(np.int8)),
        workspace.constant(("left", len(left)), lambda: left.astype(np.int8)),
        workspace.constant(
            ("right", turn.side, turn.doubled, turn.base),
            lambda: np.ascontiguousarray(right.astype(np.int8)),
        ),
        turn.block**-0.5,
    )
