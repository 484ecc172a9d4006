"""Matrices with a codebook for each row on the GPU, and a few weights in floats: SqueezeLLM's.

A product adds what codes stand for, and then, for each row of the matrix, its outliers: by how much
each exceeds the value of its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda import rounding
from penstock.backends.cuda.coded_matrix import Array, Shape, check
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.outliers import Outliers, add_outliers
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.packing import joined_planes, pack_planes, pad_columns
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.interface.weights import QuantizedTensor
from penstock.models.spec import Gating
from penstock.quant import CodebookMatrix

_PLANE: Final = 32
_ROWS_AT_ONCE: Final = 512
"""Rows of which sums are kept at a time; what a row becomes does not depend on it."""


class CodebookArrays(Protocol):
    """Rows of such a matrix as a checkpoint has them (docs/quantized-formats.md)."""

    @property
    def codes(self) -> NDArray[np.int32]:
        """``[n, ceil(k * bits / 32)]``: a stream of bits for each row, the first code lowest."""
        ...

    @property
    def values(self) -> NDArray[np.float32]:
        """What the codes of a row stand for, ``[n, 2 ** bits]``."""
        ...

    @property
    def ends(self) -> NDArray[np.int32]:
        """Row r has the outliers from ``ends[r]`` to ``ends[r + 1]``, ``[n + 1]``."""
        ...

    @property
    def columns(self) -> NDArray[np.int32]:
        """Columns of the outliers, ``[count]``, ascending in a row."""
        ...

    @property
    def outliers(self) -> NDArray[np.float32]:
        """Weights in the place of what codes stand for, ``[count]``."""
        ...

    @property
    def k(self) -> int:
        """Columns of a row."""
        ...


class CodebookRowsMatrix:
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
        self._values = torch.zeros((n, 1 << bits), dtype=dtype, device=device)
        self.weights = Weights(
            "codebook",
            torch.zeros((n, padded // 4), dtype=word, device=device),
            padded,
            bits=bits,
            plane=_PLANE,
            depth=depth,
            scales=self._values,
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

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        raise ValueError(f"{name} has no codebooks of rows, and nothing rounds to such")

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        if not isinstance(part, CodebookMatrix) or part.scheme.bits != self._bits:
            kept = f"codebooks of {self._bits} bits by row"
            raise ValueError(f"{name} is stored as {part.scheme}, and not in {kept}")
        self.fill_rows(first_row, part, name, put)

    def fill_rows(
        self,
        first_row: int,
        part: CodebookArrays,
        name: str,
        put: Callable[[Array], Tensor],
    ) -> None:
        """Keep a part as rows from ``first_row`` on; ``put`` sends an array to the device.

        Raises ValueError, naming ``name``, where it is none of the shape's parts.
        """
        n, k, count = len(part.codes), part.k, len(part.columns)
        size, first, expected = self._first_outlier.get(first_row, (0, 0, 0))
        if (n, k, count) != (size, self.shape.k, expected):
            raise ValueError(
                f"{name} has {n} rows of {k} columns and {count} outliers, where {size} rows of "
                f"{self.shape.k} and {expected} are kept"
            )
        for some in rounding.slices(n, k):
            codes = self._unpacked(put(np.ascontiguousarray(part.codes[some])))
            values = put(np.ascontiguousarray(part.values[some])).to(self._values.dtype)
            rows = slice(first_row + some.start, first_row + some.stop)
            self._keep(codes, rows)
            self._values[rows] = values
            if self._outliers is None:
                continue
            begin, end = int(part.ends[some.start]), int(part.ends[some.stop])
            ends = put(part.ends[some.start : some.stop + 1].copy())
            columns = put(part.columns[begin:end].copy())
            of = torch.repeat_interleave(ends.diff().long())
            there = values[of, codes[of, columns.long()].long()].float()
            kept, at = self._outliers, slice(first + begin, first + end)
            kept.starts[rows.start : rows.stop + 1] = ends + first
            kept.places[at] = columns
            kept.deltas[at] = put(part.outliers[begin:end].copy()) - there

    def _unpacked(self, words: Tensor) -> Tensor:
        """Codes uint8 ``[rows, k]`` of streams int32."""
        bits, k = self._bits, self.shape.k
        octets = words.view(torch.uint8)  # which ascend on every device that torch runs on
        whole = pad_columns(octets, -(-k // 8) * bits)[:, : -(-k // 8) * bits]
        shifts = torch.arange(0, 8 * bits, 8, device=words.device)
        eight = (whole.reshape(len(words), -1, bits).long() << shifts).sum(dim=2)
        each = eight[:, :, None] >> torch.arange(0, 8 * bits, bits, device=words.device)
        codes = (each & ((1 << bits) - 1)).to(torch.uint8)
        return codes.reshape(len(words), -1)[:, :k]

    def _keep(self, codes: Tensor, rows: slice) -> None:
        padded = pad_columns(codes, self.weights.padded).contiguous()
        if self.weights.high is None:
            self.weights.w[rows] = pack_planes(padded.view(torch.int8), 4, _PLANE)
        else:
            self.weights.w[rows] = joined_planes(padded & 3, 2, 4, _PLANE)
            self.weights.high[rows] = joined_planes(padded >> 2, 1, 8, _PLANE)

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
