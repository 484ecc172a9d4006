"""Matrices in blocks of published formats on the GPU (``block_layouts.py``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda import block_packing, rounding
from penstock.backends.cuda.block_layouts import BLOCK_LAYOUTS, LEVELED, MARKED
from penstock.backends.cuda.coded_matrix import Array, CodedMatrix, Shape
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.workspace import Workspace
from penstock.interface.weights import QuantizedTensor
from penstock.quant import BlockScheme, BlockTensor


class BlockMatrix(CodedMatrix):
    """Weights in blocks, which activations multiply as they are."""

    def __init__(
        self, shape: Shape, scheme: BlockScheme, workspace: Workspace, x_dtype: torch.dtype
    ) -> None:
        self._scheme = scheme
        super().__init__(shape, _room(shape, scheme, workspace.device), workspace, x_dtype)

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        raise ValueError(f"{name} is no matrix in blocks, and nothing rounds to {self._scheme}")

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        fill_blocks(self.weights, self._scheme, first_row, part, name, put)


class BlockTable:
    """A table in blocks that is looked up in and no product reads."""

    def __init__(self, rows: int, cols: int, scheme: BlockScheme, device: torch.device) -> None:
        self._scheme = scheme
        self.weights = _room(Shape(rows, cols, 1), scheme, device)

    @property
    def nbytes(self) -> int:
        """Device memory, padding included."""
        return self.weights.nbytes

    def fill(self, value: QuantizedTensor, name: str, put: Callable[[Array], Tensor]) -> None:
        """Keep all rows."""
        fill_blocks(self.weights, self._scheme, 0, value, name, put)


def fill_blocks(
    weights: Weights,
    scheme: BlockScheme,
    first_row: int,
    part: QuantizedTensor,
    name: str,
    put: Callable[[Array], Tensor],
) -> None:
    """Keep ``part`` as rows from ``first_row`` on. Raises ValueError for another format."""
    if not isinstance(part, BlockTensor) or part.scheme != scheme:
        raise ValueError(f"{name} is stored as {part.scheme}, and not in {scheme}")
    assert weights.layout is not None
    assert weights.marks is not None
    n, k = part.shape
    for some in rounding.slices(n, k):
        to = slice(first_row + some.start, first_row + some.stop)
        blocks = put(np.ascontiguousarray(part.blocks[some]))
        parts = block_packing.take_apart(scheme.format, blocks)
        packed = block_packing.pack(parts, weights.layout, weights.padded)
        weights.w[to] = packed.words
        weights.marks[:, to] = packed.marks
        if packed.bits is not None and weights.high is not None:
            weights.high[:, to] = packed.bits
        if packed.units is not None and weights.scales is not None:
            weights.scales[:, to] = packed.units


def _room(shape: Shape, scheme: BlockScheme, device: torch.device) -> Weights:
    """Zeros for an empty matrix."""
    layout = BLOCK_LAYOUTS[scheme.format]
    n, padded = shape.weight_rows, -(-shape.k // layout.depth) * layout.depth

    def zeros(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(sizes, dtype=dtype, device=device)

    word = torch.uint8 if layout.low == 2 else torch.int16
    high = None
    if layout.high:
        pieces = padded * layout.high // (8 * layout.plane)
        high = zeros(pieces, n, layout.plane, dtype=torch.uint8)
    marks = zeros(padded // MARKED * layout.marks, n)
    if marks.numel() >= 2**31:
        raise ValueError("a matrix has too many scales")
    return Weights(
        "blocks",
        zeros(n, padded // layout.planes, dtype=word),
        padded,
        bits=layout.bits,
        plane=layout.plane,
        depth=layout.depth,
        scales=zeros(padded // LEVELED, n) if layout.levels else None,
        marks=marks,
        size=layout.plane,
        layout=layout,
        high=high,
    )
