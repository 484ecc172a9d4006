"""Matrices with a codebook for each row on the GPU, and a few weights in floats: SqueezeLLM's.

A product adds what codes stand for, and then, for each row of the matrix, its outliers: by how much
each exceeds the value of its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from penstock.backends.cuda.coded_matrix import Shape, check
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.outliers import Outliers, add_outliers
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.packing import joined_planes, pack_planes, pad_columns
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.models.spec import Gating

_PLANE: Final = 32
_ROWS_AT_ONCE: Final = 512
"""Rows of which sums are kept at a time; what a row becomes does not depend on it."""


@dataclass(frozen=True)
class CodedRows:
    """Rows of such a matrix, as a checkpoint has them (docs/quantize.md), on any device."""

    codes: Tensor
    """uint8 ``[n, k]``, below ``2 ** bits``."""
    codebook: Tensor
    """Floats ``[n, 2 ** bits]``."""
    outlier_rows: Tensor
    """int32 ``[n + 1]``."""
    outlier_columns: Tensor
    """int32 ``[count]``."""
    outlier_values: Tensor
    """Floats ``[count]``."""


class CodebookMatrix:
    """Weights as codes, beside the values that codes of each row stand for."""

    def __init__(
        self,
        shape: Shape,
        bits: Literal[3, 4],
        counts: Sequence[int],
        dtype: torch.dtype,
        workspace: Workspace,
        x_dtype: torch.dtype,
    ) -> None:
        """``counts``: the outliers of each of the shape's parts; ``dtype``: that of values."""
        self.shape, self._bits, self._workspace = shape, bits, workspace
        self._x_dtype = x_dtype
        parts = shape.parts or (shape.weight_rows,)
        if len(counts) != len(parts):
            raise ValueError(f"{len(parts)} matrices have so many numbers of outliers: {counts}")
        self._first_outlier, rows, outliers = {}, 0, 0
        for size, count in zip(parts, counts, strict=True):
            self._first_outlier[rows] = size, outliers, count
            rows, outliers = rows + size, outliers + count
        device, n = workspace.device, shape.weight_rows
        depth = 4 * _PLANE if bits == 4 else 8 * _PLANE
        padded = -(-shape.k // depth) * depth
        word = torch.int16 if bits == 4 else torch.uint8
        high = None
        if bits == 3:
            high = torch.zeros((n, padded // 8), dtype=torch.uint8, device=device)
        self.weights = Weights(
            "codebook",
            torch.zeros((n, padded // 4), dtype=word, device=device),
            padded,
            bits=bits,
            plane=_PLANE,
            depth=depth,
            scales=torch.zeros((n, 1 << bits), dtype=dtype, device=device),
            high=high,
        )
        self._outliers = None
        if outliers:
            self._outliers = Outliers(
                torch.zeros(n + 1, dtype=torch.int32, device=device),
                torch.zeros(outliers, dtype=torch.int32, device=device),
                torch.zeros(outliers, device=device),
            )
        # Sums of all rows of W, which outliers are added to before a gate.
        self._sums = Shape(n, shape.k, min(shape.max_rows, _ROWS_AT_ONCE))
        at = workspace.capability
        if self._outliers is None:
            workspace.reserve(launch.scratch(self.weights, shape, x_dtype, at))
        else:
            own = carved_bytes(self._between(self._sums.max_rows))
            workspace.reserve(own + launch.scratch(self.weights, self._sums, x_dtype, at))

    @property
    def nbytes(self) -> int:
        """Device memory of the weights, padding included; scratch is the workspace's."""
        return self.weights.nbytes + (0 if self._outliers is None else self._outliers.nbytes)

    def tile(self, rows: int) -> Tile:
        """Return the tile of a product of ``rows`` rows."""
        at, shape = self._workspace.capability, self.shape
        if self._outliers is not None:
            shape, rows = self._sums, min(rows, _ROWS_AT_ONCE)
        return launch.tile_of(self.weights, shape, self._x_dtype, rows, at)

    def fill(self, first_row: int, part: CodedRows, name: str) -> None:
        """Keep a part as rows from ``first_row`` on.

        Raises ValueError, naming ``name``, where it is none of the shape's parts.
        """
        (n, k), count = part.codes.shape, len(part.outlier_columns)
        size, first, expected = self._first_outlier.get(first_row, (0, 0, 0))
        if (n, k, count) != (size, self.shape.k, expected):
            raise ValueError(
                f"{name} has {n} rows of {k} columns and {count} outliers, where {size} rows of "
                f"{self.shape.k} and {expected} are kept"
            )
        rows, weights = slice(first_row, first_row + n), self.weights
        codes = pad_columns(part.codes, weights.padded)
        if weights.high is None:
            weights.w[rows] = pack_planes(codes.view(torch.int8), 4, _PLANE)
        else:
            weights.w[rows] = joined_planes(codes & 3, 2, 4, _PLANE)
            weights.high[rows] = joined_planes(codes >> 2, 1, 8, _PLANE)
        assert weights.scales is not None
        weights.scales[rows] = part.codebook.to(weights.scales.dtype)
        if self._outliers is None:
            return
        kept, some = self._outliers, slice(first, first + count)
        kept.starts[first_row : first_row + n + 1] = part.outlier_rows + first
        kept.places[some] = part.outlier_columns
        of = torch.repeat_interleave(part.outlier_rows.diff().long())
        code = part.codes[of, part.outlier_columns.long()].long()
        there = part.codebook.to(weights.scales.dtype)[of, code].float()
        kept.deltas[some] = part.outlier_values.float() - there

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        """As :meth:`~penstock.backends.cuda.coded_matrix.Matrix.product` has it."""
        check(self.shape, x, out, bias, gated)
        if self._outliers is None:
            launch.product(self.weights, self.shape, x, out, bias, gated, self._workspace)
            return
        for first in range(0, len(x), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            between = self._between(len(x[some]))
            (sums,) = self._workspace.carve(between)
            launch.product(
                self.weights,
                self._sums,
                x[some],
                sums,
                None,
                None,
                self._workspace,
                taken=carved_bytes(between),
            )
            add_outliers(sums, self._outliers, x[some], bias, gated, out[some])

    def _between(self, rows: int) -> tuple[tuple[int, int], torch.dtype]:
        return (rows, self.shape.weight_rows), torch.float32
